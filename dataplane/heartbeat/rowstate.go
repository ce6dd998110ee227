package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/free"
)

// rowState is what the rows of one lease at one rank have shown.
type rowState struct {
	moved   uint32        // heartbeats sent when the row was read that last showed a new count
	rowSent uint32        // the same when the row read in flight was posted
	count   uint32        // heartbeats applied, of the last row
	next    uint32        // of the next link, place + 1 in the pool; 0: none
	counted bool          // count is set
	open    bool          // a row read is in flight
	risk    bool          // it has not moved for too long
	shown   clock.Instant // post of the last row read that showed count
	certain clock.Instant // the lease stands until then, by the last renewal that a row has shown; 0: none has
	mark    uint64        // bytes sent to the engine before the row read in flight
}

// rowPool holds the states beside each remote's first: most engines are reached over one link.
type rowPool struct {
	states []rowState
	free   free.Places
}

func newRowPool(n int) rowPool { return rowPool{states: make([]rowState, n), free: free.New(n)} }

// nextRow is the state of the link after row's, or nil.
func (r *remotes) nextRow(row *rowState) *rowState {
	if row.next == 0 {
		return nil
	}
	return &r.rows.states[row.next-1]
}

// rowOf is the state of link k, or nil where the pool had none left.
func (r *remotes) rowOf(m *remote, k uint32) *rowState {
	row := &m.row
	for ; k > 0 && row != nil; k-- {
		row = r.nextRow(row)
	}
	return row
}

// takeRowStates sees to it that a remote has a state for each link. Where there is no room the rows of the last links are
// not looked at: their fence still is.
func (t *Tracker) takeRowStates(r *remote, e *engine) {
	if !r.native || len(e.links) < 2 || r.row.next != 0 {
		return
	}
	p := &t.remotes.rows
	row := &r.row
	for range e.links[1:] {
		i := p.free.Take()
		if i == none {
			t.counters.RowStatesFull++
			return
		}
		row.next = i + 1
		row = &p.states[i]
		*row = rowState{moved: r.sent}
	}
}

// giveRowStates gives back all but the first.
func (r *remotes) giveRowStates(m *remote) {
	for m.row.next != 0 {
		at := m.row.next - 1
		m.row.next = r.rows.states[at].next
		r.rows.free.Give(at)
	}
}
