package lease

import (
	"fmt"
	"testing"
	"time"

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
			r.run(at(6)) // the reader is known by now
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
	r.wantCount("late native completions", r.c.LateDoneNative, 1)
	r.wantCount("completions repeated by who had completed", r.c.LateDoneRepeated, 1)
	r.wantCount("late reads of stock readers", r.c.LateDone, 0)
	r.wantCount("late releases", r.c.LateRelease, 1)
	if r.t.hot[a.Slot()] != (hot{}) {
		t.Errorf("late messages left %+v in the slot", r.t.hot[a.Slot()])
	}
}

func TestOnlyAStockReaderThatMayHaveReadAfterTheEndCountsAsALateRead(t *testing.T) {
	completed := func(t *testing.T) *rig {
		r := newRig(t, 4)
		a := r.grant("a")
		r.want(r.done("a", "D.0", 1), Ended)
		r.wantEnded(record.FreedCompleted, a)
		return r
	}
	t.Run("a reader of ours has a fence", func(t *testing.T) {
		r := newRig(t, 4)
		a := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
		r.want(r.t.Complete(r.entry(a), engineD, 1, r.now), Late)
		r.wantCount("late native completions", r.c.LateDoneNative, 1)
		r.wantCount("late reads of stock readers", r.c.LateDone, 0)
	})
	t.Run("the one that completed it says so again", func(t *testing.T) {
		r := completed(t)
		r.want(r.done("a", "D.0", 1), Late)
		r.wantCount("completions repeated", r.c.LateDoneRepeated, 1)
		r.wantCount("late reads of stock readers", r.c.LateDone, 0)
	})
	t.Run("after an expiry", func(t *testing.T) {
		r := newRig(t, 4)
		a := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
		r.want(r.done("a", "D.0", 1), Late)
		r.wantCount("late reads of stock readers", r.c.LateDone, 1)
		r.wantCount("completions repeated", r.c.LateDoneRepeated, 0)
	})
	t.Run("another one after the first has completed it", func(t *testing.T) {
		r := completed(t)
		r.want(r.done("a", "E.0", 1), Late)
		r.wantCount("late reads of stock readers", r.c.LateDone, 1)
		r.wantCount("completions repeated", r.c.LateDoneRepeated, 0)
	})
	t.Run("its second lease of the id has expired", func(t *testing.T) {
		r := completed(t)
		b := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, b)
		r.want(r.done("a", "D.0", 1), Late)
		r.wantCount("late reads of stock readers", r.c.LateDone, 1)
	})
	t.Run("its first lease of the id had expired", func(t *testing.T) {
		r := newRig(t, 4)
		a := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
		b := r.grant("a")
		r.want(r.done("a", "D.0", 1), Ended)
		r.wantEnded(record.FreedCompleted, b)
		r.want(r.done("a", "D.0", 1), Late)
		r.wantCount("late reads of stock readers", r.c.LateDone, 1)
	})
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
	g := newGraves(gravesMax)
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
