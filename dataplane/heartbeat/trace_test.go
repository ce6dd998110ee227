package heartbeat

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// newTracedRig is a rig of context 3, whose sites are the recorder's.
func newTracedRig(t *testing.T, change func(*Config)) (*rig, *tracetest.Recorder) {
	t.Helper()
	rec := new(tracetest.Recorder)
	sites := rec.Sites().For(3)
	r := newRigOver(t, func(c *Config) {
		c.Sites = sites
		c.Self.Rank = 0
		if change != nil {
			change(c)
		}
	}, func(c *read.Config) { c.Sites = sites })
	return r, rec
}

func hashOf(name string) uint64 { return wire.EngineHash([]byte(name)) }

func TestEachMessageOfHeartbeatsRunsThroughItsSiteWithItsNumber(t *testing.T) {
	r, rec := newTracedRig(t, nil)
	rec.Attach(trace.BatchPosted)
	p, s := r.owner("P", false), r.owner("S", true)
	e, stock := r.connect(p), r.connect(s)
	a := r.track(e, p, 1, 0)
	r.track(e, p, 2, 0)
	r.trackStock(stock, "x")
	r.run(sec(4), time.Second) // hello is 0, the first beats 1
	r.read(a, record.Run{N: 1})
	r.run(sec(4.5), 100*time.Millisecond) // the completion is 2
	r.run(sec(14), time.Second)
	got := map[uint64][][4]uint64{}
	for _, args := range tracetest.Of(rec.Take(), trace.BatchPosted) {
		got[args[1]] = append(got[args[1]], args)
	}
	want := map[uint64][][4]uint64{
		hashOf("P"): {{hashOf("D"), hashOf("P"), 0, 1<<32 | 2}, {hashOf("D"), hashOf("P"), 0, 3<<32 | 1}, {hashOf("D"), hashOf("P"), 0, 4<<32 | 1}},
		// The agent is called D, too.
		hashOf("S"): {{hashOf("D"), hashOf("S"), 0, 1<<32 | 1}, {hashOf("D"), hashOf("S"), 0, 2<<32 | 1}, {hashOf("D"), hashOf("S"), 0, 3<<32 | 1}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var heard []uint8
	for _, m := range p.heard {
		heard = append(heard, m.h.Number())
	}
	if diff := cmp.Diff([]uint8{1, 2, 3, 4}, heard); diff != "" {
		t.Errorf("numbers that the owner heard (-want +got):\n%s", diff)
	}
}

func TestNumbersWrapAndBeginAnewWithTheConnection(t *testing.T) {
	r, rec := newTracedRig(t, nil)
	rec.Attach(trace.BatchPosted)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(1500), 500*time.Millisecond)
	var last uint64
	n := 0
	for _, args := range tracetest.Of(rec.Take(), trace.BatchPosted) {
		n++
		if last = args[3] >> 32; last != uint64(n&0xff) {
			t.Fatalf("message %d has number %d", n, last)
		}
	}
	if n < 258 {
		t.Fatalf("%d messages, too few to wrap", n)
	}
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(sec(1501))
	r.track(e, o, 2, 0)
	r.run(sec(1520), 500*time.Millisecond)
	if got := tracetest.Of(rec.Take(), trace.BatchPosted); len(got) == 0 || got[0][3]>>32 != 1 {
		t.Errorf("after another boot: %x, want them from 1 on, behind the hello", got)
	}
}

// A message that finds no room leaves again under the same number.
func TestAMessageThatDidNotLeaveTakesNoNumber(t *testing.T) {
	r, rec := newTracedRig(t, nil)
	rec.Attach(trace.BatchPosted)
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(1), 500*time.Millisecond)
	full := &refusing{Transport: r.k.tr}
	r.k.tr = full
	full.err = transport.ErrFull
	r.track(e, o, 1, 0)
	r.run(sec(2), 500*time.Millisecond)
	full.err = nil
	r.run(sec(10), 500*time.Millisecond)
	hits := tracetest.Of(rec.Take(), trace.BatchPosted)
	if len(hits) < 3 || hits[0][3]>>32 != 1 || hits[1][3]>>32 != 1 {
		t.Fatalf("%x, want the first number twice at least", hits)
	}
	if got := o.heard[0].h.Number(); got != 1 {
		t.Errorf("the owner's first message after the hello is number %d", got)
	}
}

// refusing answers Send with err, if it is not nil.
type refusing struct {
	transport.Transport
	err error
}

func (f *refusing) Send(p transport.Peer, msg []byte) error {
	if f.err != nil {
		return f.err
	}
	return f.Transport.Send(p, msg)
}

func TestTheStatesOfAConnectionRunThroughTheirSite(t *testing.T) {
	r, rec := newTracedRig(t, nil)
	rec.Attach(trace.HandshakeState)
	o := r.owner("P", false)
	e := r.add(o)
	r.track(e, o, 1, 0) // the step hears of the engine
	r.step(sec(1))
	r.step(sec(3))
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(10), time.Second)
	must(t, r.k.EngineDead(e))
	r.run(sec(12), time.Second)
	must(t, r.k.RemoveEngine(e))
	r.run(sec(13), 100*time.Millisecond)
	var states, spans []uint64
	for _, args := range tracetest.Of(rec.Take(), trace.HandshakeState) {
		if args[0] != 3 || args[1] != hashOf("P") {
			t.Errorf("context %d engine %x", args[0], args[1])
		}
		states, spans = append(states, args[2]), append(spans, args[3])
	}
	want := []uint64{
		trace.ConnectionIdle, trace.ConnectionLoading, trace.ConnectionConnected, trace.ConnectionBroken, trace.ConnectionRemoving, trace.Connection,
	}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
	if spans[0] != 0 || spans[3] != uint64(7*time.Second) {
		t.Errorf("times in the states before: %v, want 0 first and 7 s connected", spans)
	}
}

func TestTheNumbersOfAConnectionsStatesAreThoseOfTheSite(t *testing.T) {
	for name, state := range map[string]int{
		"idle": trace.ConnectionIdle, "loading": trace.ConnectionLoading, "connected": trace.ConnectionConnected,
		"broken": trace.ConnectionBroken, "removing": trace.ConnectionRemoving, "absent": trace.Connection,
	} {
		if got := State(state - trace.Connection).String(); got != name {
			t.Errorf("state %d is called %q, want %q", state, got, name)
		}
	}
}

func TestTheEndOfEachReadRunsThroughItsSite(t *testing.T) {
	r, rec := newTracedRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(1), 500*time.Millisecond)
	rec.AttachAll()
	good, stale, lost := r.track(e, o, 1, 0), r.track(e, o, 2, 0), r.track(99<<32|5, o, 3, 0)
	o.rows[2].Fence++
	for _, h := range []record.Handle{good, stale, lost} {
		r.read(h, record.Run{N: 2})
	}
	r.run(sec(3), 500*time.Millisecond)
	hits := rec.Take()
	ends := map[uint64]uint64{}
	for _, args := range tracetest.Of(hits, trace.ReadReported) {
		if _, twice := ends[args[1]]; twice {
			t.Errorf("two ends of %#x", args[1])
		}
		ends[args[1]] = args[2]
	}
	want := map[uint64]uint64{uint64(good): record.ReadOK, uint64(stale): record.ReadStale, uint64(lost): record.ReadLost}
	if diff := cmp.Diff(want, ends); diff != "" {
		t.Errorf("ends (-want +got):\n%s", diff)
	}
	for _, args := range tracetest.Of(hits, trace.ReadPosted) {
		if args[2] != hashOf("P") || args[3] != 2*blockLen {
			t.Errorf("posted: owner %x, %d bytes", args[2], args[3])
		}
	}
	if posted, arrived := len(tracetest.Of(hits, trace.ReadPosted)), len(tracetest.Of(hits, trace.DataArrived)); posted != 2 || arrived != 2 {
		t.Errorf("%d posted, %d arrived, want both of the known engine", posted, arrived)
	}
}
