package heartbeat

// EngineView is what the side channel looks at of an engine.
type EngineView struct {
	State   State
	Tracked int    // requests
	Fixed   int    // of these, those whose leases have a fixed end, which is converted with SetOffset
	Breaks  uint32 // send errors and reconnects so far
	Strange bool   // requests wait there that name another boot than its maps, and no newer maps are known
}

// View tells where an engine stands; Absent for a stale handle. Stepping thread.
func (t *Tracker) View(engine uint64) EngineView {
	i := t.engineOf(engine)
	if i == none {
		return EngineView{}
	}
	e := &t.engines[i]
	strange := e.strange.n > 0 && e.want.facts == nil && e.walk == walkNone // else what is known already may be theirs
	return EngineView{State: e.state, Tracked: e.requests, Fixed: e.fixed.n, Breaks: e.breaks, Strange: strange}
}
