package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func (r *rig) wantFailing(failing, long int, oldest time.Duration) {
	r.t.Helper()
	if g := r.k.Gauges(); g.Failing != failing || g.FailingLong != long || time.Duration(g.FailingMs)*time.Millisecond != oldest {
		r.t.Errorf("at %v: %d failing, %d of them long, the oldest for %d ms; want %d, %d, %v", r.now.Sub(sec(0)), g.Failing, g.FailingLong, g.FailingMs, failing, long, oldest)
	}
}

func TestADeadEngineCountsAsFailingFromItsFirstErrorOn(t *testing.T) {
	r := newRig(t, nil)
	o, live := r.owner("P", false), r.owner("Q", false)
	r.track(r.connect(o), o, 1, 0)
	r.track(r.connect(live), live, 1, 0)
	r.run(sec(9), time.Second)
	r.wantFailing(0, 0, 0)
	r.hub.Kill("P")
	for r.k.Gauges().Broken == 0 && r.now < sec(30) {
		r.step(r.now.Add(time.Second))
	}
	broke := r.now
	r.run(broke.Add(4*time.Second), time.Second)
	r.wantFailing(0, 0, 0) // it may be a reset
	r.run(broke.Add(10*time.Second), time.Second)
	r.wantFailing(1, 0, 10*time.Second) // shows C50.2
	r.run(broke.Add(29*time.Second), time.Second)
	r.wantFailing(1, 0, 29*time.Second)
	r.run(broke.Add(300*time.Second), time.Second)
	r.wantFailing(1, 1, 300*time.Second) // shows C50.2
}

func TestAnEngineThatNeverAnsweredCountsAsFailing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	r.step(sec(1))
	e := r.add(o)
	r.track(e, o, 1, 0)
	r.run(sec(5), time.Second)
	r.wantFailing(0, 0, 0)
	r.run(sec(20), time.Second)
	r.wantFailing(1, 0, 19*time.Second)
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(300), time.Second)
	r.wantFailing(0, 0, 0)
}

func TestAnEngineWhoseReadsFailInARowCountsAsFailingAlthoughItAnswers(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	r.trackStock(e, "waits")
	r.run(sec(3), time.Second)
	fail := func(id string) {
		h := r.trackStock(e, id)
		r.run(r.now.Add(2*time.Second), time.Second)
		for r.reads.Open() > 0 { // a look at the engine
			r.step(r.now.Add(100 * time.Millisecond))
		}
		r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(40*time.Second), time.Second) // it is healed, and heard
		if got := r.said(h); got != "failed(3)+held back" {
			t.Fatalf("events: %q", got)
		}
	}
	fail("a")
	first := r.now.Add(-38 * time.Second) // a little after it was seen to fail
	fail("b")
	r.wantFailing(0, 0, 0)
	fail("c")
	if g := r.k.Gauges(); g.Failing != 1 || g.Connected != 1 || time.Duration(g.FailingMs)*time.Millisecond < r.now.Sub(first) { // shows C33.2
		t.Errorf("%d failing for %d ms, %d connected after three reads that failed", g.Failing, g.FailingMs, g.Connected)
	}
	h := r.trackStock(e, "d")
	r.run(r.now.Add(2*time.Second), time.Second)
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(2*time.Second), time.Second)
	r.wantSaid(h, "done")
	r.wantFailing(0, 0, 0)
}

func TestReadsThatFailedAtTheBootBeforeDoNotCountAgainstTheNext(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(2), time.Second)
	for n := range uint32(badReadsMax) {
		h := r.track(e, o, n, 0)
		r.run(r.now.Add(2*time.Second), time.Second)
		for r.reads.Open() > 0 { // a look at the engine
			r.step(r.now.Add(100 * time.Millisecond))
		}
		r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(40*time.Second), time.Second)
	}
	if g := r.k.Gauges(); g.Failing != 1 {
		t.Fatalf("%d failing after reads that failed", g.Failing)
	}
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(r.now.Add(40*time.Second), time.Second)
	r.wantFailing(0, 0, 0)
}
