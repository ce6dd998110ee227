package read

import (
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
)

// runsPiece is the number of runs in one piece of the pool.
const runsPiece = 64

type run struct{ local, remote, n uint32 }

// piece is a part of one read's runs of one group.
type piece struct {
	runs [runsPiece]run
	n    int32
	next int32 // none at the end
}

// runPool holds the runs of all reads. A read takes pieces as it is built and gives them back when it is posted or over.
type runPool struct {
	pieces []piece
	free   free.Places
}

func newRunPool(runs int) runPool {
	n := (runs + runsPiece - 1) / runsPiece
	return runPool{pieces: make([]piece, n), free: free.New(n)}
}

func (p *runPool) take() int32 {
	i := int32(p.free.Take())
	if i != none {
		p.pieces[i].n, p.pieces[i].next = 0, none
	}
	return i
}

// give returns a list of pieces.
func (p *runPool) give(head int32) {
	for i := head; i != none; {
		next := p.pieces[i].next
		p.free.Give(uint32(i))
		i = next
	}
}

// groupRuns are the runs of one group of one read.
type groupRuns struct {
	head, tail int32
	runs       uint32
	blocks     uint64
	limit      uint32 // ids must be below it on the remote side: the smallest region of any source
}

func (g *groupRuns) last(p *runPool) *run {
	if g.tail == none {
		return nil
	}
	t := &p.pieces[g.tail]
	return &t.runs[t.n-1]
}

// follows reports that r begins where l ends, on both sides.
func (l *run) follows(r *record.Run) bool {
	return l != nil && l.local+l.n == r.Local && l.remote+l.n == r.Remote
}

// add appends a checked run, merged into the last one if it follows it. It reports false if the pool is empty.
func (g *groupRuns) add(p *runPool, r *record.Run) bool {
	g.blocks += uint64(r.N)
	if last := g.last(p); last.follows(r) {
		last.n += r.N // cannot wrap: local+n is at most the region's number of blocks
		return true
	}
	if g.tail == none || p.pieces[g.tail].n == runsPiece {
		i := p.take()
		if i == none {
			g.blocks -= uint64(r.N)
			return false
		}
		if g.tail == none {
			g.head = i
		} else {
			p.pieces[g.tail].next = i
		}
		g.tail = i
	}
	t := &p.pieces[g.tail]
	t.runs[t.n] = run{r.Local, r.Remote, r.N}
	t.n++
	g.runs++
	return true
}
