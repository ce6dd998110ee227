package heartbeat

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

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
			if n := o.count("done"); n != 1 { // shows S07.1
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

// The completion leaves with the first READ, and the owner may reuse the blocks while the second one is under way.
func TestNothingIsReadUnderAStockIdWhoseCompletionRidesOnAnotherRead(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	a := r.trackStock(e, "x")
	r.run(sec(2), time.Second)
	r.d.HoldReads(true)
	r.read(a, record.Run{N: 1})
	r.run(sec(3), time.Second)
	b := r.trackStock(e, "x")
	r.read(b, record.Run{N: 1, Local: 4})
	r.run(sec(4), time.Second)
	r.wantSaid(b, "failed(2)")
	r.d.HoldReads(false)
	r.run(sec(5), time.Second)
	r.wantSaid(a, "done")
	if n := o.count("done"); n != 1 {
		t.Errorf("%d completions, want 1", n)
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
			if diff := cmp.Diff(tc.want, o.ids("release", false)); diff != "" { // shows C35.1
				t.Errorf("released (-want +got):\n%s", diff)
			}
			for _, m := range o.heard {
				if m.what == "release" && m.at.Sub(sec(tc.connect)) > 1500*time.Millisecond { // shows C35.2, S22.1
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
