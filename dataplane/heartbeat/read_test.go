package heartbeat

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
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
			r.wantSaid(h, "done")
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
	r.wantSaid(late, "failed(1)")
	r.wantSaid(early, "done")
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
	if n := o.count("release"); n != 1 {
		t.Errorf("%d releases, want 1 at once", n)
	}
	if g := r.k.Gauges(); g.BlocksHeld != 1 || g.Tracked != 1 {
		t.Errorf("%d blocks held, %d slots taken; want 1, 1", g.BlocksHeld, g.Tracked)
	}
	r.d.HoldReads(false)
	r.run(sec(42), time.Second)
	r.wantSaid(h, "failed(5)+held back")
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

func TestStockCompletionsRideOnTheReadUnlessTheIdHasSeveralUsers(t *testing.T) {
	for _, tc := range []struct {
		name     string
		users    int
		wait     time.Duration // between the reads
		attached uint64
	}{
		{"one user: with the READ", 1, 0, 1},
		{"two users at once: bare, after the last", 2, 0, 0},
		{"two users, one after the other: with the READ of the last", 2, 2 * time.Second, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", true)
			e := r.connect(o)
			var hs []record.Handle
			for range tc.users {
				hs = append(hs, r.trackStock(e, "x"))
			}
			r.run(sec(2), time.Second)
			for _, h := range hs {
				r.read(h, record.Run{N: 1})
				r.run(r.now.Add(tc.wait), time.Second)
			}
			r.run(r.now.Add(2*time.Second), time.Second)
			for _, h := range hs {
				r.wantSaid(h, "done")
			}
			if n := o.count("done"); n != 1 {
				t.Errorf("%d completions, want 1", n)
			}
			if c := r.k.Counters(); c.Attached != tc.attached {
				t.Errorf("%d attached, want %d", c.Attached, tc.attached)
			}
			r.wantRest()
		})
	}
}

func TestACompletionThatRodeOnAFailedReadIsSentBareAndOneThatMayStillLeaveIsNot(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(r *rig, h record.Handle)
		want string
		bare int
	}{
		{"the read failed", func(r *rig, h record.Handle) {
			r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
			r.read(h, record.Run{N: 1})
		}, "failed(3)+held back", 1},
		{"untracked while it was in flight: it leaves when the READ ends", func(r *rig, h record.Handle) {
			r.d.HoldReads(true)
			r.read(h, record.Run{N: 1})
			r.run(sec(4), time.Second)
			r.k.Untrack(h, r.now)
			r.step(sec(5))
			r.d.HoldReads(false)
		}, "failed(5)+held back", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", true)
			h := r.trackStock(r.connect(o), "x")
			r.run(sec(3), time.Second)
			tc.do(r, h)
			r.run(sec(60), time.Second)
			r.wantSaid(h, tc.want)
			if n := o.count("done"); n != tc.bare {
				t.Errorf("%d completions, want %d", n, tc.bare)
			}
			r.wantRest()
		})
	}
}

func TestARequestThatJoinsAStockIdWhoseCompletionIsUnderWayLosesItsLease(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	a := r.trackStock(e, "x")
	r.run(sec(2), time.Second)
	r.d.HoldReads(true)
	r.read(a, record.Run{N: 1})
	r.run(sec(3), time.Second)
	b := r.trackStock(e, "x")
	r.d.HoldReads(false)
	r.run(sec(5), time.Second)
	r.wantSaid(a, "done")
	r.wantSaid(b, "gone")
	r.read(b, record.Run{N: 1})
	r.run(sec(7), time.Second)
	r.wantSaid(b, "gone failed(2)")
	if n := o.count("done"); n != 1 {
		t.Errorf("%d completions, want 1", n)
	}
	if n := r.k.Counters().LateUsers; n != 1 {
		t.Errorf("%d late users counted, want 1", n)
	}
	r.wantRest()
}

func TestAStaleReadEndsTheLeaseForAllWhoShareItAndTheLastOneReleasesIt(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 1, 0)
	r.run(sec(3), time.Second) // no row read is in flight
	o.rows[1].Fence = o.base + 1
	r.read(a, record.Run{N: 1})
	r.step(sec(4))
	r.wantSaid(a, "failed(1)")
	r.wantSaid(b, "gone")
	if n := o.count("release"); n != 0 {
		t.Errorf("%d releases while a request is left", n)
	}
	r.k.Untrack(b, r.now)
	r.run(sec(6), time.Second)
	if n := o.count("release"); n != 1 {
		t.Errorf("%d releases, want 1", n)
	}
	r.wantRest()
}

func TestAReleaseThatFindsNoRoomIsSentLaterOverTheSameConnection(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(3), time.Second)
	r.d.FailNext(loopback.OpSend, transport.ErrFull)
	r.k.Untrack(h, r.now)
	r.step(sec(3.1))
	if c := r.k.Counters(); c.SendFailed != 1 || o.count("release") != 0 {
		t.Errorf("%d sends failed, %d releases; want 1, 0", c.SendFailed, o.count("release"))
	}
	r.run(sec(4.1), 100*time.Millisecond)
	if n := o.count("release"); n != 1 {
		t.Errorf("%d releases, want 1", n)
	}
	r.wantEngine(e, "up")
	r.wantRest()
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

// L = 30: extension 20, interval 5, hand-over 10, margin 2.51.
func TestTheTimeGuardOfStockPeers(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(r *rig, o *owner, e uint64) record.Handle
		want string
	}{
		{"read at 8 in an unbroken chain", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(8), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"read right after connecting, 17 after arrival, without a heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 15*time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"the same 17.6 after arrival: past 30 - 10 - 2.51", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 15600*time.Millisecond)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"first heartbeat 19 after arrival", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 18*time.Second)
			r.run(sec(3), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"first heartbeat 21 after arrival", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 20*time.Second)
			r.run(sec(3), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"17 s without a step", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.step(sec(19))
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"18 s without a step: two heartbeats 17.5 or more apart", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.step(sec(20))
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"a heartbeat that the transport had no room for", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(4), time.Second)
			r.d.FailNext(loopback.OpSend, transport.ErrFull)
			r.run(sec(8), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"a reset and a reconnect since the first heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			r.run(sec(9), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"read asked for while the connection is down", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			for r.k.EngineState(e) != Broken {
				r.step(r.now.Add(100 * time.Millisecond))
			}
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"tracked after the reset", func(r *rig, o *owner, e uint64) record.Handle {
			r.trackStock(e, "y")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			r.run(sec(9), time.Second)
			h := r.trackStock(e, "x")
			r.run(sec(15), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		// C27
		{"the read ends 18 after the last heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.d.HoldReads(true)
			r.read(h, record.Run{N: 1})
			r.step(sec(2.1))
			r.d.HoldReads(false)
			r.step(sec(20.5))
			return h
		}, "failed(2)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", true)
			e := r.connect(o)
			h := tc.do(r, o, e)
			r.run(r.now.Add(3*time.Second), time.Second)
			r.wantSaid(h, tc.want)
		})
	}
}

// late tracks a stock request that the owner's answer brought some time ago, in the step that connects.
func (r *rig) late(engine uint64, id string, ago time.Duration) record.Handle {
	h := r.slot()
	r.k.Track(&record.TrackReq{Track: h, Engine: engine, SaidNs: uint64(r.now.Add(-ago))}, []byte(id), nil, r.now)
	return h
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

func TestDrainTellsOwnersWhatWillNeverBeReadAndThatWeLeave(t *testing.T) {
	r := newRig(t, nil)
	o, s, never := r.owner("P", false), r.owner("S", true), r.owner("N", false)
	e, es, en := r.connect(o), r.connect(s), r.add(never)
	reading, waits := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	stock, far := r.trackStock(es, "x"), r.track(en, never, 3, 0)
	r.run(sec(3), time.Second)
	r.d.HoldReads(true)
	r.read(reading, record.Run{N: 1})
	r.read(far, record.Run{N: 1})
	r.run(sec(4), time.Second)
	if n := r.k.Drain(r.now); n != 3 {
		t.Errorf("%d given up, want 3: all but the one that reads", n)
	}
	r.run(sec(6), time.Second)
	if n := r.k.DrainLeft(); n != 2 {
		t.Errorf("%d left, want the read and the message to the engine that never connected", n)
	}
	r.d.HoldReads(false)
	r.run(sec(9), time.Second)
	r.wantSaid(reading, "done")
	r.wantSaid(waits, "gone")
	r.wantSaid(stock, "gone")
	r.wantSaid(far, "failed(6)")
	var got []string
	for _, m := range append(append(o.heard, s.heard...), never.heard...) {
		if m.what != "renew" && m.what != "HB" {
			got = append(got, m.what)
		}
	}
	if diff := cmp.Diff([]string{"release", "leaving", "complete", "done"}, got); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// C35
func TestARejectIsToldWhenTheEngineConnectsAndGivenUpWhenTheLeaseIsLongOver(t *testing.T) {
	for _, tc := range []struct {
		name    string
		connect float64
		want    []string
		late    uint64
	}{
		{"connected at 1.5: told within 2 s of 1", 1.5, []string{"1"}, 0},
		{"connected at 100: told all the same", 100, []string{"1"}, 0},
		{"never: given up after four durations", 1e9, nil, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.add(o)
			r.step(sec(1))
			r.k.Reject(o.req(0, e, 1, 0, r.now), []byte("p-1"), r.now)
			for r.now < sec(130) {
				r.step(r.now.Add(500 * time.Millisecond))
				if r.now == sec(tc.connect) {
					must(t, r.k.LoadHandshake(e, 0, o.handshake()))
				}
			}
			if diff := cmp.Diff(tc.want, o.ids("release", false)); diff != "" {
				t.Errorf("released (-want +got):\n%s", diff)
			}
			for _, m := range o.heard {
				if m.what == "release" && m.at.Sub(sec(tc.connect)) > 1500*time.Millisecond {
					t.Errorf("told at %v", m.at)
				}
			}
			if c := r.k.Counters(); c.OwedLate != tc.late || c.OwedDropped != 0 {
				t.Errorf("%d given up late, %d for room; want %d, 0", c.OwedLate, c.OwedDropped, tc.late)
			}
			r.wantRest()
		})
	}
}

func TestMessagesForDeadEnginesAreBoundedAndTheOldestIsGivenUp(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks, c.Owed = 16, 8 })
	o := r.owner("P", false)
	e := r.add(o)
	for i := range 40 {
		r.k.Untrack(r.track(e, o, uint32(i), 0), r.now)
		r.step(r.now.Add(10 * time.Millisecond))
	}
	if g, c := r.k.Gauges(), r.k.Counters(); g.Owed != 24 || c.OwedDropped != 16 {
		t.Errorf("%d owed, %d given up; want 24 (16 + 8), 16", g.Owed, c.OwedDropped)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	ids := o.ids("release", false)
	if len(ids) != 24 || ids[0] != "16" || ids[23] != "39" {
		t.Errorf("released %v, want 16..39", ids)
	}
	r.wantRest()
}
