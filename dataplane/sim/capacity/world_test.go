package capacity

import (
	"testing"
	"time"
)

const second = time.Second

// looks is what an end may come later than its time: settle, a tick of the wheel, and two steps of 20 ms.
const looks = 50*time.Millisecond + 10*time.Millisecond + 2*20*time.Millisecond

// One P, one D: the first request takes D's only slot for 100 s, the second waits behind it, 1,600 tokens in 100 blocks. It is
// computed from 1.6 s to 3.2 s.
func twoRequests() []string { return []string{line(0, 1600, 10000), line(0, 1600, 100)} }

func TestADThatDiesGivesItsBlocksBackWithinTheLongerOfFirstTermAndExtension(t *testing.T) {
	for _, tc := range []struct {
		name   string
		set    Setting
		dies   time.Duration
		wired  bool
		lo, hi time.Duration // of the reclaim
	}{
		{name: "after the grant, before much else: what is left of the first term", set: leased(30 * second), dies: 4 * second, lo: 29200 * time.Millisecond, hi: 29200*time.Millisecond + looks},
		{name: "later: from the last heartbeat an extension, which is at most an interval ago", set: leased(30 * second), dies: 60 * second, lo: 15 * second, hi: 20*second + looks},
		{name: "the same with a lease of 6 s", set: leased(6 * second), dies: 60 * second, lo: 3 * second, hi: 4*second + looks},
		{name: "and of 120 s", set: leased(120 * second), dies: 60 * second, lo: 63200 * time.Millisecond, hi: 80*second + looks},
		{name: "a fixed time-out of 480 s holds for 480 s", set: fixedFor(480 * second), dies: 60 * second, lo: 423200 * time.Millisecond, hi: 423200*time.Millisecond + looks},
		{name: "and one of 30 s for 30 s", set: fixedFor(30 * second), dies: 4 * second, lo: 29200 * time.Millisecond, hi: 29200*time.Millisecond + looks},
		{name: "a death wire tells it after its grace", set: leased(30 * second), dies: 60 * second, wired: true, lo: wireGrace, hi: wireGrace + 2*20*time.Millisecond},
		{name: "but not of a fixed one, which its reader has never named (L12)", set: fixedFor(480 * second), dies: 60 * second, wired: true, lo: 423200 * time.Millisecond, hi: 423200*time.Millisecond + looks},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := small()
			c.Restart = 1000 * second
			c.Tries = 1 // nothing is computed anew
			w := play(t, c, tc.set, twoRequests()...)
			w.until(t, tc.dies)
			if n, at := w.ds[0].all.N, w.ps[0].held; n != 2 || at != 1 {
				t.Fatalf("%d requests at D, %d leases, want 2 and 1", n, at)
			}
			w.kill(w.ds[0].engine, tc.wired)
			r := w.rest(t)
			if r.Reclaim.N != 1 {
				t.Fatalf("%d leases reclaimed, want 1", r.Reclaim.N)
			}
			within(t, "reclaim", r.Reclaim.Max, Span(tc.lo), Span(tc.hi))
			within(t, "wasted block-seconds", r.WastedBlockSeconds, 100*tc.lo.Seconds()-0.001, 100*tc.hi.Seconds())
			if r.LostDCrash != 2 || r.Lost != 2 || r.GivenUp != 2 || r.CrashesD != 1 {
				t.Errorf("%d lost, %d of them with D, %d given up, want 2", r.Lost, r.LostDCrash, r.GivenUp)
			}
		})
	}
}

func TestARequestThatWaitsLongerThanAFixedTimeOutIsComputedAnew(t *testing.T) {
	for _, tc := range []struct {
		set   Setting
		lost  uint64
		first time.Duration // of the second request: its read, by hand
	}{
		{set: leased(6 * second), first: 102 * second},
		{set: leased(120 * second), first: 102 * second},
		{set: fixedFor(480 * second), first: 102 * second},
		// Told at 3.2 + 30 s less the margin of half an interval, computed anew until 32.3, and so on until D is free at 101.7.
		{set: fixedFor(30 * second), lost: 3, first: 102 * second},
	} {
		t.Run(tc.set.Name(), func(t *testing.T) {
			r := play(t, small(), tc.set, twoRequests()...).rest(t)
			if r.Finished != 2 || r.LostLease != tc.lost || r.Lost != tc.lost {
				t.Errorf("%d finished, %d lost for their lease, %d in all, want 2, %d and as many", r.Finished, r.LostLease, r.Lost, tc.lost)
			}
			within(t, "first token", r.First.Max, Span(tc.first-second), Span(tc.first+second))
			if tc.set.Fixed != (r.BeatMessages == 0) {
				t.Errorf("%d heartbeats", r.BeatMessages)
			}
		})
	}
}

func TestADThatStandsStillLongerThanItsLeaseIsRefused(t *testing.T) {
	for _, tc := range []struct {
		set  Setting
		lost uint64
	}{{leased(6 * second), 1}, {leased(30 * second), 1}, {leased(60 * second), 0}} {
		t.Run(tc.set.Name(), func(t *testing.T) {
			w := play(t, small(), tc.set, line(0, 1600, 1000), line(0, 1600, 100))
			w.until(t, 5*second)
			w.ds[0].stalledTill = w.now.Add(35 * second) // longer than an extension of 20 s, and shorter than one of 40 s
			r := w.rest(t)
			if r.LostLease != tc.lost || r.StaleReads+r.ToldGone != tc.lost || r.Finished != 2 {
				t.Errorf("%d lost, %d stale reads, %d told, %d finished; want %d lost and 2 finished", r.LostLease, r.StaleReads, r.ToldGone, r.Finished, tc.lost)
			}
			if r.Expired != tc.lost || r.Completed != 2 {
				t.Errorf("%d leases expired, %d completed", r.Expired, r.Completed)
			}
		})
	}
}

func TestAFullCacheMakesRequestsWait(t *testing.T) {
	c := small()
	c.CacheBlocks = 150 // one request of 100 blocks
	r := play(t, c, leased(30*second), line(0, 1600, 1), line(0, 1600, 1), line(0, 1600, 1)).rest(t)
	if r.Refused != 2 || r.RefusedWait.N != 2 || r.Finished != 3 {
		t.Errorf("%d refused, %d waited, %d finished, want 2, 2 and 3", r.Refused, r.RefusedWait.N, r.Finished)
	}
	// From the grant until the completion has come back: hand-over, track, read of 200 MiB in 8.4 ms, fence, completion, each with a step.
	within(t, "wait", r.RefusedWait.Max, Span(13*time.Millisecond), Span(120*time.Millisecond))
}

func TestARequestThatNoCacheHoldsIsTurnedAway(t *testing.T) {
	c := small()
	c.CacheBlocks = 100
	r := play(t, c, leased(30*second), line(0, 1601, 1), line(0, 1600, 1)).rest(t)
	if r.TurnedAway != 1 || r.Finished != 1 || r.Requests != 2 {
		t.Errorf("%d turned away, %d finished of %d", r.TurnedAway, r.Finished, r.Requests)
	}
}

func TestWhatAPHeldIsLostWithIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		wired bool
		hi    time.Duration // until the reader has computed anew
	}{
		{"and told by the death wire", true, second},
		{"and nobody is told: a connection that gets nothing through is lost after 20 s, and then a lease and a quarter must pass", false, 62 * second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := small()
			c.P, c.Restart, c.Router = 2, 10000*second, RoundRobin
			w := play(t, c, leased(30*second), line(0, 1600, 10000), line(0, 1600, 100), line(0, 1600, 100))
			w.until(t, 10*second)
			w.kill(w.ps[1].engine, tc.wired) // held the second request, which waits at D
			w.until(t, 10*second+tc.hi+2*second)
			if w.lostBy[lostOwner] != 1 || w.ps[0].held != 2 {
				t.Errorf("%d attempts lost with their P, %d leases at the other, want 1 and 2", w.lostBy[lostOwner], w.ps[0].held)
			}
			r := w.rest(t)
			if r.Finished != 3 || r.Lost != 1 || r.WithProcess != 1 || r.CrashesP != 1 {
				t.Errorf("%d finished, %d lost, %d leases ended with their P, want 3, 1, 1", r.Finished, r.Lost, r.WithProcess)
			}
		})
	}
}

func TestEnginesComeBackAndServeAgain(t *testing.T) {
	for _, tc := range []struct {
		name string
		kill func(*world) *engine
	}{
		{"a P", func(w *world) *engine { return w.ps[0].engine }},
		{"a D", func(w *world) *engine { return w.ds[0].engine }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := small()
			c.Restart = 60 * second
			w := play(t, c, leased(30*second), twoRequests()...)
			w.until(t, 10*second)
			e := tc.kill(w)
			w.kill(e, false)
			w.at(w.now.Add(c.Restart), happening{kind: evRestart, engine: e.index})
			r := w.rest(t)
			if r.Finished != 2 || r.GivenUp != 0 {
				t.Errorf("%d finished, %d given up: %+v", r.Finished, r.GivenUp, r)
			}
		})
	}
}

func TestTimesAreThoseOfTheSpeeds(t *testing.T) {
	c := small()
	c.LinkRate, c.BlockBytes = 100<<20, 1<<20 // 100 blocks take a second
	r := play(t, c, leased(30*second), line(0, 1600, 500)).rest(t)
	// 1.6 s of prefill, 5 ms of hand-over, a step, 1 s on the wire, a step.
	within(t, "first token", r.First.Max, Span(2605*time.Millisecond), Span(2650*time.Millisecond))
	within(t, "the whole", r.Whole.Max-r.First.Max, Span(5*second), Span(5*second))
	// The lease from 1.6 s until its completion has been applied.
	within(t, "block-seconds", r.BlockSeconds, 100*1.0, 100*1.08)
	if r.Grants != 1 || r.Completed != 1 || r.WastedBlockSeconds != 0 {
		t.Errorf("%d grants, %d completed, %v wasted", r.Grants, r.Completed, r.WastedBlockSeconds)
	}
}
