package group

import "github.com/kvlease/kvlease/dataplane/record"

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
	free   uint32
	left   int
}

func newRunPool(runs int) runPool {
	p := runPool{chunks: make([]runChunk, (runs+runsChunk-1)/runsChunk), free: none}
	for i := range p.chunks {
		p.chunks[i].next = p.free
		p.free = uint32(i)
	}
	p.left = len(p.chunks)
	return p
}

// add appends a part; false: no room, nothing was added.
func (p *runPool) add(t *track, part uint32, runs []record.Run) bool {
	if need := max(1, (len(runs)+runsChunk-1)/runsChunk); need > p.left {
		return false
	}
	for first := true; first || len(runs) > 0; first = false {
		i := p.free
		c := &p.chunks[i]
		p.free = c.next
		p.left--
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
		p.chunks[i].next = p.free
		p.free = i
		p.left++
		i = next
	}
	t.runs, t.lastRuns = none, none
}
