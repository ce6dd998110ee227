package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The cases of faults.md that are the table's: the numbers are the cases' own. Where a case says "the first step after",
// the two looks and their settle time of 50 ms come on top.

func every(from, to, by float64, do func(sec float64)) {
	for s := from; s <= to; s += by {
		do(s)
	}
}

func TestC01ARenewedHeadHidesNothing(t *testing.T) {
	r := newRig(t, 16)
	a := r.grant("a")
	var rest []record.Handle
	for _, id := range "bcdefghij" {
		rest = append(rest, r.grant(string(id)))
	}
	every(5, 30, 5, func(s float64) { r.run(at(s)); r.beat("a") })
	r.run(at(31))
	r.wantEnded(record.FreedExpired, rest...) // shows C01.1
	r.wantHeld(a)
}

func TestC02TwoLifetimesInOneTable(t *testing.T) {
	r := newRig(t, 8)
	x := r.grant("x", ttl(480*time.Second), fixed)
	r.run(at(1))
	a, b := r.grant("a"), r.grant("b")
	r.run(at(32))
	r.wantEnded(record.FreedExpired, a, b) // shows C02.1
	r.wantHeld(x)
	r.run(at(470))
	r.want(r.beat("x"), Fixed)
	r.want(r.t.Renew(r.entry(x), engineD, r.now), Fixed)
	out := make([]Outcome, 1)
	r.t.RenewIDs([][]byte{[]byte("x")}, agentD, r.now, out)
	r.want(out[0], Fixed)
	r.run(at(479.9))
	r.wantHeld(x)
	r.run(at(480.2))
	r.wantEnded(record.FreedExpired, x) // shows C02.2
	r.wantCount("heartbeats for a fixed life", r.c.FixedRenew, 3)
}

func TestC03CrashVersusOverload(t *testing.T) {
	r := newRig(t, 8)
	a, b := r.grant("a"), r.grant("b")
	every(5, 300, 5, func(s float64) {
		r.run(at(s))
		if s <= 15 {
			r.beat("a")
		}
		r.beat("b")
		if s == 35 { // 15 + 20
			r.wantHeld(a)
			r.run(at(35.2))
			r.wantEnded(record.FreedExpired, a) // shows C03.1
		}
	})
	r.wantHeld(b)
	r.want(r.done("b", "D2", 1), Ended)
}

func TestS27WhatHasExpiredIsFoundWithoutALookAtWhatLives(t *testing.T) {
	const living = 4000
	r := newRig(t, living+1, func(c *Config) { c.SweepMax = 2 }) // a step may look at 32 leases: at all of them in 125 steps
	var dying record.Handle
	for i := range living {
		r.grant(fmt.Sprint("living", i), ttl(time.Hour))
		if i == living/2 {
			dying = r.grant("dying")
		}
	}
	r.run(at(30.1))                         // two looks
	r.wantEnded(record.FreedExpired, dying) // shows S27.1
	r.wantCount("first looks", r.c.Due, 1)
	r.wantCount("steps that were cut", r.c.SweepCut+r.c.ExamineCut, 0)
}

func TestC04ExpiryNeedsNoNewWork(t *testing.T) {
	r := newRig(t, 4)
	hs := []record.Handle{r.grant("a"), r.grant("b"), r.grant("c"), r.grant("d")}
	if got := r.t.Blocks(); got != 32 {
		t.Fatalf("%d blocks held, want 32", got)
	}
	r.run(at(31))
	r.wantEnded(record.FreedExpired, hs...) // shows C04.1
	r.wantEmpty()
	r.run(at(120))
	r.grant("e") // shows C04.2
}

func TestC05ExpiryForgetsNoSideTable(t *testing.T) {
	for _, native := range []bool{false, true} {
		t.Run(fmt.Sprintf("native=%v", native), func(t *testing.T) {
			r := newRig(t, 4)
			done := func(h record.Handle, rank uint32) Outcome {
				if native {
					return r.t.Complete(r.entry(h), engineD.at(rank), 2, r.now)
				}
				return r.done("a", fmt.Sprint("D.", rank), 2)
			}
			a := r.grant("a")
			r.run(at(5))
			r.want(done(a, 0), Applied)
			r.run(at(31))
			r.wantEnded(record.FreedExpired, a)
			// shows C05.1
			r.wantEmpty() // after 31 no table holds anything for a
			r.run(at(40))
			again := r.grant("a")
			r.run(at(41))
			r.want(done(again, 1), Applied)
			r.wantHeld(again) // shows C05.2
			r.run(at(42))
			r.want(done(again, 0), Ended)
			r.wantEnded(record.FreedCompleted, again)
			r.wantEmpty() // shows C05.3
		})
	}
}

func TestC07UnknownIdsLeaveNothing(t *testing.T) {
	r := newRig(t, 4)
	for i := range 10000 {
		r.want(r.beat(fmt.Sprint("u", i)), Unknown)
		r.want(r.done(fmt.Sprint("v", i), "D", 1), Unknown)
	}
	r.wantEmpty()                                                   // shows C07.1
	r.wantCount("ids remembered", uint64(r.t.graves.index.used), 0) // shows C07.3: nothing is left that a later step could meet
	r.wantCount("unknown heartbeats", r.c.UnknownRenew, 10000)
	r.wantCount("unknown completions", r.c.UnknownDone, 10000)
	r.run(at(1))
	r.grant("a")
	r.run(at(5))
	r.want(r.beat("a"), Applied) // shows C07.2
}

func TestC13IdsThatArePrefixesOfEachOther(t *testing.T) {
	r := newRig(t, 4)
	one, ten, hundred := r.grant("req-1"), r.grant("req-10"), r.grant("req-100")
	r.run(at(2))
	r.want(r.done("req-10", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, ten) // shows C13.1
	r.wantHeld(one, hundred)
	r.run(at(15))
	r.want(r.beat("req-100"), Applied)
	r.run(at(30.2))
	r.wantEnded(record.FreedExpired, one) // shows C13.3
	r.run(at(34))
	r.wantHeld(hundred) // shows C13.2
}

func TestC15SiblingsAndADoneThatComesFirst(t *testing.T) {
	r := newRig(t, 8)
	a0, a1, a2 := r.grant("a0"), r.grant("a1"), r.grant("a2")
	r.run(at(2))
	r.done("a0", "D", 1)
	r.t.Release(r.entry(a1), engineD, r.now)
	r.t.Release(r.entry(a2), engineD, r.now)
	r.run(at(3))
	r.wantEnded(record.FreedCompleted, a0)
	r.wantEnded(record.FreedReleased, a1, a2) // shows C15.1
	b := r.expect("b")
	r.want(r.done("b", "D", 1), Kept)
	for range 1000 {
		r.want(r.beat("b"), Kept)
		r.want(r.done("b", "D", 1), Repeated)
		r.want(r.done("nobody's", "D", 1), Unknown)
	}
	r.wantCount("places for early messages", uint64(r.t.index.used), 1)            // shows C15.3
	r.wantCount("readers that reported early", uint64(r.t.readers.free.Used()), 0) // the first one stands in the slot
	r.run(at(3.1))
	r.grantExpected(b, "b")
	r.wantEnded(record.FreedCompleted, b) // shows C15.2
}

func TestC16AbortBeforeTheGrant(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.ExpectMax = 300 * time.Second })
	a, never := r.expect("a"), r.expect("never")
	r.want(r.t.Release(r.entry(a), engineD, r.now), Kept)
	r.want(r.done("never", "D", 1), Kept) // a stock abort is a completion
	r.run(at(0.2))
	r.grantExpected(a, "a")
	r.wantEnded(record.FreedReleased, a) // shows C16.1
	r.run(at(300.1))
	// shows C16.2
	r.wantEnded(0, never) // the bound: ten leases
	r.wantEmpty()
}

func TestC18LateMessagesReviveNothing(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.run(at(3))
	r.want(r.done("a", "D", 1), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.wantEmpty() // shows C18.1
	for i := range uint64(1000) {
		r.want(r.beat("a"), Late)
		r.want(r.done("a", "D", 1), Late)
		r.want(r.t.Release(r.entry(a), engineD, r.now), Late)
		r.wantCount("late heartbeats", r.c.LateRenew, i+1) // shows C18.2
		r.wantCount("completions repeated by who had completed", r.c.LateDoneRepeated, i+1)
		r.wantCount("late releases", r.c.LateRelease, i+1)
	}
	r.wantEmpty()
	r.wantCount("ids remembered", uint64(r.t.graves.index.used), 1) // shows C18.3
}

func TestC19AbortAtFinishRemovesOnce(t *testing.T) {
	r := newRig(t, 8)
	a, b := r.grant("a"), r.grant("b")
	r.t.Cancel(a, r.now)
	r.drain()
	r.t.Cancel(a, r.now)
	r.wantCount("words about what has ended", r.c.Again, 1) // shows C19.3
	r.run(at(30.2))
	r.wantEnded(record.FreedRevoked, a) // shows C19.1
	r.wantEnded(record.FreedExpired, b) // shows C19.2
	r.wantEmpty()
}

func TestC21CompletionsAreCountedBySender(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.run(at(2))
	r.want(r.done("a", "D.0", 2), Applied)
	r.run(at(2.1))
	r.want(r.done("a", "D.0", 2), Repeated) // shows C21.1
	r.run(at(9))
	r.wantHeld(a)
	r.want(r.done("a", "D.1", 2), Ended)
	r.wantEnded(record.FreedCompleted, a) // shows C21.2
	r.want(r.done("a", "D.0", 2), Late)
	r.want(r.done("a", "D.1", 2), Late)
	r.wantCount("late completions", r.c.LateDone, 2) // shows C21.3
}

func TestC22ReadersThatShareARankNumberAreTheirEngines(t *testing.T) {
	// Four owner ranks, each its own table, one reader whose rank is 0 everywhere: each is complete by itself.
	for range 4 {
		r := newRig(t, 2)
		a := r.grant("a")
		r.want(r.t.Complete(r.entry(a), engineD.at(0), 1, r.now), Ended)
		r.wantEnded(record.FreedCompleted, a)
	}
}

func TestC28TheReaperAndTheReaderNeverBothWin(t *testing.T) {
	seed := uint64(20261129)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 28))
	r := newRig(t, 1)
	for i := range 10000 {
		a := r.grant("a")
		r.now = r.now.Add(29980 * time.Millisecond)
		r.stepped = r.now // no stall
		r.step()
		heard, ended := false, false
		for range 4 + rng.IntN(8) {
			r.now = r.now.Add(time.Duration(rng.IntN(60)) * time.Millisecond)
			switch rng.IntN(12) {
			default:
				r.step()
			case 0:
				o := r.t.Renew(r.entry(a), engineD, r.now)
				if gone := len(r.ended(a)) > 0; (o == Applied) == gone || gone && o != Late { // shows C28.1
					t.Fatalf("run %d: outcome %d with ended=%v", i, o, gone)
				}
				heard = heard || o == Applied
			case 1:
				o := r.t.Complete(r.entry(a), engineD, 1, r.now)
				if o != Ended && o != Late {
					t.Fatalf("run %d: outcome %d", i, o)
				}
				ended = ended || o == Ended
			}
			// The fence says the same as the table, at every moment.
			if open := r.mem.Rows[0].Fence == testBase+uint64(a.Use()); open == (len(r.ended(a)) > 0) { // shows C28.2
				t.Fatalf("run %d: fence open=%v", i, open)
			}
		}
		if got := r.ended(a); heard && !ended && len(got) != 0 {
			t.Fatalf("run %d: reaped although a heartbeat was heard (%v)", i, got)
		}
		r.t.Cancel(a, r.now)
		if got := r.ended(a); len(got) != 1 {
			t.Fatalf("run %d: ends %v", i, got)
		}
		r.ends = r.ends[:0]
	}
	for _, reason := range []uint16{record.FreedExpired, record.FreedCompleted, record.FreedRevoked} {
		if r.c.Freed[reason] < 500 {
			t.Errorf("only %d runs ended with reason %d: the orders do not try both sides", r.c.Freed[reason], reason)
		}
	}
}

func TestC56SeveralDecodeRanksReadOnePrefillRank(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%v", crash), func(t *testing.T) {
			r := newRig(t, 2)
			a := r.grant("a")
			for rank := range 3 {
				r.run(at(float64(1 + rank)))
				r.want(r.done("a", fmt.Sprint("D.", rank), 4), Applied)
			}
			r.run(at(5))
			for range 4 {
				r.want(r.beat("a"), Applied)
			}
			if crash {
				r.run(at(29.9))
				r.wantHeld(a)
				r.run(at(30.2))
				r.wantEnded(record.FreedExpired, a)                         // shows C56.3
				r.wantCount("readers that had reported", r.c.ReadersCut, 3) // shows C56.2
				return
			}
			r.run(at(8))
			r.wantHeld(a)
			r.want(r.done("a", "D.3", 4), Ended)
			r.wantEnded(record.FreedCompleted, a) // shows C56.1
		})
	}
}

func TestC60ADeadlineIsJudgedOnItsOwnClock(t *testing.T) {
	for _, skew := range []float64{-10000, 10000} {
		t.Run(fmt.Sprint(skew), func(t *testing.T) {
			r := newRig(t, 2)
			r.now = at(20000)
			r.step()
			granted := r.now
			said := granted.Add(time.Duration(skew * 1e9)) // the host's clock
			r.now = r.now.Add(300 * time.Millisecond)      // on the way
			a := r.grant("a", ttl(30*time.Second), func(g *record.Grant) { g.SaidNs = uint64(said) })
			r.run(granted.Add(29990 * time.Millisecond))
			r.wantHeld(a)
			r.run(granted.Add(30300*time.Millisecond + 100*time.Millisecond))
			r.wantEnded(record.FreedExpired, a) // shows C60.2
		})
	}
}

func TestC61HeartbeatsThatComeAndDeadlinesThatDoNotJump(t *testing.T) {
	// The table has one clock: a lease granted at 0 and renewed at 10 ends at the first step after 30, whatever another shows.
	r := newRig(t, 2)
	a := r.grant("a")
	r.run(at(10))
	r.beat("a")
	r.run(at(29))
	r.wantHeld(a)
	r.run(at(30.2))
	r.wantEnded(record.FreedExpired, a)
}
