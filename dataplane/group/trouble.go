package group

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// troubleOn takes how a rank finds an engine. Its trouble is as long as any rank has some.
func (g *Group) troubleOn(r *rank, t record.Trouble) {
	_, e := g.placeOf(t.Engine)
	if e == nil {
		g.Counters.Repeated++
		return
	}
	if t.ForNs == 0 {
		if e.fails &^= r.bit; e.fails&^g.lost == 0 && e.isUp {
			e.missedAt = 0 // the trouble that it was missed in is over
		}
		return
	}
	at := g.now.Add(-time.Duration(min(t.ForNs, uint64(g.now))))
	if e.fails&^g.lost == 0 || at < e.failsAt {
		e.failsAt = at
	}
	e.fails |= r.bit
}

// trouble is since when an engine is not up, or fails on a rank; 0: neither.
func (g *Group) trouble(e *engine) clock.Instant {
	at := clock.Instant(0)
	if e.fails&^g.lost != 0 {
		at = e.failsAt
	}
	if !e.isUp && (at == 0 || e.offAt < at) {
		at = e.offAt
	}
	return at
}
