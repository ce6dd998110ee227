package group

import (
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
)

// publish hands out the events that wait in the ranks, engines, leases and requests that they speak of, as far as the completion
// ring has room and at most EventsStepMax of each; the rest stays there. A slot goes back to the host with its last event.
func (g *Group) publish() {
	if !g.publishRanks() || !g.publishEngines() || !g.publishLeases() || !g.publishTracks() {
		g.Counters.EventsHeld++
	}
}

func (g *Group) publishRanks() bool {
	for ; g.rankNews != 0; g.rankNews &= g.rankNews - 1 {
		r := &g.ranks[lowest(g.rankNews)]
		if r.downDue {
			g.ev = record.Event{Kind: record.EvRankDown, Handle: uint64(r.n), Status: int32(r.downGone), Rank: r.n}
			if !g.out.Put(&g.ev) {
				return false
			}
			r.downDue = false
		}
		if r.upDue {
			g.ev = record.Event{Kind: record.EvRankUp, Handle: uint64(r.n), Rank: r.n}
			if !g.out.Put(&g.ev) {
				return false
			}
			r.upDue = false
		}
	}
	return true
}

func (g *Group) publishEngines() bool {
	for range g.cfg.EventsStepMax {
		i := g.engineNews.Head
		if i == none {
			return true
		}
		e := &g.engines[i]
		if e.pend&pendDown != 0 {
			g.ev = record.Event{Kind: record.EvEngineDown, Handle: e.facts.handle, User: e.facts.user, Value0: e.down}
			if !g.out.Put(&g.ev) {
				return false
			}
			e.pend &^= pendDown
		}
		if e.pend&pendUp != 0 {
			g.ev = record.Event{Kind: record.EvEngineUp, Handle: e.facts.handle, User: e.facts.user}
			if !g.out.Put(&g.ev) {
				return false
			}
			e.pend &^= pendUp
		}
		if e.pend&pendDrains != 0 {
			g.ev = record.Event{Kind: record.EvEngineDrains, Handle: e.facts.handle, User: e.facts.user}
			if !g.out.Put(&g.ev) {
				return false
			}
			e.pend &^= pendDrains
		}
		list.Drop(&g.engineNews, g.engines, i, (*engine).ofNews)
	}
	g.Counters.EventsCut++
	return true
}

func (g *Group) publishLeases() bool {
	for range g.cfg.EventsStepMax {
		s := g.ends.Head
		if s == none {
			return true
		}
		k, slot := &g.leases[s], &g.mem.Slots[s]
		g.ev = record.Event{Kind: record.EvExpectLapsed, Handle: uint64(record.NewHandle(s, k.use))}
		if k.phase == leaseEnded {
			g.ev.Kind, g.ev.Status, g.ev.User, g.ev.Reasons = record.EvFreed, int32(k.grave), slot.User, k.reasons
			g.ev.Value0, g.ev.Value1 = uint64(slot.Blocks), uint64(k.end)
		}
		if !g.out.Put(&g.ev) {
			return false
		}
		list.Drop(&g.ends, g.leases, s, (*lease).ofEnds)
		g.giveBack(s, k)
	}
	g.Counters.EventsCut++
	return true
}

func (g *Group) publishTracks() bool {
	for range g.cfg.EventsStepMax {
		u := g.news.Head
		if u == none {
			return true
		}
		t := &g.tracks[u]
		for t.pend != 0 {
			what := t.pend & -t.pend
			g.ev = record.Event{Handle: uint64(record.NewHandle(u, t.use)), User: t.req.User}
			switch what {
			case pendGone:
				g.ev.Kind = record.EvLeaseGone
			case pendRisk:
				g.ev.Kind, g.ev.Value0 = record.EvAtRisk, t.riskLeft
			case pendOutcome:
				g.ev.Kind, g.ev.Status, g.ev.Value0, g.ev.Value1 = record.EvReadFailed, int32(t.status), t.bytes, t.took
				if t.status == record.ReadOK {
					g.ev.Kind = record.EvReadDone
				}
				if g.holds(t) {
					g.ev.Flags = record.FlagBlocksHeld
				}
			case pendBack:
				g.ev.Kind = record.EvBlocksBack
			}
			if !g.out.Put(&g.ev) {
				return false
			}
			if g.ev.Flags != 0 {
				t.heldSaid = true
				g.blocksHeld++
			}
			t.pend &^= what
		}
		list.Drop(&g.news, g.tracks, u, (*track).ofNews)
		g.settle(u, t)
	}
	g.Counters.EventsCut++
	return true
}
