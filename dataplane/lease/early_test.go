package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

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
		r.wantHeld(a)    // shows S28.1
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
	for _, h := range []record.Handle{0, record.NewHandle(4, 0), record.NewHandle(1<<30, 0), record.NewHandle(0, 1)} {
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
