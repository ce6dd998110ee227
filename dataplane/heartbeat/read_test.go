package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestAReadBringsTheBytesAndOneCompletionForAllThatEndedInTheStep(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(2), time.Second)
	r.read(a, record.Run{Local: 4, Remote: 9, N: 2})
	r.read(b, record.Run{Local: 0, Remote: 20, N: 1})
	r.run(sec(4), time.Second)
	r.wantSaid(a, "done")
	r.wantSaid(b, "done")
	for block, want := range map[int]byte{4: 10, 5: 11, 0: 21, 6: 0} {
		if got := r.kv[block*blockLen]; got != want {
			t.Errorf("block %d holds %d, want %d", block, got, want)
		}
	}
	if o.count("complete") != 1 || o.heard[len(o.heard)-1].n != 2 {
		t.Errorf("%d completions, want one that names both", o.count("complete"))
	}
	if ev := r.events[len(r.events)-1]; ev.User < 500 || ev.Value0 == 0 {
		t.Errorf("event %+v lacks user or bytes", ev)
	}
	r.wantRest()
}

func TestALongReadComesInPartsAndWrongPartsFailIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		parts []record.Read
		want  string
	}{
		{"three parts in order", []record.Read{{Part: 0, Parts: 3}, {Part: 1, Parts: 3}, {Part: 2, Parts: 3}}, "done"},
		{"a part is missing", []record.Read{{Part: 0, Parts: 3}, {Part: 2, Parts: 3}}, "failed(3)"},
		{"a part comes twice", []record.Read{{Part: 0, Parts: 3}, {Part: 0, Parts: 3}}, "failed(3)"},
		{"of no parts", []record.Read{{Part: 0, Parts: 0}}, "failed(3)"},
		{"past the last", []record.Read{{Part: 0, Parts: 1}, {Part: 1, Parts: 1}}, "done"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(2), time.Second)
			for i, p := range tc.parts {
				p.Track, p.N = h, 1
				r.k.ReadPart(&p, []record.Run{{Local: uint32(i), Remote: uint32(i), N: 1}}, r.now)
			}
			r.run(sec(4), time.Second)
			r.wantSaid(h, tc.want)
			r.wantRest()
		})
	}
}

func TestAReadThatDoesNotFitTheRegionsFails(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(2), time.Second)
	r.read(h, record.Run{Remote: blockCount, N: 1})
	r.run(sec(4), time.Second)
	r.wantSaid(h, "failed(3)")
	if n := o.count("release"); n != 1 {
		t.Errorf("%d releases, want 1", n)
	}
	r.wantRest()
}

// C40
func TestAReadOfNoBlocksIsDoneAtOnceWhetherOrNotTheOwnerCanBeTold(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(r *rig, o *owner, e uint64)
		told    int
	}{
		{"connected", func(r *rig, o *owner, e uint64) { must(r.t, r.k.LoadHandshake(e, 0, o.handshake())) }, 1},
		{"never connected", func(*rig, *owner, uint64) {}, 0},
		{"the completion cannot be sent", func(r *rig, o *owner, e uint64) {
			must(r.t, r.k.LoadHandshake(e, 0, o.handshake()))
			r.step(sec(0.5))
			r.hub.Kill("P")
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.add(o)
			tc.prepare(r, o, e)
			h := r.track(e, o, 1, 0)
			r.step(sec(0.9))
			r.read(h)
			r.step(sec(1))
			r.wantSaid(h, "done") // shows C40.1
			r.run(sec(200), time.Second)
			if n := o.count("complete"); n != tc.told {
				t.Errorf("%d completions, want %d", n, tc.told)
			}
			r.wantRest()
		})
	}
}

func TestAReadWaitsForItsEngineAndStartsWhenItConnects(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	h := r.track(e, o, 1, 0)
	r.read(h, record.Run{N: 4})
	r.run(sec(10), time.Second)
	r.wantSaid(h, "")
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(sec(11)) // loads
	r.step(sec(12)) // starts, and is through where nothing takes time
	r.wantSaid(h, "done")
	r.step(sec(13))
	if c := r.k.Counters(); c.ReadsWaited != 1 {
		t.Errorf("%d reads waited, want 1", c.ReadsWaited)
	}
	r.wantRest()
}

func TestMoreReadsThanTheMachineHoldsWaitTheirTurn(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	var hs []record.Handle
	for i := range 200 { // the machine holds 64
		hs = append(hs, r.track(e, o, uint32(i), 0))
	}
	r.run(sec(1), 500*time.Millisecond)
	for _, h := range hs {
		r.read(h, record.Run{N: 1})
	}
	r.run(sec(2), 10*time.Millisecond)
	for _, h := range hs {
		r.wantSaid(h, "done")
	}
	r.wantRest()
}

// C29 from the reading side: an end of the lease between heartbeats is caught by the fence.
func TestADataReadUnderAnotherUseOfTheSlotIsStaleAndReleased(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(2), time.Second)
	o.rows[1].Fence = o.base + 1
	r.read(h, record.Run{N: 1})
	r.run(sec(4), time.Second)
	r.wantSaid(h, "failed(1)")
	if n := o.count("release"); n != 1 {
		t.Errorf("%d releases, want 1: other ranks may still hold it", n)
	}
	r.wantRest()
}

// C78 with a peer of ours.
func TestAHandOverLongerThanTheLeaseGivesAFailedLoadUnlessItWasTrackedEarly(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	early := r.track(e, o, 1, 0)
	r.run(sec(30), time.Second)
	o.rows[2].Fence = o.base + 1 // nobody renewed slot 2: expired and granted again
	copy(o.kv, make([]byte, len(o.kv)))
	r.run(sec(77), time.Second)
	late := r.track(e, o, 2, 0)
	r.read(late, record.Run{N: 1})
	r.read(early, record.Run{Local: 1, N: 1})
	r.run(sec(80), time.Second)
	r.wantSaid(late, "failed(1)") // shows C78.1
	r.wantSaid(early, "done")     // shows C78.2
}

func TestUntrackDuringAReadCancelsItAndTheBlocksComeBackWhenTheTransferHasEnded(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(2), time.Second)
	r.d.HoldReads(true)
	r.read(h, record.Run{N: 1})
	r.run(sec(4), time.Second)
	r.k.Untrack(h, r.now)
	r.run(sec(40), time.Second)
	r.wantSaid(h, "failed(5)+held")
	if n := o.count("release"); n != 1 { // shows C38.2
		t.Errorf("%d releases, want 1 at once", n)
	}
	if g := r.k.Gauges(); g.BlocksHeld != 1 || g.Tracked != 1 {
		t.Errorf("%d blocks held, %d slots taken; want 1, 1", g.BlocksHeld, g.Tracked)
	}
	r.d.HoldReads(false)
	r.run(sec(42), time.Second)
	r.wantSaid(h, "failed(5)+held back") // shows C38.1, C44.1
	r.wantRest()
}

func TestUntrackEndsAReadThatWaitsOrIsHalfSaid(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	waits, half := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.read(waits, record.Run{N: 1})
	r.k.ReadPart(&record.Read{Track: half, Part: 0, Parts: 2, N: 1}, []record.Run{{N: 1}}, r.now)
	r.k.Untrack(waits, r.now)
	r.k.Untrack(half, r.now)
	r.step(sec(1))
	r.wantSaid(waits, "failed(5)")
	r.wantSaid(half, "failed(5)")
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(4), time.Second)
	if n := len(o.ids("release", false)); n != 2 {
		t.Errorf("%d released, want 2", n)
	}
	r.wantRest()
}

func TestHandlesThatHaveEndedChangeNothing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(2), time.Second)
	r.k.Untrack(h, r.now)
	r.run(sec(3), time.Second)
	again := r.track(e, o, 2, 0) // the same slot, its next use
	if again.Slot() != h.Slot() {
		r.next = append(r.next, again.Slot()) // the free list gave another one
	}
	before := r.k.Counters().StaleHandles
	r.k.Untrack(h, r.now)
	r.read(h, record.Run{N: 1})
	r.k.Untrack(0, r.now)
	r.k.Untrack(record.NewHandle(5000, 0), r.now)
	r.k.Track(o.req(0, e, 9, 0, r.now), []byte("x"), nil, r.now)
	r.run(sec(5), time.Second)
	if n := r.k.Counters().StaleHandles - before; n != 5 {
		t.Errorf("%d stale handles counted, want 5", n)
	}
	r.wantSaid(again, "")
	r.wantSaid(h, "")
}

func TestNobodyHearsOfALeaseAfterItsUntrack(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(2), time.Second)
	r.full = true
	o.rows[1].Fence = o.base + 1
	r.run(sec(9), time.Second)
	r.k.Untrack(h, r.now)
	r.full = false
	r.run(sec(11), time.Second)
	r.wantSaid(h, "")
	r.wantRest()
}

func TestARefusedEventStaysInItsSlotAndLeavesOnce(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.full = true
	r.run(sec(2), time.Second)
	r.read(a, record.Run{N: 1})
	o.rows[2].Fence = o.base + 1
	r.run(sec(12), time.Second)
	if len(r.events) != 0 {
		t.Fatalf("%d events", len(r.events))
	}
	if g := r.k.Gauges(); g.Events != 3 || g.Tracked != 2 {
		t.Errorf("%d hold events, %d slots taken; want the engine and both requests, 2", g.Events, g.Tracked)
	}
	r.full = false
	r.run(sec(14), time.Second)
	r.wantEngine(e, "up")
	r.wantSaid(a, "done")
	r.wantSaid(b, "gone")
	r.k.Untrack(b, r.now)
	r.run(sec(16), time.Second)
	r.wantRest()
}

func TestATrackingSlotOutOfUsesIsRetired(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks = 1 })
	o := r.owner("P", false)
	e := r.connect(o)
	r.uses[0] = record.None - 2
	for range 2 {
		h := r.track(e, o, 1, 0)
		if h>>32 == 0 {
			t.Fatalf("handle %#x is none", h)
		}
		r.k.Untrack(h, r.now)
		r.run(r.now.Add(time.Second), 100*time.Millisecond)
	}
	if free := record.TakeFree(&r.control.TrackFree); free != record.None {
		t.Errorf("slot %d is given out for a use that no handle can name", free)
	}
	if n := r.k.Counters().Retired; n != 1 {
		t.Errorf("%d retired, want 1", n)
	}
	r.wantRest()
}
