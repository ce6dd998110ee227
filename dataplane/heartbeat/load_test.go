package heartbeat

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// C12
func TestACutConnectionIsHealedBeforeTheNextHeartbeatIsMissed(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(6), time.Second)
	before := o.count("renew")
	r.hub.Cut("D", "P")
	r.run(sec(15), time.Second)
	if n := o.count("renew") - before; n < 1 { // shows C12.2
		t.Errorf("%d heartbeats between the cut at 6 and 15, want at least 1", n)
	}
	c := r.k.Counters()
	if c.Disconnects < 1 || c.Heals != 1 { // shows C12.3
		t.Errorf("%d disconnects, %d heals; want at least 1, and 1", c.Disconnects, c.Heals)
	}
	r.wantEngine(e, "up down up") // shows C12.1
	r.wantSaid(h, "")
	r.run(sec(60), time.Second)
	if c := r.k.Counters(); c.Heals != 1 {
		t.Errorf("%d heals by 60, want still 1", c.Heals)
	}
}

// Nor does one that this side cannot send speak against the peer: its connection stays, and the reads over it.
func TestASendThatFindsNoRoomIsTriedAgainWithinTheInterval(t *testing.T) {
	for _, refused := range []error{transport.ErrFull, transport.ErrInvalid} {
		t.Run(refused.Error(), func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			r.track(e, o, 1, 0)
			r.run(sec(1), 100*time.Millisecond)
			before := o.count("renew")
			for range 3 {
				r.d.FailNext(loopback.OpSend, refused)
			}
			r.run(sec(7.5), 100*time.Millisecond)
			c := r.k.Counters()
			if c.SendFailed != 3 || c.Disconnects != 0 {
				t.Errorf("%d sends failed, %d disconnects; want 3, 0", c.SendFailed, c.Disconnects)
			}
			if n := o.count("renew") - before; n != 1 {
				t.Errorf("%d heartbeats by 7.5, want the one that was due at 5", n)
			}
			r.wantEngine(e, "up")
		})
	}
}

func TestHeartbeatsThatFindNoRoomAreTriedAgainAtLeastTwiceAnInterval(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(4), 100*time.Millisecond)
	for range 10 {
		r.d.FailNext(loopback.OpSend, transport.ErrFull)
	}
	var waits []time.Duration
	const step = 12500 * time.Microsecond // an interval is 5 s: a 16th of it, then twice as much, at most its half
	for last, failed := r.now, r.k.Counters().SendFailed; len(waits) < 10 && r.now < sec(60); {
		r.step(r.now.Add(step))
		if n := r.k.Counters().SendFailed; n > failed {
			waits = append(waits, r.now.Sub(last))
			last, failed = r.now, n
		}
	}
	ms := time.Millisecond
	want := []time.Duration{312500 * time.Microsecond, 625 * ms, 1250 * ms, 2500 * ms, 2500 * ms, 2500 * ms, 2500 * ms, 2500 * ms, 2500 * ms}
	if diff := cmp.Diff(want, waits[1:]); diff != "" {
		t.Errorf("waits after the first time (-want +got):\n%s", diff)
	}
	before := o.count("renew")
	if r.step(r.now.Add(2500 * ms)); o.count("renew") != before+1 {
		t.Errorf("%d heartbeats once there is room, want one", o.count("renew")-before)
	}
}

// C45, and a bounded number of sends to it.
func TestADeadEngineFailsReadsAtOnceAndCostsAFewLooks(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h, other := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(10), time.Second)
	r.hub.Kill("P")
	r.run(sec(20), time.Second)
	r.read(h, record.Run{N: 1})
	r.run(sec(26), time.Second)
	r.wantSaid(h, "failed(3)") // shows C45.1
	before := r.k.Counters()
	r.run(sec(20+600), time.Second)
	after := r.k.Counters()
	if n := after.Loads - before.Loads; n > 25 {
		t.Errorf("%d loads in ten minutes, want at most 25", n)
	}
	if n := after.SendFailed - before.SendFailed; n > 25 { // shows C45.2
		t.Errorf("%d failed sends in ten minutes, want at most 25", n)
	}
	r.wantSaid(other, "gone") // shows C48.1
	r.k.Untrack(other, r.now)
	r.run(r.now.Add(10*time.Minute), time.Second)
	r.wantRest()
	if g := r.k.Gauges(); g.Broken != 1 {
		t.Errorf("engine states %+v, want one broken", g)
	}
	quiet := r.k.Counters().Loads
	r.run(r.now.Add(10*time.Minute), time.Second)
	if n := r.k.Counters().Loads - quiet; n != 0 {
		t.Errorf("%d loads of an engine that nobody needs", n)
	}
}

// No lease of a dead owner is waited for longer than it can live; one that was tracked later has its own first term.
func TestWhatIsTrackedAtAnEngineThatIsNotHeardIsGoneWhenItsLeaseMustBeOver(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	early := r.track(e, o, 1, 0)
	r.run(sec(10), time.Second)
	r.hub.Kill("P") // found out by the heartbeat that is due at 10
	r.run(sec(30), time.Second)
	late := r.track(e, o, 2, 0)
	r.run(sec(47), 250*time.Millisecond)
	r.wantSaid(early, "")
	r.run(sec(55), 250*time.Millisecond) // 10 + 30 s and a quarter, and the next look
	r.wantSaid(early, "gone")
	r.wantSaid(late, "")
	r.run(sec(67), 250*time.Millisecond)
	r.wantSaid(late, "")
	r.read(late, record.Run{N: 1})
	r.run(sec(180), 250*time.Millisecond)
	if got := r.said(late); got != "failed(6)" && got != "failed(3)" {
		t.Errorf("the later request's read: %q, want one failure", got)
	}
}

// A dead owner's blob loads as well as a living one's, and where nothing comes back a transport may say nothing for minutes: the
// bound is the lease's and not the transport's.
func TestAnEngineThatFailedAndIsSilentSinceIsNotWaitedForLongerThanItsLeaseCanStand(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	early := r.track(e, o, 1, 0)
	r.run(sec(9), time.Second)
	r.hub.Stop("P")
	r.hub.Cut("D", "P") // loaded again within an interval; from then on sends succeed and reads pend
	r.run(sec(30), 250*time.Millisecond)
	if v := r.k.View(e); v.State != Connected {
		t.Fatalf("the engine is %v, want connected", v.State)
	}
	late := r.track(e, o, 2, 0)
	r.run(sec(46), 250*time.Millisecond)
	r.wantSaid(early, "risk")
	r.run(sec(56), 250*time.Millisecond) // 10 + 30 s and a quarter, and the next look
	r.wantSaid(early, "risk gone")
	r.wantSaid(late, "risk")
	r.k.Untrack(early, r.now)
	r.run(sec(66), 250*time.Millisecond)
	r.wantSaid(late, "risk")
	r.run(sec(76), 250*time.Millisecond)
	r.wantSaid(late, "risk gone")
	r.k.Untrack(late, r.now)
	r.run(sec(90), 250*time.Millisecond)
	last := r.track(e, o, 3, 0) // nothing was tracked meanwhile
	r.run(sec(126), 250*time.Millisecond)
	r.wantSaid(last, "risk")
	r.run(sec(137), 250*time.Millisecond)
	r.wantSaid(last, "risk gone")
}

func TestAnEngineThatComesBackInTimeLosesNothing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(10), time.Second)
	r.hub.Cut("D", "P")
	r.run(sec(120), 250*time.Millisecond) // healed within an interval, long before the bound; then the bound passes
	r.wantSaid(h, "")
	if c := r.k.Counters(); c.Heals == 0 || c.Lost != 0 {
		t.Errorf("%d heals and %d lost, want at least one and none", c.Heals, c.Lost)
	}
}

// C52
func TestAFailedLoadIsTriedAgainWithWaitsCappedAtTheInterval(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	var tries []clock.Instant
	loads := uint64(0)
	for range 5 { // down until 8 or so
		r.d.FailNext(loopback.OpLoad, errors.New("nobody there"))
	}
	for r.now < sec(8) {
		r.step(r.now.Add(50 * time.Millisecond))
		if c := r.k.Counters(); c.LoadsFailed > loads {
			loads = c.LoadsFailed
			tries = append(tries, r.now)
		}
	}
	for i := 2; i < len(tries); i++ {
		if a, b := tries[i-1].Sub(tries[i-2]), tries[i].Sub(tries[i-1]); b < a || b > 5100*time.Millisecond { // shows C52.2
			t.Errorf("waits of %v and then %v, want growing ones up to 5 s", a, b)
		}
	}
	if len(tries) != 4 {
		t.Fatalf("%d tries in 8 s, want 4: at 0, 0.6, 1.9, 4.4", len(tries))
	}
	r.run(sec(9.5), 50*time.Millisecond)
	if o.count("renew") != 0 {
		t.Error("a heartbeat before the fifth failure")
	}
	r.run(sec(14.6), 50*time.Millisecond)
	if o.count("renew") != 1 { // shows C52.3
		t.Errorf("%d heartbeats within an interval of the fifth failure, want 1", o.count("renew"))
	}
}

// C53
func TestAnEngineThatNeverAnswersDelaysNoOther(t *testing.T) {
	r := newRig(t, nil)
	dead, live := r.owner("P1", false), r.owner("P2", false)
	e1, e2 := r.add(dead), r.connect(live)
	a, b := r.track(e1, dead, 1, 0), r.track(e2, live, 1, 0)
	r.read(a, record.Run{N: 1})
	r.run(sec(50), time.Second)
	if n := live.count("renew"); n < 10 || n > 11 { // shows C53.1
		t.Errorf("%d heartbeats to the live one in 50 s, want 10 or 11", n)
	}
	r.read(b, record.Run{N: 1})
	r.run(sec(52), time.Second)
	r.wantSaid(b, "done") // shows C53.2
	// C43: the one that waits ends when no lease can stand: a duration and the longest hand-over after it was tracked.
	r.wantSaid(a, "failed(6)") // shows C53.3
	for i, ev := range r.events {
		if ev.Handle == uint64(a) && (r.times[i] < sec(40) || r.times[i] > sec(46)) {
			t.Errorf("it ended at %v, want 40 to 46", r.times[i].Sub(sec(0)))
		}
	}
	r.run(sec(300), time.Second)
	r.wantRest()
}

func TestAtMostOneBlobIsLoadedAStep(t *testing.T) {
	r := newRig(t, nil)
	for i := range 5 {
		r.connect(r.owner(fmt.Sprint("P", i), false))
	}
	for i := range 5 {
		r.step(sec(float64(i+1) / 100))
		if c := r.k.Counters(); c.Loads != uint64(i+1) {
			t.Errorf("%d loads after %d steps", c.Loads, i+1)
		}
	}
}

func TestALoadThatIsPutOffIsNoFailure(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	for range 3 {
		r.d.FailNext(loopback.OpLoad, transport.ErrFull)
	}
	e := r.connect(o)
	for range 5 {
		r.step(r.now.Add(2 * time.Millisecond))
	}
	if got := r.k.View(e).State; got != Connected {
		t.Errorf("state %v after five steps, three of which were put off, want Connected", got)
	}
	if c := r.k.Counters(); c.LoadsPutOff != 3 || c.LoadsFailed != 0 || c.Loads != 1 {
		t.Errorf("%d put off, %d failed of %d, want 3 and 0 of 1", c.LoadsPutOff, c.LoadsFailed, c.Loads)
	}
}
