package core

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
)

// growth is trouble that only counters show, whose places know neither engine nor request. Each line has what has come since the one before
// of its kind, and they come at log.Pace.
//
// Threads: that of its look.
type growth struct {
	kind log.Kind
	pace log.Pace
	at   []*uint64
	told uint64  // of their sum
	seen uint64  // likewise, at the look before
	most *uint64 // the worst since the line before, which takes it; nil: the kind has none
}

// grows makes one that begins with what the counters are: what was before is not news.
func grows(kind log.Kind, at ...*uint64) growth {
	g := growth{kind: kind, at: at}
	g.told = g.sum()
	g.seen = g.told
	return g
}

func (g *growth) sum() (n uint64) {
	for _, at := range g.at {
		n += *at
	}
	return n
}

// look says what has come.
func (g *growth) look(to *log.Writer, now clock.Instant) {
	n := g.sum()
	came := n != g.seen
	if g.seen = n; n == g.told || !g.pace.Look(came, now) {
		return
	}
	e := log.Entry{A: n - g.told}
	if g.most != nil {
		e.B = *g.most
	}
	if !to.Put(g.kind, now, e) { // the next line has it
		return
	}
	if g.told = n; g.most != nil {
		*g.most = 0
	}
}

// fullness is a table without room. It may be so for long, or again with each place that becomes free.
type fullness struct {
	kind log.Kind
	pace log.Pace
}

// look takes how many of the places are used.
func (f *fullness) look(to *log.Writer, used, most int, now clock.Instant) {
	if used >= most && f.pace.Due(now) {
		to.Put(f.kind, now, log.Entry{A: uint64(most)})
	}
}
