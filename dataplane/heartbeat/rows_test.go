package heartbeat

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// C29, C39
func TestARowThatShowsAnotherUseEndsTheHeartbeatsAndIsSaidOnce(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	var hs []record.Handle
	for i := range 100 {
		hs = append(hs, r.track(e, o, uint32(i), 0))
	}
	r.run(sec(5), time.Second)
	for i := range 100 {
		o.rows[i].Fence = o.base + 1
	}
	r.run(sec(12), time.Second)
	beats := r.k.Counters().Beats
	r.run(sec(60), time.Second)
	for _, h := range hs {
		r.wantSaid(h, "gone")
	}
	for i, ev := range r.events {
		if ev.Kind == record.EvLeaseGone && r.times[i] > sec(12) { // shows C39.1
			t.Errorf("gone said at %v, want by 12: one interval and a step", r.times[i].Sub(sec(0)))
		}
	}
	if n := r.k.Counters().Beats - beats; n != 0 { // shows C29.2
		t.Errorf("%d heartbeats for leases that are gone", n)
	}
	r.read(hs[0], record.Run{N: 1})
	for _, h := range hs[1:] {
		r.k.Untrack(h, r.now)
	}
	posts := r.reads.Counters.DataPosts
	r.run(sec(62), time.Second)
	r.wantSaid(hs[0], "gone failed(1)")
	if n := r.reads.Counters.DataPosts - posts; n != 0 { // shows C29.1
		t.Errorf("%d reads posted for a lease that is gone", n)
	}
	r.wantRest()
}

func TestRowsAreReadWithTheFirstHeartbeatAndThenOnceAnInterval(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	for i := range 10 {
		r.track(e, o, uint32(i), 0)
	}
	r.run(sec(0.2), 100*time.Millisecond)
	if c := r.k.Counters(); c.Rows != 10 || c.Beats != 10 {
		t.Errorf("%d rows and %d heartbeats, want 10 and 10", c.Rows, c.Beats)
	}
	r.run(sec(59), 100*time.Millisecond)
	if c := r.k.Counters(); c.Rows != 120 || c.Renewals == 0 {
		t.Errorf("%d rows in 59 s, want 120; %d renewals seen", c.Rows, c.Renewals)
	}
}

func TestRowReadsAreBoundedInAStepAndTheRestFollows(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks, c.RowsStepMax = 4096, 32 })
	o := r.owner("P", false)
	e := r.connect(o)
	for i := range 300 {
		r.track(e, o, uint32(i), 0)
	}
	r.step(sec(0.01))
	most := uint64(0)
	for r.now < sec(1) {
		before := r.k.Counters().Rows
		r.step(r.now.Add(10 * time.Millisecond))
		most = max(most, r.k.Counters().Rows-before)
	}
	if c := r.k.Counters(); most != 32 || c.Rows != 300 || c.Beats != 300 {
		t.Errorf("at most %d rows a step, %d in all, %d heartbeats; want 32, 300, 300", most, c.Rows, c.Beats)
	}
}

// L = 30 at P: extension 20, drift 0.01. The certain end hangs on our own clock only.
func TestTheCertainEndIsTheLastLookThatDidNotShowTheRenewalPlusTheExtension(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.step(sec(0.1)) // connects
	r.step(sec(0.2)) // row shows 0; heartbeat
	m := r.k.requests[h.Slot()].remote
	rm := &r.k.remotes.all[m]
	if got, want := r.k.certainEnd(rm), sec(0).Add(20*time.Second); got != want {
		t.Errorf("before any renewal certain until %v, want said + 30 - 10", got.Sub(sec(0)))
	}
	r.run(sec(9.2), 500*time.Millisecond) // by now the next row has shown the first heartbeat
	if got, want := r.k.certainEnd(rm), sec(0.2).Add(20*time.Second-10*time.Millisecond); got != want {
		t.Errorf("certain until %v, want %v", got.Sub(sec(0)), want.Sub(sec(0)))
	}
	if c := r.k.Counters(); c.Renewals != 1 {
		t.Errorf("%d renewals, want 1", c.Renewals)
	}
}

// An owner with shorter leases than ours that never shows a renewal is not certain for as long as our own would be.
func TestTheFirstTermIsTheOwnersWhoeverTracks(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	o.l, o.deaf = 12*time.Second, true
	e := r.add(o)
	h := r.track(e, o, 1, 0) // its duration is not known yet
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(10), 100*time.Millisecond)
	r.wantSaid(h, "risk")
	for i, ev := range r.events {
		if left := time.Duration(ev.Value0); ev.Kind == record.EvAtRisk && (left > 0 || r.times[i] < sec(4)) {
			t.Errorf("said at %v with %v left: the first term was certain until 12 - 10", r.times[i].Sub(sec(0)), left)
		}
	}
}

func TestACountOfAnotherGenerationIsNoRenewal(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	o.deaf = true
	e := r.connect(o)
	r.track(e, o, 1, 3)
	o.rows[1].Fence = o.base + 3 // use 2 ended, use 3 not yet processed there
	for i := range 40 {
		o.rows[1].GenBeats = uint64(i)<<32 | 2
		r.step(r.now.Add(time.Second))
	}
	if c := r.k.Counters(); c.Renewals != 0 || c.Gone != 0 {
		t.Errorf("%d renewals, %d gone; want 0, 0", c.Renewals, c.Gone)
	}
}

func TestTwoHeartbeatsWithoutAMoveOfTheRowAreARiskSaidOnceAnEpisode(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(6), 500*time.Millisecond) // two heartbeats applied
	o.deaf = true
	r.run(sec(9), 500*time.Millisecond)
	r.wantSaid(h, "")
	r.run(sec(40), 500*time.Millisecond)
	r.wantSaid(h, "risk")
	for i, ev := range r.events {
		if ev.Kind == record.EvAtRisk {
			if left := time.Duration(ev.Value0); r.times[i] > sec(21) || left < 3*time.Second || left > 16*time.Second {
				t.Errorf("said at %v with %v left", r.times[i].Sub(sec(0)), left)
			}
		}
	}
	o.deaf = false
	r.run(sec(52), 500*time.Millisecond)
	r.wantSaid(h, "risk")
	o.deaf = true
	r.run(sec(80), 500*time.Millisecond)
	r.wantSaid(h, "risk risk")
}

func TestAnOwnerThatDoesNotAnswerItsRowsIsARiskToo(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(6), 500*time.Millisecond)
	r.hub.Stop("P")
	r.run(sec(30), 500*time.Millisecond)
	r.wantSaid(h, "risk")
}

func TestAnOwnerOfWhomARowIsLateIsAskedForOneMoreInARound(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.RowTimeout = time.Second })
	o := r.owner("P", false)
	other := r.owner("Q", false)
	e, f := r.connect(o), r.connect(other)
	first := r.track(e, o, 0, 0)
	r.run(sec(4), 100*time.Millisecond)
	r.hub.Stop("P")
	r.run(sec(5.5), 100*time.Millisecond) // the row of the second round is read, and will be late
	r.k.Untrack(first, r.now)
	r.run(sec(5.6), 100*time.Millisecond)
	r.track(f, other, 0, 0) // in its place, so that the late row says nothing of the connection
	r.run(sec(7), 100*time.Millisecond)
	if n := r.reads.Counters.RowTimeouts; n != 1 || r.k.View(e).State != Connected {
		t.Fatalf("%d rows are late, %v; want the one, and the engine connected", n, r.k.View(e).State)
	}
	for slot := range uint32(20) {
		r.track(e, o, 1+slot, 0)
	}
	before := r.k.Counters()
	r.run(sec(11), 100*time.Millisecond) // their first round
	if n := r.k.Counters().RowsFailed - before.RowsFailed; n != 1 {
		t.Errorf("%d rows of 20 requests failed, want one: the others are not tried", n)
	}
}

// More requests than rows may be open to one peer: those whose rows find no room are told as well.
func TestAnOwnerThatDoesNotAnswerIsARiskForAllItsRequests(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.RowsPeer = 4 })
	o := r.owner("P", false)
	e := r.connect(o)
	var all []record.Handle
	for slot := range uint32(20) {
		all = append(all, r.track(e, o, slot, 0))
	}
	r.run(sec(13), 100*time.Millisecond)
	for _, h := range all {
		r.wantSaid(h, "")
	}
	r.hub.Stop("P")
	r.run(sec(40), 100*time.Millisecond)
	for _, h := range all {
		r.wantSaid(h, "risk")
	}
}

// Steps that are few for the rows of an interval: the next round goes on where this one stands.
func TestMoreRowsThanTheStepsOfAnIntervalReadAreAllReadInTurn(t *testing.T) {
	r := newRig(t, func(c *Config) { c.RowsStepMax = 2 })
	o := r.owner("P", false)
	e := r.connect(o)
	for slot := range uint32(40) {
		r.track(e, o, slot, 0)
	}
	r.run(sec(40), time.Second)
	read := 0
	for i := range r.k.remotes.all {
		if r.k.remotes.all[i].row.counted {
			read++
		}
	}
	if read != 40 {
		t.Errorf("the rows of %d of 40 requests were read in eight intervals", read)
	}
}

func TestTheResultOfARowThatIsNoLongerTrackedChangesNothing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a := r.track(e, o, 1, 0)
	r.step(sec(0.1))
	r.d.HoldReads(true)
	r.step(sec(0.2))
	r.k.Untrack(a, r.now)
	r.step(sec(0.3))
	b := r.track(e, o, 2, 0) // takes the place of the remote
	r.step(sec(0.4))
	o.rows[1].Fence = o.base + 1 // the row that is still to land says gone
	r.d.HoldReads(false)
	r.run(sec(4), 500*time.Millisecond)
	r.wantSaid(b, "")
}

func TestAFailedRowReadIsHealedBesideItsQuarantine(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(4), time.Second)
	r.d.FailNext(loopback.OpRead, transport.ErrPeer)
	r.run(sec(9), time.Second) // it broke at 6 or so, and the quarantine is longer than a lease
	if c := r.k.Counters(); c.HealWaits != 0 || c.Heals != 1 || c.Abandons != 1 {
		t.Errorf("%d waits, %d heals, %d abandoned; want 0, 1, 1", c.HealWaits, c.Heals, c.Abandons)
	}
	r.run(sec(12), time.Second)
	r.wantEngine(e, "up down up")
}

func TestHealingWaitsForWhatIsUnderWayUntilHealWait(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	held := r.track(e, o, 1, 0)
	r.run(sec(4), time.Second)
	r.d.HoldReads(true)
	r.read(held, record.Run{N: 1})
	r.d.FailNext(loopback.OpSend, transport.ErrPeer)
	r.run(sec(9), time.Second) // it broke at 5 or so; a quarter of the extension is 5
	r.wantEngine(e, "up down")
	if c := r.k.Counters(); c.HealWaits == 0 || c.Heals != 0 || c.Abandons != 0 {
		t.Errorf("%d waits, %d heals, %d abandoned by 9; want some, 0, 0", c.HealWaits, c.Heals, c.Abandons)
	}
	r.run(sec(12), time.Second)
	if c := r.k.Counters(); c.Heals != 1 || c.Abandons != 1 {
		t.Errorf("%d heals, %d abandoned, want one of each", c.Heals, c.Abandons)
	}
	r.d.HoldReads(false)
	r.run(sec(20), time.Second)
	r.wantEngine(e, "up down up")
}

func TestASlotOutsideThePeersBoardIsGone(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, boardRows, 0)
	r.run(sec(2), time.Second)
	r.wantSaid(h, "gone")
	if n := r.k.Counters().Rows; n != 0 {
		t.Errorf("%d rows read", n)
	}
}

func TestAnEngineThatComesBackAsAnotherOneLosesItsRequestsAndNothingIsReadForThem(t *testing.T) {
	for _, stock := range []bool{false, true} {
		t.Run(fmt.Sprintf("stock %v", stock), func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", stock)
			e := r.connect(o)
			track := func(slot uint32) record.Handle {
				if stock {
					return r.trackStock(e, fmt.Sprint("id", slot))
				}
				return r.track(e, o, slot, 0)
			}
			a, b, held := track(1), track(2), track(3)
			r.run(sec(6), time.Second)
			r.d.HoldReads(true)
			r.read(held, record.Run{N: 1})
			r.run(sec(7), time.Second)
			o.reboot()
			must(t, r.k.LoadHandshake(e, 0, o.handshake()))
			r.run(sec(9), time.Second)
			r.wantSaid(a, "gone")
			r.wantSaid(held, "failed(6)+held")
			r.wantEngine(e, "up down up")
			if g := r.k.Gauges(); g.Connected != 1 || g.Parked != 1 { // shows C49.1
				t.Errorf("%d connected, %d parked; want 1, 1: the old agent is not dropped under a READ", g.Connected, g.Parked)
			}
			r.d.HoldReads(false)
			r.run(sec(45), time.Second) // the READ from the dead one fails and its blocks wait one duration
			r.wantSaid(held, "failed(6)+held back")
			r.wantEngine(e, "up down up")
			if g := r.k.Gauges(); g.Parked != 0 { // shows C49.2
				t.Errorf("%d parked when nothing is open", g.Parked)
			}
			posts := r.reads.Counters.DataPosts
			r.read(a, record.Run{N: 1})
			r.k.Untrack(b, r.now)
			c := track(2)
			r.run(sec(47), time.Second)
			r.wantSaid(a, "gone failed(6)")
			if n := r.reads.Counters.DataPosts - posts; n != 0 { // shows S25.1
				t.Errorf("%d reads posted for a request of the engine before", n)
			}
			for _, m := range o.heard {
				if m.what == "release" || m.what == "done" { // shows C46.3
					t.Errorf("the new engine hears %s %v of the old one's leases", m.what, m.ids)
				}
			}
			r.read(c, record.Run{N: 1})
			r.run(sec(49), time.Second)
			r.wantSaid(c, "done") // shows S26.1
			r.wantRest()
		})
	}
}

func TestARequestOfABootWhoseHandshakeIsStillToComeWaitsForIt(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	old := r.track(e, o, 1, 0)
	r.run(sec(2), time.Second)
	o.reboot()
	early := r.track(e, o, 1, 0) // parameters of the new boot come before its handshake
	r.read(early, record.Run{N: 1})
	r.run(sec(4), time.Second)
	r.wantSaid(early, "")
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(9), time.Second)
	r.wantSaid(early, "done")
	r.wantSaid(old, "gone")
	// One of a boot that never comes again is given up when its lease is over.
	o.epoch = 5
	never := r.track(e, o, 4, 0)
	r.run(sec(38), time.Second)
	r.wantSaid(never, "")
	r.run(sec(41), time.Second)
	r.wantSaid(never, "gone")
	r.k.Untrack(never, r.now)
	r.k.Untrack(old, r.now)
	r.run(sec(43), time.Second)
	r.wantRest()
}

func TestTheSameHandshakeAgainChangesNothing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(2), time.Second)
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(20), time.Second)
	r.wantSaid(h, "")
	r.wantEngine(e, "up")
	if c := r.k.Counters(); c.Loads != 1 || c.HandshakesSame != 1 {
		t.Errorf("%d loads, %d same; want 1, 1", c.Loads, c.HandshakesSame)
	}
}

func TestARemovedEngineLosesItsRequestsAndItsPlaceIsUsedAgain(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines = 1 })
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(2), time.Second)
	if again, err := r.k.AddEngine(EngineDesc{ID: "P"}); again != e || err != nil {
		t.Errorf("the same id gives %#x, %v; want %#x", again, err, e)
	}
	if _, err := r.k.AddEngine(EngineDesc{ID: "Q"}); err == nil {
		t.Error("a second engine in a table of one")
	}
	r.read(b)
	must(t, r.k.RemoveEngine(e))
	if err := r.k.RemoveEngine(e); err == nil {
		t.Error("removed twice")
	}
	r.run(sec(4), time.Second)
	r.wantSaid(a, "gone")
	r.wantSaid(b, "done")
	if o.count("complete") != 1 {
		t.Error("what was owed was not sent before the end")
	}
	r.read(a, record.Run{N: 1})
	late := r.track(e, o, 3, 0)
	r.run(sec(6), time.Second)
	r.wantSaid(a, "gone failed(6)")
	r.wantSaid(late, "gone")
	r.k.Untrack(late, r.now)
	q := r.owner("Q", false)
	eq := r.connect(q)
	h := r.track(eq, q, 1, 0)
	r.run(sec(9), time.Second)
	if q.count("renew") == 0 || eq == e {
		t.Error("the place is not used again")
	}
	r.k.Untrack(h, r.now)
	r.run(sec(12), time.Second)
	r.wantRest()
}
