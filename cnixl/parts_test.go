package cnixl

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// A step of these reads posts for 40 µs, of which a block takes 20: more parts than may be in flight, of the 32 blocks that a read has.
const (
	partBudget  = 40 * time.Microsecond
	partsAtOnce = 16 // read.Config.PartsMax
	passBytes   = 128 << 10
	readBytes   = heldBlocks / 2 * heldBlockLen
)

// metered is an agent whose posts take what their bytes say, so that the parts do not depend on the machine's speed.
type metered struct {
	transport.Transport
	bytes uint64   // of blocks, posted since the last look
	parts []uint64 // bytes of each
}

func (m *metered) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	x, err := m.Transport.PostRead(s)
	total := uint64(0)
	for i := range s.Descs {
		total += s.Descs[i].Len
	}
	s.Took = time.Duration(total * uint64(partBudget) / passBytes)
	if err == nil && total > record.RowLen {
		m.bytes += total
		m.parts = append(m.parts, total)
	}
	return x, err
}

// newParted is an engine that posts its reads in parts.
func newParted(t *testing.T, r *remote) (*engine, *metered) {
	t.Helper()
	var m *metered
	e := newEngineOver(t, r, read.Config{PostBudget: partBudget}, func(a *Agent) transport.Transport {
		m = &metered{Transport: a}
		return m
	})
	return e, m
}

// pass steps once. It must not post more than the budget takes.
func (m *metered) pass(e *engine) {
	e.t.Helper()
	m.bytes = 0
	e.m.Step(e.now)
	if m.bytes > passBytes {
		e.t.Fatalf("a pass posts %d bytes, at most %d", m.bytes, passBytes)
	}
}

// end steps until a read has its outcome.
func (m *metered) end(e *engine) (o read.Outcome) {
	e.t.Helper()
	waitUntil(e.t, "the outcome", func() bool {
		m.pass(e)
		got, ok := e.m.NextOutcome()
		o = got
		return ok
	})
	return o
}

func startBlocks(t *testing.T) *remote {
	t.Helper()
	r := startPeer(t, peerSetup{Agent: "prefill", Bytes: boardLen + heldBlocks*heldBlockLen})
	r.do("fill 7")
	r.do(fmt.Sprint("word ", fenceWord))
	return r
}

// Over shared memory and over TCP: every block arrives, in many posts, none of which is longer than a pass may post, and short reads beside
// it end before it.
func TestALongReadInPartsArrivesWhole(t *testing.T) {
	for _, env := range []string{"UCX_TLS=all", "UCX_TLS=tcp"} {
		t.Run(env, func(t *testing.T) {
			if !alone(t, env) {
				return
			}
			haveNIXL(t)
			e, m := newParted(t, startBlocks(t))
			fill(e.kv, 0xaa)
			e.begin()
			if o := m.end(e); o.Status != record.ReadOK || !o.Proven || o.BlocksHeld || o.Bytes != readBytes {
				t.Fatalf("outcome %+v", o)
			}
			if len(m.parts) < readBytes/passBytes || !only(e.half(false), 7) || !only(e.half(true), 0xaa) {
				t.Errorf("%d parts, or not the blocks of the read", len(m.parts))
			}
			if n := e.m.Counters; n.Reads != 1 || n.FencePosts != 1 || n.Bytes != readBytes || n.DataPosts != uint64(len(m.parts)) {
				t.Errorf("counted %+v", n)
			}

			fill(e.kv, 0xaa)
			e.begin()
			m.pass(e)
			const shorts = 3
			for k := range uint32(shorts) {
				e.beginRun(uint64(2+k), record.Run{Local: heldBlocks/2 + k, Remote: k, N: 1})
			}
			for k := range shorts {
				if o := m.end(e); o.Token == 1 || o.Status != record.ReadOK {
					t.Fatalf("the outcome of short read %d is %+v", k, o)
				}
			}
			if o := m.end(e); o.Token != 1 || o.Status != record.ReadOK || !only(e.half(false), 7) || !only(e.half(true)[:shorts*heldBlockLen], 7) {
				t.Errorf("outcome %+v", o)
			}
			if e.m.Open() != 0 {
				t.Errorf("%d transfers open", e.m.Open())
			}
		})
	}
}

// What was posted of a read that is cancelled lands before its blocks come back, and the rest is never posted.
func TestAReadThatIsCancelledBetweenItsPartsLandsNoMore(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	r := startBlocks(t)
	e, m := newParted(t, r)
	e.begin()
	if o := m.end(e); o.Status != record.ReadOK {
		t.Fatalf("outcome %+v", o)
	}
	fill(e.kv, 0xaa)
	r.signal(syscall.SIGSTOP)
	m.parts = nil
	j := e.begin()
	for len(m.parts) < 2 {
		m.pass(e)
	}
	if st := e.m.Cancel(j, e.now); st != read.OK {
		t.Fatalf("cancel: %d", st)
	}
	if o := m.end(e); o.Status != record.ReadCancelled || !o.BlocksHeld {
		t.Fatalf("outcome %+v, want cancelled with its blocks held", o)
	}
	posted := len(m.parts)
	r.signal(syscall.SIGCONT)
	waitUntil(t, "the blocks to come back", func() bool {
		m.pass(e)
		_, ok := e.m.NextBack()
		return ok
	})
	if len(m.parts) != posted || e.m.Open() != 0 {
		t.Errorf("%d parts posted after the cancel, %d open", len(m.parts)-posted, e.m.Open())
	}
	was := uint64(0)
	for _, n := range m.parts {
		was += n
	}
	if was >= readBytes || !only(e.kv[:was], 7) || !only(e.kv[was:], 0xaa) {
		t.Errorf("of %d bytes that were posted not all landed, or more", was)
	}
}

// The peer is killed with parts in flight and parts to come: the read fails, and its blocks wait out the quarantine.
func TestAPeerThatIsKilledBetweenPartsFailsTheRead(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	r := startBlocks(t)
	e, m := newParted(t, r)
	e.begin()
	if o := m.end(e); o.Status != record.ReadOK {
		t.Fatalf("outcome %+v", o)
	}
	r.signal(syscall.SIGSTOP)
	m.parts = nil
	e.begin()
	for len(m.parts) < 2 {
		m.pass(e)
	}
	r.signal(syscall.SIGKILL)
	if o := m.end(e); o.Status != record.ReadFailed || o.Peer != e.peer || !o.BlocksHeld {
		t.Fatalf("outcome %+v, want failed with its blocks held", o)
	}
	posted := len(m.parts)
	if posted > partsAtOnce {
		t.Errorf("%d parts posted, none of which can have ended", posted)
	}
	e.now = e.now.Add(time.Hour) // past the quarantine
	waitUntil(t, "the blocks to come back", func() bool {
		m.pass(e)
		_, ok := e.m.NextBack()
		return ok
	})
	if len(m.parts) != posted || e.m.Open() != 0 {
		t.Errorf("%d parts posted after the failure, %d open", len(m.parts)-posted, e.m.Open())
	}
}
