package core

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// askedShown gathers, for the page, how asking each engine over the side channel stands. A step knows nothing of it: to a step an engine that
// answers no handshake is as idle as one that nobody has asked.
type askedShown struct {
	status []handshake.EngineStatus
	rows   []watch.AskedRow
}

// read takes it, in no order. It allocates only while there are more engines than ever before.
func (a *askedShown) read(s *sideChannel) []watch.AskedRow {
	a.status, a.rows = s.client.Engines(a.status[:0]), a.rows[:0]
	now, boot := time.Now(), s.now()
	at := func(t time.Time) clock.Instant { return boot.Add(t.Sub(now)) }
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range a.status {
		e := &a.status[i]
		r := watch.AskedRow{Engine: e.Engine, Asked: watch.Asked{State: e.State.String()}}
		if e.Failures > 0 {
			r.Fails, r.Since, r.Why = uint64(e.Failures), at(e.Failing), e.Class.String()
		}
		if p := s.peers[e.Engine]; p != nil && p.unfit != nil { // it has answered, with maps that cannot be used here
			r.State, r.Why, r.Fails, r.Since = handshake.Refused.String(), handshake.Incompatible.String(), r.Fails+1, at(p.unfitAt)
		}
		a.rows = append(a.rows, r)
	}
	return a.rows
}
