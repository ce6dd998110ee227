package group

import "github.com/kvlease/kvlease/dataplane/record"

// EngineVoid says that the process of an engine that we read from is gone: its maps are void, and the ranks report what is tracked
// there as lost. Stepping thread.
func (g *Group) EngineVoid(engine uint64) {
	i := record.Handle(engine).Slot()
	if engine>>32 == 0 || int(i) >= len(g.engines) {
		return
	}
	e := &g.engines[i]
	if e.facts == nil || e.facts.handle != engine || len(e.maps) == 0 {
		return
	}
	e.maps, e.died = nil, true
	for n := range g.ranks {
		g.needMaps(&g.ranks[n], e)
	}
}
