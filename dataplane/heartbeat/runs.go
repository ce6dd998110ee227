package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
)

// The runs of a read are kept here from its first part until it can be given to the machine, which wants to know the source
// before the first run: its engine may not be connected yet.

const runsChunk = 32

type runChunk struct {
	runs [runsChunk]record.Run
	n    uint32
	next uint32
}

type runPool struct {
	chunks []runChunk
	free   free.Places
}

func newRunPool(runs int) runPool {
	n := (runs + runsChunk - 1) / runsChunk
	return runPool{chunks: make([]runChunk, n), free: free.New(n)}
}

// add appends runs to the request's; false: no room, nothing was added.
func (p *runPool) add(q *request, runs []record.Run) bool {
	room := 0
	if q.lastRuns != none {
		room = runsChunk - int(p.chunks[q.lastRuns].n)
	}
	if more := len(runs) - room; more > 0 && (more+runsChunk-1)/runsChunk > p.free.Left() {
		return false
	}
	q.runsN += uint32(len(runs))
	for len(runs) > 0 {
		if q.lastRuns == none || p.chunks[q.lastRuns].n == runsChunk {
			i := p.free.Take()
			p.chunks[i].n, p.chunks[i].next = 0, none
			if q.lastRuns == none {
				q.runs = i
			} else {
				p.chunks[q.lastRuns].next = i
			}
			q.lastRuns = i
		}
		c := &p.chunks[q.lastRuns]
		n := copy(c.runs[c.n:], runs)
		c.n += uint32(n)
		runs = runs[n:]
	}
	return true
}

// drop gives the request's runs back.
func (p *runPool) drop(q *request) {
	for i := q.runs; i != none; {
		next := p.chunks[i].next
		p.free.Give(i)
		i = next
	}
	q.runs, q.lastRuns = none, none
}
