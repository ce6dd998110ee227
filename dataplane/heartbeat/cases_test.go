package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// The cases of docs/faults.yaml that one reader's tracker shows alone, and that no other test of it is about.

func TestACompletionLeavesWhenAllHasLandedAndTheFenceHasAnswered(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(3), time.Second)
	r.d.HoldReads(true)
	r.read(h, record.Run{N: blockCount})
	r.run(sec(7), time.Second)
	if n := o.count("complete"); n != 0 || r.reads.Counters.FencePosts != 0 { // shows C23.1
		t.Errorf("%d completions and %d fence reads while the data is on its way", n, r.reads.Counters.FencePosts)
	}
	r.d.HoldReads(false)
	r.run(sec(9), time.Second)
	r.wantSaid(h, "done")
	if n := o.count("complete"); n != 1 {
		t.Errorf("%d completions, want 1", n)
	}
	r.wantRest()
}

func TestAReadThatEndsInItsPostAndOneThatGoesOnAreCompletedOnceEach(t *testing.T) {
	for _, stock := range []bool{false, true} {
		t.Run(map[bool]string{false: "native", true: "stock"}[stock], func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", stock)
			e := r.connect(o)
			track := func(slot uint32, id string) record.Handle {
				if stock {
					return r.trackStock(e, id)
				}
				return r.track(e, o, slot, 0)
			}
			a, b := track(1, "1"), track(2, "2")
			r.run(sec(3), time.Second)
			r.read(a, record.Run{N: 1}) // over loopback a read ends inside its post
			r.step(r.now)
			r.d.HoldReads(true)
			r.read(b, record.Run{N: 1, Local: 1})
			r.step(r.now)
			completed := func() map[string]int {
				n := map[string]int{}
				for _, id := range append(o.ids("complete", false), o.ids("done", false)...) {
					n[id]++
				}
				return n
			}
			if n := completed(); n["1"] != 1 || n["2"] != 0 {
				t.Errorf("completions when the first has ended: %v", n)
			}
			r.run(sec(5), 100*time.Millisecond)
			r.d.HoldReads(false)
			r.run(sec(30), 100*time.Millisecond)
			if n := completed(); n["1"] != 1 || n["2"] != 1 { // shows C24.1
				t.Errorf("completions: %v, want one of each", n)
			}
			r.wantSaid(a, "done")
			r.wantSaid(b, "done")
			r.wantRest()
		})
	}
}

func TestARequestThatWaitsForItsTurnIsBeatenFor(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.ReadsMax, c.ReadTimeout = 1, 10*time.Second })
	o, other := r.owner("P", false), r.owner("Q", false)
	a, b := r.track(r.connect(o), o, 1, 0), r.track(r.connect(other), other, 1, 0)
	r.run(sec(0.3), 100*time.Millisecond)
	r.d.HoldReads(true)
	r.read(a, record.Run{N: 1})
	r.read(b, record.Run{N: 1, Local: 1})
	r.run(sec(9), 100*time.Millisecond)
	if n := other.count("renew"); n != 2 { // shows C06.2
		t.Errorf("%d heartbeats for the request that waits, want those of 0 and 5", n)
	}
	r.d.HoldReads(false)
	r.run(sec(10), 100*time.Millisecond)
	r.wantSaid(a, "done")
	r.wantSaid(b, "done")
}

func TestALongReadHoldsUpNoHeartbeat(t *testing.T) {
	r := newRigOf(t, nil, func(c *read.Config) { c.DescsStepMax = 1 }, 1)
	o := r.owner("P", false)
	other := r.owner("Q", false)
	a, b := r.track(r.connect(o), o, 1, 0), r.track(r.connect(other), other, 1, 0)
	r.run(sec(3), 100*time.Millisecond)
	var runs []record.Run
	for i := range uint32(blockCount / 2) { // every second block: nothing can be merged
		runs = append(runs, record.Run{Local: 2 * i, Remote: 2 * i, N: 1})
	}
	r.read(a, runs...)
	for r.said(a) == "" && r.now < sec(60) {
		r.step(r.now.Add(time.Second)) // the read needs a step for each piece
	}
	r.wantSaid(a, "done")
	if r.now < sec(3+blockCount/2) {
		t.Errorf("the read ended at %v: it was not long", r.now.Sub(sec(0)))
	}
	last := sec(0)
	for _, m := range other.heard {
		if gap := m.at.Sub(last); gap > 6*time.Second { // shows C69.2
			t.Errorf("%v between heartbeats to the other engine", gap)
		}
		last = m.at
	}
	if last < sec(12) {
		t.Errorf("the last heartbeat to the other engine is of %v", last.Sub(sec(0)))
	}
	r.wantSaid(b, "")
}

func TestOneHandshakeServesHeartbeatsAndReads(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.connect(o)
		h := r.trackOf(e, o)
		r.run(sec(9), time.Second)
		r.read(h, record.Run{N: 1})
		r.run(sec(11), time.Second)
		r.wantSaid(h, "done")
		if c := r.k.Counters(); c.Loads != 1 || c.Handshakes != 1 { // shows S09.1
			t.Errorf("stock %v: %d loads of %d handshakes, want one for all of it", stock, c.Loads, c.Handshakes)
		}
	}
}

func TestAReadOfNoBlocksEndsTheHeartbeats(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.connect(o)
		h := r.trackOf(e, o)
		r.run(sec(6), time.Second)
		r.read(h)
		r.run(sec(7), time.Second)
		r.wantSaid(h, "done")
		beats := r.k.Counters().Beats
		r.run(sec(60), time.Second)
		if n := r.k.Counters().Beats - beats; n != 0 { // shows S16.1
			t.Errorf("stock %v: %d heartbeats after a read of no blocks", stock, n)
		}
		r.wantRest()
	}
}

func TestAReadThatFailedReleasesTheLease(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.connect(o)
		h := r.trackOf(e, o)
		r.run(sec(3), time.Second)
		r.read(h, record.Run{Remote: blockCount, N: 1}) // outside of the owner's regions
		r.run(sec(5), time.Second)
		r.wantSaid(h, "failed(3)")
		if n := o.count("release") + o.count("done"); n != 1 { // shows S21.1
			t.Errorf("stock %v: %d messages that end the lease, want 1", stock, n)
		}
		r.wantRest()
	}
}

func TestAReadThatNeverEndsStopsItsHeartbeatsAndReleasesItsLease(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.ReadTimeout = 60 * time.Second })
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.step(sec(0.5))
	r.d.HoldReads(true)
	r.read(h, record.Run{N: 1})
	r.step(sec(1))
	r.run(sec(60.5), 500*time.Millisecond)
	r.wantSaid(h, "risk") // its rows do not answer either
	if n := o.count("renew"); n < 11 {
		t.Errorf("%d heartbeats while the read is in flight, want one an interval", n)
	}
	r.run(sec(62), 500*time.Millisecond)
	r.wantSaid(h, "risk failed(4)+held")
	beats := o.count("renew")
	r.run(sec(120), time.Second)
	if n := o.count("renew") - beats; n != 0 || o.count("release") != 1 { // shows C67.1
		t.Errorf("%d heartbeats and %d releases after the time-out, want 0 and 1", n, o.count("release"))
	}
}

// A second turn names an engine that never takes part in it (S30): the request may not be parked.
func TestARequestAtAnEngineThatNeverAnswersEnds(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.add(o)
		h := r.trackOf(e, o)
		r.read(h, record.Run{N: 1})
		r.run(sec(300), time.Second)
		r.wantSaid(h, "failed(6)") // shows S30.1, C54.3
		r.wantRest()
	}
}
