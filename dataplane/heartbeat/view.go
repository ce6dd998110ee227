package heartbeat

// EngineView is what the side channel looks at of an engine.
type EngineView struct {
	State   State
	Tracked int    // requests
	Fixed   int    // of these, those whose leases have a fixed end, which is converted with SetOffset
	Breaks  uint32 // send errors and reconnects so far
}

// View tells where an engine stands; Absent for a stale handle. Stepping thread.
func (t *Tracker) View(engine uint64) EngineView {
	i := t.engineOf(engine)
	if i == none {
		return EngineView{}
	}
	e := &t.engines[i]
	return EngineView{State: e.state, Tracked: e.requests, Fixed: e.fixed.n, Breaks: e.breaks}
}
