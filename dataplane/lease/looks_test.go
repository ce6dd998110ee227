package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

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
	a, b := r.grant("a"), r.grant("b")
	r.run(at(10))
	r.now = at(40) // the process stood still for 30 s
	r.step()
	r.run(at(40.5))
	r.wantHeld(a, b)
	r.now = at(44.5)
	r.step()
	r.now = at(44.9)
	r.want(r.beat("b"), Applied) // of that time, and among the last to come in
	r.step()
	r.wantHeld(a)    // shows F3.1
	r.now = at(45.1) // 5 s after the first look
	r.step()
	r.wantEnded(record.FreedExpired, a)
	r.run(at(64))
	r.wantHeld(b) // shows S29.1
	r.run(at(65.2))
	r.wantEnded(record.FreedExpired, b)
	r.wantCount("first looks after a gap", r.c.DueStalled, 2)
}

func TestL8AStallMakesTheWaitOneIntervalHoweverManyComeUp(t *testing.T) {
	const n = 100
	r := newRig(t, n, func(c *Config) { c.SweepMax = 1 }) // 16 first looks a step
	for i := range n {
		r.grant(fmt.Sprint(i))
	}
	r.run(at(10))
	r.now = at(40)
	r.step()
	r.run(at(44.9))
	if held := r.t.Held(); held != n {
		t.Errorf("%d of %d leases were freed within one interval after a stall", n-held, n)
	}
	r.wantCount("first looks after a gap", r.c.DueStalled, n)
	r.run(at(46.5))
	if held := r.t.Held(); held != 0 {
		t.Errorf("%d leases are left after it", held)
	}
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
	const before = 1 << 36 // larger than any time in units: the two are never taken for each other
	r.arrived, r.applied = before+100, before+40
	r.run(at(30.2)) // the second look falls in here and notes 100
	r.wantHeld(a, b)
	r.arrived, r.applied = before+500, before+99
	r.run(at(30.3))
	r.wantHeld(a, b)
	r.want(r.beat("b"), Applied) // it was among the 100
	r.arrived, r.applied = before+900, before+100
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

// Between the looks a heartbeat comes, and a stall that outlives what it gave. The lease is past its deadline then, but that is
// another deadline than the one that was looked at: a heartbeat may be among what arrived meanwhile, or on its way.
func TestL8ALeaseThatWasRenewedBetweenItsLooksHasTwoLooksAtTheNewDeadline(t *testing.T) {
	for _, native := range []bool{false, true} {
		for _, noted := range []bool{false, true} {
			t.Run(fmt.Sprintf("native=%v, noted=%v", native, noted), func(t *testing.T) {
				r := newRig(t, 4, func(c *Config) { c.StockLinger = 10 * time.Second })
				a := r.grant("a")
				r.run(at(30.02)) // the first look
				beat := func() {
					if native {
						r.want(r.t.Renew(r.entry(a), engineD, r.now), Applied)
					} else {
						r.want(r.beat("a"), Applied)
					}
				}
				if noted {
					r.arrived += 3 // and not applied: the second look waits for them
					r.run(at(30.2))
				}
				beat()
				r.now, r.applied = r.now.Add(21*time.Second), r.arrived // extension 20 s
				r.step()
				r.wantHeld(a)
				beat() // it had arrived meanwhile
				r.run(r.now.Add(19 * time.Second))
				r.wantHeld(a)
				last := r.now.Add(time.Second)
				if !native {
					r.run(last.Add(9 * time.Second))
					r.wantHeld(a) // L9
					last = last.Add(10 * time.Second)
				}
				r.run(last.Add(6 * time.Second))
				r.wantEnded(record.FreedExpired, a)
			})
		}
	}
}
