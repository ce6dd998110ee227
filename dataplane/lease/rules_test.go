package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

func TestL1AHeartbeatNeverShortensALease(t *testing.T) {
	for _, native := range []bool{false, true} {
		t.Run(fmt.Sprintf("native=%v", native), func(t *testing.T) {
			r := newRig(t, 4)
			a := r.grant("a")
			long := r.grant("long", ttl(100*time.Second))
			beat := func(h record.Handle, id string) {
				if native {
					r.want(r.t.Renew(r.entry(h), engineD, r.now), Applied)
				} else {
					r.want(r.beat(id), Applied)
				}
			}
			r.run(at(5)) // now + 20 is earlier than the first term
			beat(a, "a")
			beat(long, "long")
			r.run(at(29.99))
			r.wantHeld(a, long)
			r.run(at(30.2))
			r.wantEnded(record.FreedExpired, a)
			r.run(at(99.99))
			r.wantHeld(long)
			r.run(at(100.2))
			r.wantEnded(record.FreedExpired, long)
			r.wantEmpty()
		})
	}
}

func TestL1AHeartbeatExtendsToNowPlusExtension(t *testing.T) {
	for _, native := range []bool{false, true} {
		t.Run(fmt.Sprintf("native=%v", native), func(t *testing.T) {
			r := newRig(t, 4)
			a := r.grant("a")
			r.run(at(25))
			if native {
				r.want(r.t.Renew(r.entry(a), engineD, r.now), Applied)
			} else {
				r.want(r.beat("a"), Applied)
			}
			r.run(at(44.99))
			r.wantHeld(a)
			r.run(at(45.2))
			r.wantEnded(record.FreedExpired, a)
		})
	}
}

func TestL2AFreedLeaseNeverComesBack(t *testing.T) {
	r := newRig(t, 4)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 1), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.want(r.beat("a"), Late)
	r.want(r.done("a", "D.0", 1), Late)
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Late)
	r.want(r.t.Complete(r.entry(a), engineD, 1, r.now), Late)
	r.want(r.t.Release(r.entry(a), engineD, r.now), Late)
	r.wantEmpty()
	r.wantCount("late heartbeats", r.c.LateRenew, 2)
	r.wantCount("late completions", r.c.LateDone, 2)
	r.wantCount("late releases", r.c.LateRelease, 1)
	if r.t.hot[a.Slot()] != (hot{}) {
		t.Errorf("late messages left %+v in the slot", r.t.hot[a.Slot()])
	}
}

func TestL2LateMessagesAreToldFromUnknownOnesForTheLast65536Ids(t *testing.T) {
	r := newRig(t, 2)
	for i := range gravesMax + 10 {
		r.grant(fmt.Sprint("id-", i))
		r.want(r.done(fmt.Sprint("id-", i), "D.0", 1), Ended)
		r.drain()
		r.ends = r.ends[:0]
	}
	r.want(r.beat("id-9"), Unknown)
	r.want(r.beat("id-10"), Late)
	r.want(r.beat(fmt.Sprint("id-", gravesMax+9)), Late)
	r.want(r.beat("never"), Unknown)
	r.wantCount("tags remembered", uint64(r.t.graves.index.used), gravesMax)
}

func TestL2AnIdFreedTwiceIsForgottenWithItsLastEnd(t *testing.T) {
	g := newGraves()
	tag := func(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 }
	g.add(tag(5))
	g.add(tag(5))
	for i := range uint64(gravesMax - 2) {
		g.add(tag(1000 + i))
	}
	g.add(tag(6)) // pushes the first 5 out
	if !g.has(tag(5)) {
		t.Error("the id is forgotten although its second end is among the last")
	}
	g.add(tag(7))
	if g.has(tag(5)) {
		t.Error("the id is remembered although both ends are too old")
	}
}

func TestL3EveryGrantEndsInExactlyOneEvent(t *testing.T) {
	r := newRig(t, 16)
	done := r.grant("done")
	r.done("done", "D", 1)
	released := r.grant("released")
	r.want(r.t.Release(r.entry(released), engineD, r.now), Ended)
	revoked := r.grant("revoked")
	r.t.Renew(r.entry(revoked), engineD, r.now)
	r.t.Revoke(revoked, r.now)
	cancelled := r.grant("cancelled")
	r.t.Cancel(cancelled, r.now)
	expired := r.grant("expired")
	twice := r.grant("twice")
	duplicate := r.grant("twice")
	for range 2 { // a second word about an end changes nothing
		r.done("done", "D", 1)
		r.t.Revoke(revoked, r.now)
		r.t.Cancel(cancelled, r.now)
		r.t.Release(r.entry(released), engineD, r.now)
	}
	r.run(at(40))
	r.wantEnded(record.FreedCompleted, done)
	r.wantEnded(record.FreedReleased, released)
	r.wantEnded(record.FreedRevoked, revoked, cancelled)
	r.wantEnded(record.FreedExpired, expired, twice)
	r.wantEnded(record.FreedDuplicate, duplicate)
	if len(r.ends) != 7 {
		t.Errorf("%d ends for 7 grants", len(r.ends))
	}
	for _, e := range r.ends {
		if e.User != uint64(e.Handle)+1 || e.Blocks != 8 {
			t.Errorf("end %+v does not carry what the grant gave", e)
		}
		if want := map[record.Handle]time.Duration{expired: 30 * time.Second}[e.Handle]; e.Held < want || e.Held > want+200*time.Millisecond {
			if e.Handle != twice {
				t.Errorf("lease %#x was held %v, want about %v", uint64(e.Handle), e.Held, want)
			}
		}
	}
	r.wantEmpty()
}

func TestL3AnEndWaitsInItsSlotUntilItIsTold(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.done("a", "D", 1)
	if got := r.mem.Slots[a.Slot()].State; got != record.State(a.Use(), record.Ended) {
		t.Fatalf("state %#x before the event, want ended", got)
	}
	for range 3 {
		if e, ok := r.t.NextEnd(); !ok || e.Handle != a {
			t.Fatalf("NextEnd = %+v, %v: it must wait", e, ok)
		}
	}
	if r.mem.Control.LeaseFree != record.None {
		t.Fatal("the slot went back before its end was told")
	}
	r.t.PopEnd()
	if got := r.mem.Slots[a.Slot()].State; got != record.State(a.Use()+1, record.Free) {
		t.Fatalf("state %#x after the event, want free for the next use", got)
	}
	if got := record.TakeFree(&r.mem.Control.LeaseFree); got != a.Slot() {
		t.Fatalf("free list gives %#x, want the slot", got)
	}
	r.t.PopEnd() // nothing waits: nothing happens
}

func TestL4ExpiryComesInTime(t *testing.T) {
	// No backlog, no linger: deadline + jitter + settle + tick + two steps. The model test turns all of it at random.
	r := newRig(t, 300, func(c *Config) { c.Jitter = 0 })
	var hs []record.Handle
	for i := range 300 {
		hs = append(hs, r.grant(fmt.Sprint(i)))
	}
	r.run(at(30))
	r.wantHeld(hs...)
	r.run(at(30 + 2.5 + 0.05 + 0.01 + 2*0.01 + 0.002))
	r.wantEnded(record.FreedExpired, hs...)
}

func TestL4MoreEndsThanASweepMayMakeTakeMoreSteps(t *testing.T) {
	r := newRig(t, 1000)
	for i := range 1000 {
		r.grant(fmt.Sprint(i))
	}
	r.run(at(30.02))
	r.run(at(30.02 + 0.05))
	if got := len(r.ends); got > 256 {
		t.Fatalf("%d ends in one step, want at most 256", got)
	}
	r.run(at(30.02 + 0.05 + 4*0.01 + 0.02))
	if got := len(r.ends); got != 1000 {
		t.Fatalf("%d of 1000 ended after four more steps", got)
	}
	if r.c.SweepCut == 0 {
		t.Error("the bound was reached and not counted")
	}
}

func TestL5CompletionNeedsAllReadersOfOneEngine(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	e := r.entry(a)
	r.want(r.t.Complete(e, engineD.at(0), 2, r.now), Applied)
	r.want(r.t.Complete(e, engineE.at(0), 3, r.now), Applied) // side by side, never added
	r.want(r.t.Complete(e, engineE.at(1), 3, r.now), Applied)
	r.want(r.t.Complete(e, engineD.at(0), 2, r.now), Repeated)
	r.want(r.t.Complete(e, Reader{Engine: 0xD, Epoch: 2, Rank: 1}, 2, r.now), Applied) // another boot of D
	r.wantHeld(a)
	r.want(r.t.Complete(e, engineD.at(1), 2, r.now), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.wantEmpty()
}

func TestL5StockReadersAreDistinctAgentsUpToTheLargestSuffix(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 3), Applied)
	r.want(r.done("a", "D.0", 3), Repeated)
	r.want(r.done("a", "D.1", 2), Applied) // 3 was seen
	r.wantHeld(a)
	r.want(r.done("a", "D.2", 2), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.wantEmpty()
}

func TestL5ALargerCountSeenLaterCounts(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 2), Applied)
	r.want(r.done("a", "D.0", 3), Repeated)
	r.want(r.done("a", "D.1", 2), Applied)
	r.wantHeld(a)
}

func TestL5NoReadersIsNoCompletion(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 0), Malformed)
	r.want(r.t.Complete(r.entry(a), engineD, 0, r.now), Malformed)
	r.wantHeld(a)
	r.wantCount("malformed", r.c.Malformed, 2)
}

func TestL5AFullPoolHoldsTheLease(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.Readers = 2 })
	a, b := r.grant("a"), r.grant("b")
	r.want(r.done("a", "D.0", 4), Applied)
	r.want(r.done("a", "D.1", 4), Applied)
	r.want(r.done("a", "D.2", 4), Full)
	r.want(r.done("b", "D.0", 2), Full)
	r.want(r.done("b", "D.1", 2), Full) // not remembered, so not added
	r.wantHeld(a, b)
	r.wantCount("readers not remembered", r.c.ReadersFull, 3)
	r.run(at(31))
	r.wantEnded(record.FreedExpired, a, b)
	r.wantCount("readers that had reported", r.c.ReadersCut, 2)
	r.wantEmpty()
	c := r.grant("c") // the pool's places came back
	r.done("c", "D.0", 2)
	r.want(r.done("c", "D.1", 2), Ended)
	r.wantEnded(record.FreedCompleted, c)
}

func TestL5OneLeaseCannotTakeTheWholePool(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.Readers = 10 * chainMax })
	a := r.grant("a")
	for i := range 4 * chainMax {
		r.t.Complete(r.entry(a), engineD.at(uint32(i)), 65535, r.now)
	}
	r.wantHeld(a)
	if got := r.t.readers.used; got > chainMax+1 {
		t.Errorf("%d readers remembered for one lease, want at most %d", got, chainMax+1)
	}
}

func TestL6EarlyMessagesAreAppliedAtTheGrant(t *testing.T) {
	t.Run("a completion of an expected id frees in the step of its grant", func(t *testing.T) {
		r := newRig(t, 8)
		a := r.expect("a")
		r.want(r.done("a", "D.0", 2), Kept)
		r.want(r.done("a", "D.1", 2), Kept)
		if len(r.ended(a)) != 0 {
			t.Fatal("ended before its grant")
		}
		r.grantExpected(a, "a")
		r.wantEnded(record.FreedCompleted, a)
		r.wantEmpty()
	})
	t.Run("an incomplete set goes on after the grant", func(t *testing.T) {
		r := newRig(t, 8)
		a := r.expect("a")
		r.want(r.done("a", "D.0", 2), Kept)
		r.grantExpected(a, "a")
		r.wantHeld(a)
		r.want(r.done("a", "D.0", 2), Repeated)
		r.want(r.done("a", "D.1", 2), Ended)
	})
	t.Run("a heartbeat of an expected id counts from when it came", func(t *testing.T) {
		r := newRig(t, 8)
		a := r.expect("a")
		r.run(at(10))
		r.want(r.beat("a"), Kept)
		r.grantExpected(a, "a", ttl(5*time.Second))
		if beats := r.mem.Rows[a.Slot()].GenBeats >> 32; beats != 1 {
			t.Errorf("the row shows %d beats, want 1", beats)
		}
		r.run(at(29.99)) // 10 + 20, later than the grant's 15
		r.wantHeld(a)
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
	})
	t.Run("native messages with the right key are kept without an expectation", func(t *testing.T) {
		r := newRig(t, 8)
		next := Entry{Slot: 0, Generation: 0, Key: Key(r.secret, 0, 0)}
		r.want(r.t.Renew(next, engineD, r.now), Kept)
		r.run(at(12))
		r.want(r.t.Renew(next, engineD, r.now), Kept)
		a := r.grant("a", ttl(5*time.Second))
		r.run(at(31.99)) // 12 + 20
		r.wantHeld(a)
		r.run(at(32.2))
		r.wantEnded(record.FreedExpired, a)

		again := Entry{Slot: 0, Generation: 1, Key: Key(r.secret, 0, 1)}
		r.want(r.t.Complete(again, engineD, 1, r.now), Kept)
		r.never = uint32(len(r.mem.Slots))
		b := r.grant("b")
		if b != record.NewHandle(0, 1) {
			t.Fatalf("granted %#x, want slot 0, use 1", uint64(b))
		}
		r.wantEnded(record.FreedCompleted, b)

		third := Entry{Slot: 0, Generation: 2, Key: Key(r.secret, 0, 2)}
		r.want(r.t.Release(third, engineD, r.now), Kept)
		c := r.grant("c")
		r.wantEnded(record.FreedReleased, c)
		r.wantEmpty()
	})
	t.Run("an expectation under another slot hands over what it kept", func(t *testing.T) {
		r := newRig(t, 8)
		r.expect("a")
		r.want(r.done("a", "D.0", 2), Kept)
		a := r.grant("a") // the host forgot to name the expectation
		r.wantHeld(a)
		r.want(r.done("a", "D.1", 2), Ended)
		r.wantEnded(record.FreedCompleted, a)
		r.run(at(301))
		r.wantEmpty()
	})
	t.Run("what was kept does not pass to another id", func(t *testing.T) {
		r := newRig(t, 8)
		a := r.expect("a")
		r.want(r.done("a", "D.0", 1), Kept)
		r.grantExpected(a, "b")
		r.wantHeld(a)
		r.want(r.done("a", "D.0", 1), Unknown)
		r.want(r.done("b", "D.0", 1), Ended)
	})
}

func TestL6AnExpectationLapsesAndAGrantWinsTheRace(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.ExpectMax = 10 * time.Second })
	a, b, c := r.expect("a"), r.expect("b"), r.expect("c")
	r.done("a", "D.0", 1)
	r.t.Cancel(c, r.now)
	r.run(at(9.9))
	// The host has granted b, its record is on the way.
	state := &r.mem.Slots[b.Slot()].State
	*state = record.State(b.Use(), record.Granted)
	r.run(at(14))
	r.drain()
	if len(r.ends) != 1 || !r.ends[0].Lapsed || r.ends[0].Handle != a || r.ends[0].Reason != 0 {
		t.Fatalf("ends %+v, want one lapse of a", r.ends)
	}
	r.say(b, "b")
	r.wantHeld(b)
	if r.grantExpected(a, "a") {
		t.Error("the host could grant a lapsed expectation")
	}
	r.wantCount("lapsed", r.c.Lapsed, 1)
	r.wantCount("cancelled", r.c.Cancelled, 1)
	r.want(r.done("a", "D.0", 1), Unknown)
	r.done("b", "D.0", 1)
	r.drain()
	r.wantEmpty()
}

func TestL7TheTableTakesAsManyLeasesAsItHasSlotsAndNoMore(t *testing.T) {
	r := newRig(t, 4)
	for i := range 4 {
		r.grant(fmt.Sprint(i))
	}
	if _, ok := r.take(record.Granted); ok {
		t.Fatal("a fifth slot")
	}
	for _, h := range []record.Handle{0, record.NewHandle(4, 0), record.NewHandle(1<<30, 0), record.NewHandle(0, 0)} {
		before := *r.c
		r.say(h, "x")
		before.BadHandle++
		if *r.c != before {
			t.Errorf("a grant of %#x changed more than the count of bad handles", uint64(h))
		}
	}
	r.want(r.done("0", "D", 1), Ended)
	r.drain()
	if _, ok := r.take(record.Granted); !ok {
		t.Error("no slot after one came back")
	}
}

func TestL8TwoLooks(t *testing.T) {
	expiry := at(30)
	settle := 50 * time.Millisecond
	for _, tc := range []struct {
		name string
		beat clock.Instant
		want Outcome
	}{
		{"a heartbeat one step before expiry keeps the lease", expiry - clock.Instant(tick), Applied},
		{"a heartbeat after the first look keeps it, too", expiry + clock.Instant(2*tick), Applied},
		{"a heartbeat just before the second look keeps it", expiry + clock.Instant(settle), Applied},
		{"a heartbeat after the second look is late", expiry + clock.Instant(settle+4*tick), Late},
	} {
		for _, native := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, native=%v", tc.name, native), func(t *testing.T) {
				r := newRig(t, 4)
				a := r.grant("a")
				r.run(tc.beat)
				if native {
					r.want(r.t.Renew(r.entry(a), engineD, r.now), tc.want)
				} else {
					r.want(r.beat("a"), tc.want)
				}
				r.run(at(49))
				if tc.want == Late {
					r.wantEnded(record.FreedExpired, a)
					return
				}
				r.wantHeld(a)
				r.run(tc.beat.Add(20*time.Second + settle + 4*tick))
				r.wantEnded(record.FreedExpired, a)
			})
		}
	}
}

func TestL8AStallMakesTheWaitOneInterval(t *testing.T) {
	r := newRig(t, 4)
	a := r.grant("a")
	r.run(at(10))
	r.now = at(40) // the process stood still for 30 s
	r.step()
	r.run(at(40.5))
	r.wantHeld(a)
	r.now = at(44.5)
	r.step()
	r.now = at(44.9)
	r.step()
	r.wantHeld(a)
	r.now = at(45.1) // 5 s after the first look
	r.step()
	r.wantEnded(record.FreedExpired, a)
	r.wantCount("first looks after a gap", r.c.DueStalled, 1)
}

func TestL8AFurtherGapStartsNoNewWait(t *testing.T) {
	r := newRig(t, 4)
	a := r.grant("a")
	r.run(at(30.03)) // first look without a gap: settle is 50 ms
	r.now = at(60)
	r.step()
	r.wantEnded(record.FreedExpired, a)
}

func TestL8TheSecondLookWaitsForWhatHadArrivedAndForNothingLater(t *testing.T) {
	r := newRig(t, 4)
	a, b := r.grant("a"), r.grant("b")
	r.run(at(30.03))
	r.arrived, r.applied = 100, 40
	r.run(at(30.2)) // the second look falls in here and notes 100
	r.wantHeld(a, b)
	r.arrived, r.applied = 500, 99
	r.run(at(30.3))
	r.wantHeld(a, b)
	r.want(r.beat("b"), Applied) // it was among the 100
	r.arrived, r.applied = 900, 100
	r.run(at(30.32))
	r.wantEnded(record.FreedExpired, a)
	r.wantHeld(b)
	r.wantCount("saved between the looks", r.c.DueSaved, 1)
	r.arrived, r.applied = 0, 0
	r.run(at(50.2))
	r.wantHeld(b)
	r.run(at(50.5))
	r.wantEnded(record.FreedExpired, b)
}

func TestL9BlocksOfAStockReaderLinger(t *testing.T) {
	linger := func(c *Config) { c.StockLinger = 20 * time.Second }
	t.Run("a lease that nobody named does not linger", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
	})
	t.Run("one last renewed by a stock reader stays one extension longer and is counted", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(5))
		r.beat("a")
		r.run(at(49.9))
		r.wantHeld(a)
		if r.t.Lingering() != 1 || r.c.Lingered != 1 {
			t.Errorf("lingering %d, counted %d, want 1 and 1", r.t.Lingering(), r.c.Lingered)
		}
		r.run(at(50.2))
		r.wantEnded(record.FreedExpired, a)
		r.wantEmpty()
	})
	t.Run("one last renewed by ours does not", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(5))
		r.beat("a")
		r.run(at(6))
		r.t.Renew(r.entry(a), engineD, r.now)
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
	})
	t.Run("a late completion ends it, a late heartbeat holds it", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a, b := r.grant("a"), r.grant("b")
		r.run(at(5))
		r.beat("a")
		r.beat("b")
		r.run(at(40))
		r.want(r.done("a", "D.0", 1), Ended)
		r.want(r.beat("b"), Applied)
		r.wantEnded(record.FreedCompleted, a)
		r.run(at(79.9)) // 40 + 20 + 20
		r.wantHeld(b)
		r.wantCount("renewed while lingering", r.c.LingerHeld, 1)
		r.run(at(80.2))
		r.wantEnded(record.FreedExpired, b)
		r.wantEmpty()
	})
	t.Run("pressure takes it first", func(t *testing.T) {
		r := newRig(t, 4, linger)
		ours, stock := r.grant("ours", ttl(time.Minute)), r.grant("stock")
		r.t.Renew(r.entry(ours), engineD, r.now)
		r.run(at(5))
		r.beat("stock")
		r.run(at(35))
		if got := r.t.Pressure(1, r.now); got != 8 {
			t.Errorf("pressure freed %d blocks, want 8", got)
		}
		r.wantEnded(record.FreedRevoked, stock)
		r.wantHeld(ours)
	})
	t.Run("pressure leaves one that was renewed meanwhile", func(t *testing.T) {
		r := newRig(t, 4, linger)
		stock := r.grant("stock")
		r.run(at(5))
		r.beat("stock")
		r.run(at(35))
		r.beat("stock")
		if got := r.t.Pressure(1, r.now); got != 0 {
			t.Errorf("pressure freed %d blocks, want 0", got)
		}
		r.wantHeld(stock)
		r.run(at(74.9)) // 35 + 20 + 20
		r.wantHeld(stock)
		r.run(at(75.2))
		r.wantEnded(record.FreedExpired, stock)
	})
	t.Run("pressure takes one between its two looks", func(t *testing.T) {
		r := newRig(t, 4, linger)
		stock := r.grant("stock")
		r.run(at(5))
		r.beat("stock")
		r.run(at(50.03))
		r.wantHeld(stock)
		if got := r.t.Pressure(1, r.now); got != 8 {
			t.Errorf("pressure freed %d blocks, want 8", got)
		}
		r.wantEnded(record.FreedRevoked, stock)
		r.wantEmpty()
	})
}

func TestL10EveryEndRaisesTheFenceBeforeItIsSeen(t *testing.T) {
	ends := map[string]func(r *rig, h record.Handle){
		"completed": func(r *rig, h record.Handle) { r.done("a", "D", 1) },
		"released":  func(r *rig, h record.Handle) { r.t.Release(r.entry(h), engineD, r.now) },
		"cancelled": func(r *rig, h record.Handle) { r.t.Cancel(h, r.now) },
		"revoked": func(r *rig, h record.Handle) {
			r.t.Renew(r.entry(h), engineD, r.now)
			r.t.Revoke(h, r.now)
		},
		"expired":  func(r *rig, h record.Handle) { r.run(at(31)) },
		"closed":   func(r *rig, h record.Handle) { r.t.EndSome(record.FreedClosed, r.now) },
		"pressure": func(r *rig, h record.Handle) { r.t.Renew(r.entry(h), engineD, r.now); r.t.Pressure(1, r.now) },
		"gone": func(r *rig, h record.Handle) {
			r.t.Renew(r.entry(h), engineD, r.now)
			r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			for use := range uint32(3) { // the word is stored from base and use, never counted
				h := r.grant("a")
				r.wantFence(h, testBase+uint64(use))
				end(r, h)
				r.wantFence(h, testBase+uint64(use)+1)
				if len(r.ended(h)) != 1 {
					t.Fatal("not ended")
				}
				r.now, r.ends = 0, nil
				r.t.wheel.done = 0
			}
		})
	}
}

func TestL10ACancelledExpectationMovesTheRowToItsNextUse(t *testing.T) {
	r := newRig(t, 1)
	a := r.expect("a")
	r.t.Cancel(a, r.now)
	r.wantFence(a, testBase+1)
	b := r.grant("b")
	r.wantFence(b, testBase+1)
	if b.Use() != 1 {
		t.Errorf("use %d after a cancelled one, want 1", b.Use())
	}
}

func TestL10AGrantFillsTheRowForItsReaders(t *testing.T) {
	r := newRig(t, 1)
	h := r.mem.Header
	if h.Version != record.BoardVersion || h.Base != testBase || h.Epoch != testEpoch || h.DurationNs != 30e9 {
		t.Errorf("header %+v", *h)
	}
	r.wantFence(1<<32, testBase) // before the first grant: a read that comes early matches
	r.now = at(100)
	a := r.grant("a")
	row := &r.mem.Rows[a.Slot()]
	if row.DeadlineUs != 130e6 || row.GenBeats != 0 {
		t.Errorf("row %+v after the grant", *row)
	}
	r.now = at(105)
	r.beat("a")
	if row.DeadlineUs != 130e6 || row.GenBeats != 1<<32 {
		t.Errorf("row %+v after a heartbeat that moved nothing, want it counted", *row)
	}
	r.now = at(120)
	r.t.Renew(r.entry(a), engineD, r.now)
	if row.DeadlineUs != 140e6 || row.GenBeats != 2<<32 {
		t.Errorf("row %+v after a heartbeat that moved the deadline", *row)
	}
	r.t.Cancel(a, r.now)
	r.drain()
	b := r.grant("b")
	if row.GenBeats != 1 || b.Use() != 1 {
		t.Errorf("row %+v after the second grant, want generation 1 and no beats", *row)
	}
}

func TestL11ASlotIsGrantedAgainOnlyAfterItsEndWasTold(t *testing.T) {
	r := newRig(t, 1)
	a := r.grant("a")
	r.done("a", "D", 1)
	before := *r.c
	for _, use := range []uint32{0, 1} { // the end waits in the slot
		r.want(r.say(record.NewHandle(0, use), "b"), Misfit)
	}
	if r.c.Grants != before.Grants || r.c.BadHandle != before.BadHandle+2 {
		t.Errorf("counters %+v", *r.c)
	}
	r.wantEnded(record.FreedCompleted, a)
	r.grant("b")
}

func TestL11AGrantOfAUseThatEndedHereIsToldOnceMore(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.done("a", "D", 1)
	r.wantEnded(record.FreedCompleted, a)
	r.want(r.say(a, "a"), Late) // after a gap in the stream the host says it again
	r.wantCount("ended before", r.c.EndedBefore, 1)

	// A rank whose row is already past the use that it is told of, by the state of its slot for the first time.
	r.mem.Rows[1].Fence = testBase + 5
	b := record.NewHandle(1, 4)
	r.want(r.say(b, "b"), Ended)
	r.wantEnded(record.FreedExpired, b)
	r.wantFence(b, testBase+5)
	r.wantEmpty()
}

func TestL11ARankFarBehindTakesTheUseThatItIsTold(t *testing.T) {
	r := newRig(t, 2)
	r.want(r.t.Renew(Entry{Slot: 1, Generation: 0, Key: Key(r.secret, 1, 0)}, engineD, r.now), Kept)
	b := record.NewHandle(1, 7) // uses 0 to 6 never came here
	r.want(r.say(b, "b"), Applied)
	r.wantFence(b, testBase+7)
	if r.t.hot[1].who != 0 {
		t.Error("a message kept for use 0 was applied to use 7")
	}
	r.want(r.t.Complete(r.entry(b), engineD, 1, r.now), Ended)
	r.wantEnded(record.FreedCompleted, b)
	r.wantFence(b, testBase+8)
}

func TestL12WhoNamedALease(t *testing.T) {
	unchecked := func(r *rig, h record.Handle) bool { return r.mem.Slots[h.Slot()].Flags&record.Unchecked != 0 }
	native := func(r *rig, h record.Handle, d Reader) { r.want(r.t.Renew(r.entry(h), d, r.now), Applied) }
	for _, tc := range []struct {
		name          string
		checkedPeers  bool
		say           func(r *rig, h record.Handle)
		wantUnchecked bool
		wantRevoke    bool
		wantGone      bool
	}{
		{"nobody named it", false, func(r *rig, h record.Handle) {}, true, false, false},
		{"nobody named it, all peers check", true, func(r *rig, h record.Handle) {}, false, true, false},
		{"one engine of ours", false, func(r *rig, h record.Handle) { native(r, h, engineD) }, false, true, true},
		{"two engines of ours", false, func(r *rig, h record.Handle) { native(r, h, engineE); native(r, h, engineD) }, false, true, false},
		{"a stock one", false, func(r *rig, h record.Handle) { r.beat("a") }, true, false, false},
		{"a stock one, all peers should check", true, func(r *rig, h record.Handle) { r.beat("a") }, true, false, false},
		{"ours, then a stock one", false, func(r *rig, h record.Handle) { native(r, h, engineD); r.beat("a") }, true, false, false},
		{"a stock one, then ours", false, func(r *rig, h record.Handle) { r.beat("a"); native(r, h, engineD) }, true, false, false},
		{"ours, then a stock completion", false, func(r *rig, h record.Handle) {
			native(r, h, engineD)
			r.want(r.done("a", "X", 1), Refused)
		}, true, false, false},
		{"an incomplete stock completion, then ours", false, func(r *rig, h record.Handle) {
			r.done("a", "X", 2)
			native(r, h, engineD)
		}, true, false, false},
	} {
		for _, verb := range []string{"revoke", "pressure", "gone"} {
			t.Run(tc.name+", "+verb, func(t *testing.T) {
				r := newRig(t, 2, func(c *Config) { c.AllPeersCheck = tc.checkedPeers })
				a := r.grant("a")
				tc.say(r, a)
				if got := unchecked(r, a); got != tc.wantUnchecked {
					t.Fatalf("slot flag unchecked = %v, want %v", got, tc.wantUnchecked)
				}
				want, reason := tc.wantRevoke, uint16(record.FreedRevoked)
				switch verb {
				case "revoke":
					r.t.Revoke(a, r.now)
				case "pressure":
					r.t.Pressure(1, r.now)
				case "gone":
					want, reason = tc.wantGone, record.FreedReleased
					r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
				}
				if want {
					r.wantEnded(reason, a)
				} else {
					r.wantHeld(a)
					r.run(at(31))
					r.wantEnded(record.FreedExpired, a)
				}
				r.wantEmpty()
			})
		}
	}
}

func TestL12AReleaseByOneOfTwoEnginesOnlyTakesItsClaim(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.want(r.t.Release(r.entry(a), engineE, r.now), Refused)
	r.wantHeld(a)
	if got := r.t.EngineGone(engineE.Engine, engineE.Epoch, r.now); got != 0 {
		t.Errorf("%d leases ended with an engine that had given its claim up", got)
	}
	r.want(r.t.Complete(r.entry(a), engineD, 1, r.now), Ended)
}

func TestL12ARevokeIsCarriedOutWhenTheReaderTurnsOutToBeOurs(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Revoke(a, r.now)
	r.wantHeld(a)
	r.wantCount("revokes left waiting", r.c.RevokeWaits, 1)
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Ended)
	r.wantEnded(record.FreedRevoked, a)
}

func TestL12AWrongKeyNamesNothing(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	bad := r.entry(a)
	bad.Key++
	r.want(r.t.Renew(bad, engineD, r.now), BadKey)
	r.want(r.t.Complete(bad, engineD, 1, r.now), BadKey)
	r.want(r.t.Release(bad, engineD, r.now), BadKey)
	other := Entry{Slot: 1, Generation: 0, Key: r.entry(a).Key} // the key of another slot
	r.want(r.t.Renew(other, engineD, r.now), BadKey)
	next := Entry{Slot: 0, Generation: 1, Key: Key(r.secret, 0, 1)} // right key, a use that is not there yet
	r.want(r.t.Renew(next, engineD, r.now), Unknown)
	r.want(r.t.Renew(Entry{Slot: 2}, engineD, r.now), Unknown)
	r.want(r.t.Renew(Entry{Slot: 1 << 31}, engineD, r.now), Unknown)
	r.wantHeld(a)
	if r.mem.Slots[a.Slot()].Flags&record.Unchecked == 0 {
		t.Error("a message with a wrong key cleared unchecked")
	}
	r.wantCount("bad keys", r.c.BadKey, 4)
}

func TestL12StockPeersOffIgnoresThem(t *testing.T) {
	r := newRig(t, 2, func(c *Config) { c.StockPeers = false })
	a := r.grant("a")
	r.want(r.beat("a"), Ignored)
	r.want(r.done("a", "D", 1), Ignored)
	out := make([]Outcome, 1)
	r.t.RenewIDs([][]byte{[]byte("a")}, r.now, out)
	r.want(out[0], Ignored)
	r.want(r.t.TryID([]byte("a"), r.now), Ignored)
	r.wantHeld(a)
	r.wantCount("ignored", r.c.StockIgnored, 3)
}

func TestL12StockMessagesMayExtendButNotEndWhatANativeOneNamed(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.t.Renew(r.entry(a), engineD, r.now)
	r.want(r.done("a", "D", 1), Refused)
	r.run(at(25))
	r.want(r.beat("a"), Applied)
	r.run(at(44.9))
	r.wantHeld(a)
	r.wantCount("refused", r.c.StockEndRefused, 1)
}

func TestL12PressureTakesTheLongestWaitingFirst(t *testing.T) {
	r := newRig(t, 8, checkedPeers)
	var hs []record.Handle
	for i := range 6 {
		hs = append(hs, r.grant(fmt.Sprint(i)))
	}
	if got := r.t.Pressure(20, r.now); got != 24 {
		t.Errorf("pressure for 20 blocks freed %d, want three leases of 8", got)
	}
	r.wantEnded(record.FreedRevoked, hs[:3]...)
	r.wantHeld(hs[3:]...)
}

func TestL12PressurePastItsBoundGoesOnInTheNextSteps(t *testing.T) {
	r := newRig(t, 1000, checkedPeers)
	for i := range 1000 {
		r.grant(fmt.Sprint(i))
	}
	if got := r.t.Pressure(6000, r.now); got != 256*8 {
		t.Fatalf("pressure freed %d blocks in one step, want 256 leases", got)
	}
	r.run(at(0.1))
	if got := r.t.Held(); got != 250 {
		t.Errorf("%d leases left, want 250", got)
	}
	if r.c.PressureCut == 0 {
		t.Error("the bound was reached and not counted")
	}
}

func TestL12AGoneEngineIsWorkedOffInBoundedSteps(t *testing.T) {
	r := newRig(t, 1000)
	for i := range 1000 {
		h := r.grant(fmt.Sprint(i))
		r.t.Renew(r.entry(h), Reader{Engine: uint64(i % 2), Epoch: 1}, r.now)
	}
	if got := r.t.EngineGone(0, 1, r.now); got != 256 {
		t.Fatalf("%d ended in one step, want 256", got)
	}
	r.t.EngineGone(1, 2, r.now) // another boot: not these
	r.run(at(0.1))
	if got := r.t.Held(); got != 500 {
		t.Errorf("%d leases left, want the 500 of the other engine", got)
	}
	for range 2 * goneMax {
		r.t.EngineGone(9, 9, r.now)
	}
}

func TestL12FenceAllClosesEveryRowForEver(t *testing.T) {
	r := newRig(t, 3)
	a := r.grant("a")
	r.expect("b")
	r.t.FenceAll()
	if r.mem.Header.Flags&record.BoardClosed == 0 {
		t.Error("the board is not marked closed")
	}
	c := r.grant("c")
	r.wantEnded(record.FreedClosed, c)
	if left := r.t.EndSome(record.FreedClosed, r.now); left != 0 {
		t.Errorf("%d left", left)
	}
	r.wantEnded(record.FreedClosed, a)
	for s := range r.mem.Rows {
		if r.mem.Rows[s].Fence != record.FenceClosed {
			t.Errorf("row %d is open again", s)
		}
	}
	r.wantEmpty()
}

func TestL12AGrantAfterPoisonIsReportedPoisoned(t *testing.T) {
	r := newRig(t, 3)
	for i := range r.mem.Rows { // kvl_fence_all in C
		r.mem.Rows[i].Fence = record.FenceClosed
	}
	r.mem.Control.Poisoned = 1
	a := r.grant("a")
	r.wantEnded(record.FreedPoisoned, a)
}

func TestIdsOfEveryLengthAreToldApart(t *testing.T) {
	r := newRig(t, 40, func(c *Config) { c.LongIDs = 40 })
	hs := map[string]record.Handle{}
	for _, n := range []int{1, 2, 63, 64, 95, 96, 97, 98, 500, 1023, 1024} {
		for _, c := range "ab" {
			id := strings.Repeat("x", n-1) + string(c)
			hs[id] = r.grant(id)
		}
	}
	for id, h := range hs {
		r.want(r.beat(id), Applied)
		r.want(r.done(id, "D", 1), Ended)
		r.wantEnded(record.FreedCompleted, h)
		r.want(r.beat(id), Late)
	}
	r.wantEmpty()
}

func TestIdsWithCommasAreCountedUntilTheirEndsAreTold(t *testing.T) {
	r := newRig(t, 8)
	want := func(n int) {
		t.Helper()
		if got := r.t.CommaIDs(); got != n {
			t.Fatalf("%d ids with commas, want %d", got, n)
		}
	}
	r.grant("plain")
	want(0)
	r.grant("a,b")
	e := r.expect("c,d")
	want(2)
	r.grant("a,b") // a duplicate
	r.drain()
	r.grantExpected(e, "c,d")
	want(2)
	r.want(r.t.TryID([]byte("a,b"), r.now), Applied)
	r.want(r.t.TryID([]byte("b,c"), r.now), Unknown)
	r.wantCount("unknown", r.c.UnknownRenew, 0)
	r.done("a,b", "D", 1)
	want(2)
	r.drain()
	want(1)
	x := r.expect("x,y")
	r.grant("x,y") // takes the expectation's entry
	r.t.Cancel(x, r.now)
	want(2)
	r.run(at(31))
	want(0)
	r.wantEmpty()
}

func TestALongIdWithoutRoomIsHeldAndKnownByKeyOnly(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.LongIDs = 1 })
	one, two := strings.Repeat("1", 200), strings.Repeat("2", 200)
	a, b := r.grant(one), r.grant(two)
	r.want(r.done(two, "D", 1), Unknown)
	r.want(r.t.Complete(r.entry(b), engineD, 1, r.now), Ended)
	r.wantCount("ids too long", r.c.LongFull, 1)
	r.want(r.done(one, "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, a, b)
	c := r.grant(two) // room again
	r.want(r.done(two, "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, c)
	r.wantEmpty()
}

func TestAnExpectationOfAnIdThatIsHeldGetsItsTurn(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	b := r.expect("a") // the same id starts to run again
	r.want(r.done("a", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.grantExpected(b, "a")
	r.want(r.beat("a"), Applied)
	r.want(r.done("a", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, b)
	r.wantEmpty()
}

func TestASlotOutOfGenerationsIsRetired(t *testing.T) {
	r := newRig(t, 1)
	h := record.NewHandle(0, record.None-1)
	r.mem.Slots[0].State = record.State(h.Use(), record.Granted)
	r.want(r.say(h, "a"), Applied)
	r.done("a", "D", 1)
	r.wantEnded(record.FreedCompleted, h)
	if r.mem.Control.LeaseFree != record.None {
		t.Error("a slot whose next handle would be none went back to the host")
	}
	r.wantCount("retired", r.c.Retired, 1)
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := Config{Duration: time.Second}
	for name, tc := range map[string]struct {
		cfg  Config
		mem  Memory
		base uint64
	}{
		"no leases":     {good, newMemory(0), 0},
		"no control":    {good, Memory{Slots: make([]record.Slot, 1), Rows: make([]record.Row, 1), Header: &record.BoardHeader{}}, 0},
		"no duration":   {Config{}, newMemory(1), 0},
		"negative time": {Config{Duration: 1, Settle: -1}, newMemory(1), 0},
		"large base":    {good, newMemory(1), 1 << 62},
		"few rows":      {good, Memory{Control: &record.Control{}, Slots: make([]record.Slot, 2), Rows: make([]record.Row, 1), Header: &record.BoardHeader{}}, 0},
	} {
		if _, err := New(tc.cfg, tc.mem, [2]uint64{}, tc.base, 1); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNextDueIsNeverLate(t *testing.T) {
	r := newRig(t, 8)
	if got := r.t.NextDue(r.now); got != clock.Never {
		t.Errorf("empty table is due at %d, want never", got)
	}
	a := r.grant("a")
	for i := 0; len(r.ended(a)) == 0; i++ { // only the times that NextDue names are stepped
		due := r.t.NextDue(r.now)
		if i > 20 || due == clock.Never {
			t.Fatalf("not ended after %d wakes, next %d", i, due)
		}
		r.now = max(due, r.now+1)
		r.t.Sweep(r.now, 0, 0, 0)
	}
	if r.now > at(30.2) {
		t.Errorf("ended at %v by following NextDue", time.Duration(r.now))
	}
}
