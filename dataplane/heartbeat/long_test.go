package heartbeat

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// slow counts the calls that take long in a real transport.
type slow struct {
	transport.Transport
	calls int
}

func (s *slow) Load(blob []byte) (transport.Peer, error) {
	s.calls++
	return s.Transport.Load(blob)
}

func (s *slow) Drop(p transport.Peer) error {
	s.calls++
	return s.Transport.Drop(p)
}

func (s *slow) Abandon(p transport.Peer) error {
	s.calls++
	return s.Transport.Abandon(p)
}

// foretold is what the word says before a step at a point in time.
func (r *rig) foretold(at clock.Instant) bool {
	return atomic.LoadUint64(&r.control.LongAtNs) <= uint64(at)
}

func TestAStepThatLoadsOrDropsAnAgentIsForetold(t *testing.T) {
	r := newRig(t, nil)
	w := &slow{Transport: r.k.tr}
	r.k.tr = w
	long := 0
	run := func(until clock.Instant) {
		t.Helper()
		for every := 100 * time.Millisecond; r.now.Add(every) <= until; {
			at := r.now.Add(every)
			said, calls := r.foretold(at), w.calls
			r.step(at)
			switch {
			case w.calls == calls:
			case said:
				long++
			default:
				t.Errorf("at %v: %d loads or drops in a step that the word called short", at, w.calls-calls)
			}
		}
	}
	run(sec(1))
	p, q := r.owner("P", false), r.owner("Q", true)
	e, other := r.connect(p), r.connect(q)
	held := r.track(e, p, 1, 0)
	r.track(e, p, 2, 0)
	r.trackStock(other, "id")
	run(sec(10))
	r.hub.Cut("D", "P")
	run(sec(20))
	r.wantEngine(e, "up down up")

	r.d.HoldReads(true) // an agent that must wait until its read has ended
	r.read(held, record.Run{N: 1})
	run(sec(21))
	p.reboot()
	must(t, r.k.LoadHandshake(e, 0, p.handshake()))
	run(sec(23))
	if n := r.k.Gauges().Parked; n != 1 {
		t.Errorf("%d agents parked, want 1", n)
	}
	if at := atomic.LoadUint64(&r.control.LongAtNs); at != 0 {
		t.Errorf("an agent waits to be dropped and the word is %d, want 0: now", at)
	}
	run(sec(40)) // and be abandoned
	r.d.HoldReads(false)
	run(sec(80))
	must(t, r.k.RemoveEngine(other))
	run(sec(90))
	if long < 6 { // two engines loaded, one healed, one loaded as another, two agents dropped
		t.Errorf("%d steps loaded or dropped an agent: the scene has shown nothing", long)
	}
}

func TestAtRestNoLongStepIsForetold(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(2), 100*time.Millisecond)
	for at := r.now; at < sec(300); at = at.Add(100 * time.Millisecond) {
		if r.foretold(at) {
			t.Fatalf("at %v a connected engine makes a step long", at)
		}
		r.step(at)
	}
}

func TestNewsOfAnEngineForetellALongStepAtOnce(t *testing.T) {
	r := newRig(t, nil)
	r.run(sec(1), 100*time.Millisecond)
	if r.foretold(r.now.Add(time.Hour)) {
		t.Error("without engines a step is called long")
	}
	r.connect(r.owner("P", false))
	if !r.foretold(r.now) {
		t.Error("an engine is to be loaded, and the next step is called short")
	}
	r.k.Sleep(r.now)
	r.step(r.now.Add(time.Second))
	if r.foretold(r.now.Add(time.Hour)) {
		t.Error("no agent is there, and a step is called long")
	}
	r.k.Wake(5, r.now)
	if !r.foretold(r.now) {
		t.Error("the engine is to be loaded over the new agent, and the next step is called short")
	}
}
