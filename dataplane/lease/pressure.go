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

// takeBack works on t.wanted.
func (t *Table) takeBack(now clock.Instant) (freed uint64) {
	past := unitsPast(now)
	ends := t.cfg.SweepMax
	for looks := ends * pressureLooks; t.wanted > 0; looks-- {
		if looks == 0 || ends == 0 {
			t.Counters.PressureCut++
			return freed
		}
		s, ok := t.worth.first(ringLingering)
		if ok {
			at, _ := t.deadline(s, &t.hot[s])
			if at > past { // renewed since: no longer one of these
				t.hold(s, &t.hot[s], at)
				continue
			}
			ok = at <= t.ripe
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
	t.wanted = 0 // enough, or nothing left that may be taken
	return freed
}

// goneMax is how many gone engines may wait for their scan; past it only the leases' deadlines are left.
const goneMax = 64

type goneRing struct {
	who  [goneMax]uint64
	n    int
	scan int // next slot for who[0]
}

// EngineGone is the death wire's word (L12): leases that this engine alone has named, and whose readers all check the
// fence, end as released; of others it loses its claim and the deadline decides. It scans a bounded number of slots now
// and the rest in the next sweeps, and tells how many leases ended now.
func (t *Table) EngineGone(engine, epoch uint64, now clock.Instant) int {
	if t.gone.n == goneMax {
		t.Counters.GoneDropped++
		return 0
	}
	t.gone.who[t.gone.n] = t.who(Reader{Engine: engine, Epoch: epoch})
	t.gone.n++
	before := t.ended
	if t.gone.n == 1 {
		t.scanGone(now)
	}
	return t.ended - before
}

func (t *Table) scanGone(now clock.Instant) {
	who := t.gone.who[0]
	ends := t.cfg.SweepMax
	for range scanMax {
		if t.gone.scan >= t.slotsUsed {
			copy(t.gone.who[:], t.gone.who[1:t.gone.n])
			t.gone.n--
			t.gone.scan = 0
			return
		}
		if ends == 0 {
			break
		}
		s := uint32(t.gone.scan)
		t.gone.scan++
		k := &t.hot[s]
		if k.who != who || k.phase() != phaseHeld {
			continue
		}
		if k.is(isShared | isUnchecked) {
			k.who = 0
			t.Counters.GoneKept++
			continue
		}
		t.end(s, k, record.FreedReleased, now)
		ends--
	}
}
