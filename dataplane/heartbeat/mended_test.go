package heartbeat

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// Memory may be registered anew while an engine is dead: its maps are known, and it is none the more alive for that.
func TestNewMemoryDoesNotBringADeadEngineBack(t *testing.T) {
	r := newRig(t, nil)
	local := r.k.reg.local
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(3), 100*time.Millisecond)
	must(t, r.k.EngineDead(e))
	r.step(sec(3.1))
	must(t, r.k.SetLocal(local))
	r.step(sec(3.2))
	lost := r.track(e, o, 2, 0) // parameters of the boot that is dead
	r.run(sec(20), 100*time.Millisecond)
	r.wantSaid(lost, "gone")
	r.wantEngine(e, "up down")
	if c := r.k.Counters(); c.Loads != 1 {
		t.Errorf("%d loads of a dead engine", c.Loads-1)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(sec(20.1))
	h := r.track(e, o, 1, 0)
	r.run(sec(30), 100*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(sec(31), 100*time.Millisecond)
	r.wantSaid(h, "done")
}

func TestAnEngineThatFindsNoRoomTakesNoOtherAway(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines, c.Links = 4, 5 })
	two := EngineDesc{ID: "Q", TP: 2}
	must(t, r.k.AddEngineAt(uint64(record.NewHandle(0, 1)), EngineDesc{ID: "P", TP: 2}))
	old := uint64(record.NewHandle(1, 1))
	must(t, r.k.AddEngineAt(old, two))
	r.step(sec(1))
	if err := r.k.AddEngineAt(uint64(record.NewHandle(2, 1)), two); !errors.Is(err, ErrFull) { // its links come back when it is gone
		t.Fatalf("the sixth link: %v", err)
	}
	if got, err := r.k.AddEngine(two); err != nil || got != old {
		t.Errorf("the engine is now %#x, %v", got, err)
	}
	r.run(sec(2), 100*time.Millisecond)
	if v := r.k.View(old); v.State != Idle {
		t.Errorf("it is %v", v.State)
	}
}

// A probe may still be out when another link of its engine breaks and is healed. It was posted before what has been sent since.
func TestAProbeFromBeforeAHealKnowsNothingOfWhatCameAfter(t *testing.T) {
	r := newRig(t, shaped(1, 1, 0))
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, true, blockLen/2)
	e := p.connect()
	r.trackStock(e, "x")
	i := record.Handle(e).Slot()
	links := func() []link { return r.k.engines[i].links }
	run := func(until func() bool) {
		t.Helper()
		for end := r.now.Add(time.Minute); !until(); r.step(r.now.Add(10 * time.Millisecond)) {
			if r.now > end {
				t.Fatal("never")
			}
		}
	}
	run(func() bool { return r.k.engines[i].state == Connected && r.k.engines[i].rounds > 0 })
	r.d.HoldReads(true)
	run(func() bool { return links()[0].probing && links()[1].probing })
	before := links()[1].probeSent
	r.hub.Cut("D", "P.0")
	run(func() bool { return r.k.engines[i].state == Broken })
	run(func() bool {
		return r.k.engines[i].state == Connected && links()[1].probing && links()[1].probeSent > before
	})
	r.d.LetReads(2) // the oldest: the probes from before
	r.step(r.now.Add(time.Millisecond))
	if l := links()[1]; !l.probing || l.heard > before {
		t.Errorf("%d bytes are heard and a probe is out: %v; the probe that ended was posted after %d", l.heard, l.probing, before)
	}
	r.d.HoldReads(false)
	run(func() bool { return links()[1].heard > before })
}

// A place in the machine comes back by the end of a read, which nobody has to ask for all the time.
func TestAReadThatWaitsForAPlaceAsksForNoStep(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.ReadsMax = 1 })
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(3), 100*time.Millisecond)
	r.d.HoldReads(true)
	r.read(a, record.Run{N: 1})
	r.read(b, record.Run{Local: 1, N: 1})
	r.step(r.now.Add(time.Millisecond))
	r.step(r.now.Add(time.Millisecond))
	if due := r.k.NextDue(r.now); due <= r.now || due == clock.Never {
		t.Errorf("the next step is due in %v", due.Sub(r.now))
	}
	r.d.HoldReads(false)
	for n := 0; r.said(b) == "" && n < 4; n++ { // each finds something to do: the end of a, then b
		r.step(r.now.Add(time.Millisecond))
	}
	r.wantSaid(a, "done")
	r.wantSaid(b, "done")
}
