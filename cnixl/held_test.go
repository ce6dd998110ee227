package cnixl

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// The engine of D in the tests below: a KV cache of blocks, of which a read fills the first half.
const (
	heldBlocks   = 64
	heldBlockLen = 64 << 10
	heldTimeout  = 2 * time.Second // of the machine's clock, which the test moves
	boardLen     = 4096            // P's memory: one row with its fence word, then the blocks
	fenceWord    = 4711
)

// engine is a D: the read machine over real NIXL, and who owns each local block.
type engine struct {
	t    *testing.T
	a    *Agent
	m    *read.Machine
	kv   []byte
	now  clock.Instant
	peer transport.Peer
	src  read.Source
}

func newEngine(t *testing.T, r *remote) *engine {
	t.Helper()
	return newEngineOver(t, r, read.Config{}, func(a *Agent) transport.Transport { return a })
}

// newEngineOver is an engine whose machine has over around its agent.
func newEngineOver(t *testing.T, r *remote, cfg read.Config, over func(*Agent) transport.Transport) *engine {
	t.Helper()
	e := &engine{t: t, a: realNIXL(t, Config{Agent: "decode"}), kv: memory(heldBlocks * heldBlockLen), now: 1}
	cfg.ReadsMax, cfg.RowsMax, cfg.RunsMax, cfg.ReadTimeout = 4, 8, 4096, heldTimeout
	landing := memory(read.LandingBytes(cfg))
	for _, m := range [][]byte{e.kv, landing} {
		if err := e.a.Register([]transport.Region{{Addr: address(m), Bytes: uint64(len(m))}}); err != nil {
			t.Fatal(err)
		}
	}
	layout := func(addr uint64) *read.Layout {
		return &read.Layout{Regions: []read.Region{{Addr: addr, BlockLen: heldBlockLen, BlockStride: heldBlockLen, Blocks: heldBlocks}}}
	}
	var err error
	if e.m, err = read.New(cfg, over(e.a), landing, layout(address(e.kv))); err != nil {
		t.Fatal(err)
	}
	if e.peer, err = e.a.Load(r.hello.Blob); err != nil {
		t.Fatal(err)
	}
	one := topology.Shape{TP: 1, PP: 1}
	hows, err := read.NewMaps(layout(address(e.kv)), one, 0, one, 0, []read.Remote{{Layout: layout(r.hello.Addr + boardLen)}})
	if err != nil {
		t.Fatal(err)
	}
	e.src = read.Source{
		Peer: e.peer, Map: hows[0],
		Fence: read.Fence{Native: true, Addr: r.hello.Addr, Want: fenceWord},
	}
	return e
}

// begin reads the first half of the blocks.
func (e *engine) begin() read.Job {
	e.t.Helper()
	return e.beginRun(1, record.Run{N: heldBlocks / 2})
}

// beginRun reads some blocks.
func (e *engine) beginRun(token uint64, run record.Run) read.Job {
	e.t.Helper()
	j, st := e.m.Begin(token, e.now)
	for _, s := range []read.Status{st, e.m.AddSource(j, e.src), e.m.AddRuns(j, []record.Run{run}), e.m.Commit(j, e.now)} {
		if s != read.OK {
			e.t.Fatalf("status %d: %s", s, e.m.Why())
		}
	}
	return j
}

// outcome steps until the read has its outcome.
func (e *engine) outcome() read.Outcome {
	e.t.Helper()
	var o read.Outcome
	waitUntil(e.t, "the outcome", func() bool {
		e.m.Step(e.now)
		got, ok := e.m.NextOutcome()
		o = got
		return ok
	})
	return o
}

// half gives the blocks of the read, or the others.
func (e *engine) half(second bool) []byte {
	at := 0
	if second {
		at = len(e.kv) / 2
	}
	return e.kv[at : at+len(e.kv)/2]
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func only(b []byte, v byte) bool { return bytes.Count(b, []byte{v}) == len(b) }

// P stops polling, or is stopped, so that a READ over TCP stays open at will. D's read times out or is cancelled, and D
// closes. Whatever block D's engine has been given, nothing lands in it.
func TestNoByteLandsInABlockThatWasHandedOut(t *testing.T) {
	for _, how := range []string{"peer stops polling, the read times out", "peer stops polling, the read is cancelled", "peer is stopped, the read times out"} {
		t.Run(how, func(t *testing.T) {
			if !alone(t, "UCX_TLS=tcp") {
				return
			}
			haveNIXL(t)
			inline, cancel := how[:12] == "peer stops p", how[len(how)-9:] == "cancelled"
			r := startPeer(t, peerSetup{Agent: "prefill", Bytes: boardLen + heldBlocks*heldBlockLen, Inline: inline})
			e := newEngine(t, r)
			r.do("fill 7")
			r.do(fmt.Sprint("word ", fenceWord))

			// First a read that works: connected, proven, every byte there.
			e.begin()
			if o := e.outcome(); o.Status != record.ReadOK || !o.Proven || !only(e.half(false), 7) {
				t.Fatalf("outcome %+v", o)
			}

			if inline {
				r.do("poll off")
			} else {
				r.signal(syscall.SIGSTOP)
			}
			fill(e.kv, 0xaa)
			j := e.begin()
			for range 100 { // in flight
				e.m.Step(e.now)
			}
			if e.m.Open() == 0 {
				t.Fatal("nothing is in flight: the peer answers")
			}
			if cancel {
				if st := e.m.Cancel(j, e.now); st != read.OK {
					t.Fatalf("cancel: %d", st)
				}
			} else {
				e.now = e.now.Add(heldTimeout + 1)
			}
			want := map[bool]uint8{false: record.ReadTimeout, true: record.ReadCancelled}[cancel]
			if o := e.outcome(); o.Status != want || !o.BlocksHeld {
				t.Fatalf("outcome %+v, want status %d with its blocks held", o, want)
			}
			// Close: the machine takes no more, the transport refuses while anything may still write.
			if e.m.Close(e.now) == 0 {
				t.Fatal("the machine says that nothing is open")
			}
			if err := e.a.Close(); !errors.Is(err, transport.ErrInvalid) {
				t.Fatalf("close of the agent: %v, want ErrInvalid", err)
			}
			if err := e.a.Drop(e.peer); !errors.Is(err, transport.ErrInvalid) {
				t.Fatalf("drop of the peer: %v, want ErrInvalid", err)
			}
			// The engine uses what it owns: every block but the held ones. An hour passes.
			fill(e.half(true), 0xee)
			e.now = e.now.Add(time.Hour)
			for range 1000 {
				e.m.Step(e.now)
				if token, ok := e.m.NextBack(); ok {
					t.Fatalf("blocks of read %d were handed out while the peer holds the transfer", token)
				}
			}
			before := bytes.Count(e.half(false), []byte{7})

			if inline {
				r.do("poll on")
			} else {
				r.signal(syscall.SIGCONT)
			}
			waitUntil(t, "the blocks to come back", func() bool {
				e.m.Step(e.now)
				_, ok := e.m.NextBack()
				return ok
			})
			landed := bytes.Count(e.half(false), []byte{7}) - before
			if landed == 0 {
				t.Error("nothing landed after the time-out: the test shows nothing")
			}
			// Handed out: now they are the engine's, and what P does from here on may not show in them.
			fill(e.half(false), 0xdd)
			r.do("fill 9")
			if n := e.m.Open(); n != 0 {
				t.Fatalf("%d transfers open", n)
			}
			if err := e.a.Close(); err != nil {
				t.Fatal(err)
			}
			r.do("fill 11")
			if !only(e.half(true), 0xee) {
				t.Error("bytes landed in blocks that the engine had all the time")
			}
			if !only(e.half(false), 0xdd) {
				t.Error("bytes landed in blocks after they were handed out")
			}
			t.Logf("%d bytes landed after the outcome, all of them in held blocks", landed)
		})
	}
}
