package lease

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Pressure takes leases back, worth least first: those that linger for a stock reader and whose deadline has had its two
// looks (L8), then those whose readers all check the fence (L12), in the order in which that became known: at the grant or by
// the first native message, so the longest waiting is first. It tells the blocks freed now; what a bound cuts off is freed by
// the next sweeps.
func (t *Table) Pressure(blocks uint32, now clock.Instant) uint32 {
	t.wanted = max(t.wanted, uint64(blocks))
	return uint32(min(t.takeBack(now), 1<<32-1))
}

// takeBack works on t.wanted. It is forgotten when nothing is left that may be taken; while a lease only waits for the second
// look that L8 gives its deadline, it is kept for the sweeps that follow.
func (t *Table) takeBack(now clock.Instant) (freed uint64) {
	past := unitsPast(now)
	ends := t.cfg.SweepMax
	t.ripens = 0
	for looks := ends * pressureLooks; t.wanted > 0; looks-- {
		if looks == 0 || ends == 0 {
			t.Counters.PressureCut++
			return freed
		}
		s, ok := t.worth.first(ringLingering)
		if ok {
			at, ripe := t.passed(s, &t.hot[s])
			if at > past { // renewed since: no longer one of these
				t.hold(s, &t.hot[s], at)
				continue
			}
			if ok = ripe; !ripe {
				t.ripens = max(at+t.settle, t.looks.calm, past+1)
			}
		}
		if !ok {
			if s, ok = t.worth.first(ringRevocable); !ok {
				break
			}
		}
		n := uint64(t.mem.Slots[s].Blocks)
		t.end(s, &t.hot[s], record.FreedRevoked, now)
		ends--
		freed += n
		t.wanted -= min(t.wanted, n)
	}
	if t.wanted == 0 || t.ripens == 0 {
		t.wanted, t.ripens = 0, 0
	}
	return freed
}

// passed gives the deadline of a lease that lingers, or a time not before it, and whether it has had the two looks of L8. While
// it is due the grant's own end is no longer known, but its linger had passed at its first look.
func (t *Table) passed(s uint32, k *hot) (at uint64, ripe bool) {
	at, _ = t.deadline(s, k)
	switch {
	case k.is(isNoted): // what had arrived by its second look is being applied
		return at, false
	case k.is(isDue):
		at = max(at, k.end()-min(t.linger, k.end()))
	}
	return at, at <= t.looks.ripe
}
