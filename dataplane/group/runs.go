package group

import (
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
)

const runsChunk = 32

// runChunk holds runs of one part of a read: a part begins a chunk, so that it can be told again as it was said.
type runChunk struct {
	runs [runsChunk]record.Run
	n    uint32
	part uint32
	next uint32
}

// runPool keeps the runs of reads until every rank has told their end.
type runPool struct {
	chunks []runChunk
	free   free.Places
}

func newRunPool(runs int) runPool {
	n := (runs + runsChunk - 1) / runsChunk
	return runPool{chunks: make([]runChunk, n), free: free.New(n)}
}

// add appends a part; false: no room, nothing was added.
func (p *runPool) add(t *track, part uint32, runs []record.Run) bool {
	if need := max(1, (len(runs)+runsChunk-1)/runsChunk); need > p.free.Left() {
		return false
	}
	for first := true; first || len(runs) > 0; first = false {
		i := p.free.Take()
		c := &p.chunks[i]
		n := copy(c.runs[:], runs)
		c.n, c.part, c.next = uint32(n), part, none
		runs = runs[n:]
		if t.lastRuns == none {
			t.runs = i
		} else {
			p.chunks[t.lastRuns].next = i
		}
		t.lastRuns = i
	}
	return true
}

// drop gives a request's runs back.
func (p *runPool) drop(t *track) {
	for i := t.runs; i != none; {
		next := p.chunks[i].next
		p.free.Give(i)
		i = next
	}
	t.runs, t.lastRuns = none, none
}
