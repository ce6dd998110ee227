package lease

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// lookMax bounds the slots that one Look visits: 2,048 cost some 5 us. A million leases are seen once in 500 of them.
const lookMax = 2048

// Look goes on with a look at all slots for the oldest lease of each account, and tells those of a look that has come to its end. Leases of a
// fixed life are left out: they are old as they should be, and would hide one that nobody comes for.
func (t *Table) Look(now clock.Instant) {
	a := &t.accounts
	if now.Sub(a.turned) >= 2*t.cfg.Interval {
		a.turned = now
		for i := range a.inUse {
			k := &a.all[i]
			k.least[0], k.least[1] = noUnits, k.least[0]
		}
	}
	for range lookMax {
		if a.scan >= t.slotsUsed {
			for i := range a.inUse {
				a.all[i].Oldest = clock.Instant(a.oldest[i])
			}
			clear(a.oldest[:a.inUse])
			a.scan = 0
			return
		}
		if k := &t.hot[a.scan]; k.phase() == phaseHeld && !k.is(isFixed) {
			if at := &a.oldest[k.account()]; *at == 0 || t.granted[a.scan] < *at {
				*at = t.granted[a.scan]
			}
		}
		a.scan++
	}
}

// Accounts is how many places of accounts have been used.
func (t *Table) Accounts() int { return t.accounts.inUse }

// Account gives one place, and a name: of a stock reader its agent's, of one of ours its id if its agent has told it, else none. Number 0:
// nobody has the place. What it gives is the table's: read it before the next step.
func (t *Table) Account(i int) (a *Account, name []byte) {
	a = &t.accounts.all[i]
	a.LeastSlack = NoSlack
	if least := min(a.least[0], a.least[1]); least != noUnits {
		a.LeastSlack = time.Duration(least << unitShift)
	}
	if a.Leases == 0 {
		a.Oldest = 0
	}
	return a, t.accounts.names[i]
}

// LastEnds are the leases that ended last.
func (t *Table) LastEnds() *record.LastEnds { return &t.last }
