package lease

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

const (
	goneMax = 1024 // engines that one turn serves; past it only the leases' deadlines are left
	leftMax = 1024 // engines that have said good-bye and are remembered
)

// gone works off the engines whose death was told: turns over all slots, each for all engines that were known when it began.
type gone struct {
	turn  index // engines that the turn under way is for
	later index // engines told since: the next turn's
	scan  int   // next slot; 0 and an empty turn: none is under way
}

func newGone() gone { return gone{turn: newIndex(goneMax), later: newIndex(goneMax)} }

func (g *gone) clear() {
	g.turn.clear()
	g.later.clear()
	g.scan = 0
}

func (g *gone) empty() bool { return g.turn.used == 0 && g.later.used == 0 }

// begin starts a turn for those that wait. The sets change places, so none is copied.
func (g *gone) begin() {
	g.turn.clear()
	g.turn, g.later = g.later, g.turn
	g.scan = 0
}

// EngineGone is the death wire's word (L12): leases that this engine alone has named, and whose readers all check the
// fence, end as released; of others it loses its claim and the deadline decides. It looks at a bounded number of slots now
// and at the rest in the next sweeps, and tells how many leases ended now. An engine that has said good-bye ends nothing.
func (t *Table) EngineGone(engine, epoch uint64, now clock.Instant) int {
	who := t.who(Reader{Engine: engine, Epoch: epoch})
	switch {
	case t.left.has(who):
		t.Counters.GoneLeft++
		return 0
	case t.gone.later.find(who) >= 0:
		return 0
	case t.gone.later.used == goneMax || !t.gone.later.insert(who, 0):
		t.Counters.GoneDropped++
		return 0
	}
	t.Counters.Gone++
	if t.gone.turn.used > 0 {
		return 0 // after the turn under way
	}
	t.gone.begin()
	before := t.ended
	t.scanGone(now)
	return t.ended - before
}

// Leaving is an engine's good-bye: it has told what it will never read, so its death is no news. Leases that it names after
// that are left to their deadlines.
func (t *Table) Leaving(engine, epoch uint64) {
	if who := t.who(Reader{Engine: engine, Epoch: epoch}); !t.left.has(who) {
		t.left.add(who)
	}
}

// scanGone goes on with the turn under way, and begins the next one when it is over: at most scanMax slots and SweepMax ends.
func (t *Table) scanGone(now clock.Instant) {
	g := &t.gone
	ends := t.cfg.SweepMax
	for range scanMax {
		if g.scan >= t.slotsUsed {
			if g.begin(); g.turn.used == 0 {
				return
			}
		}
		if ends == 0 {
			break
		}
		s := uint32(g.scan)
		g.scan++
		k := &t.hot[s]
		if k.who == 0 || k.phase() != phaseHeld || g.turn.find(k.who) < 0 {
			continue
		}
		if k.is(isShared | isUnchecked) {
			k.who = 0
			t.Counters.GoneKept++
			continue
		}
		t.diedAt(k.account(), now)
		t.end(s, k, record.FreedReleased, now)
		ends--
	}
	t.Counters.GoneCut++ // the rest waits for the next step: held longer is safe
}
