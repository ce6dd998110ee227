package weakmem

import (
	"math/bits"
	"slices"
)

// eventsMax bounds the events of one execution.
const eventsMax = 192

// set is a set of events.
type set [eventsMax / 64]uint64

func (s *set) add(e int)      { s[e>>6] |= 1 << (e & 63) }
func (s *set) has(e int) bool { return s[e>>6]>>(e&63)&1 != 0 }
func (s *set) join(o *set) {
	for i := range s {
		s[i] |= o[i]
	}
}

// each calls f for each event.
func (s *set) each(f func(e int)) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			f(i<<6 + bits.TrailingZeros64(w))
		}
	}
}

// event is one of an execution. Events are numbered in the order in which they were added, which follows program order and rf.
type event struct {
	thread int
	nth    int // of its thread
	order  Order
	loc    int // -1: a fence
	reads  bool
	writes bool
	plain  bool
	from   int // the write that it reads; -1: what was there at the start
	seen   uint64
	value  uint64
	before set // happens before it
	gives  set // of an atomic write: what an acquire load of it is ordered behind
}

// thread is where a thread stands.
type thread struct {
	node     *node
	events   int
	before   set // happens before its next event
	released int // its last release fence; -1: none
	pending  set // an acquire fence orders the next events behind these
}

// graph is an execution so far.
type graph struct {
	events  []event
	threads []thread
	order   [][]int // of each word: its writes, oldest first, without what was there at the start
	plain   []plain
	sc      set // sequentially consistent accesses and fences
	fences  set // those of them that are fences
}

// plain is the last write of a plain word, and what read it since. All accesses before are ordered, or it was a race.
type plain struct {
	write int // -1: none
	reads []int
	value uint64
}

func (g *graph) clone() *graph {
	c := *g
	c.events = append(make([]event, 0, len(g.events)+8), g.events...)
	c.threads = slices.Clone(g.threads)
	c.order = make([][]int, len(g.order))
	for i, o := range g.order {
		c.order[i] = append(make([]int, 0, len(o)+1), o...)
	}
	c.plain = slices.Clone(g.plain)
	for i := range c.plain {
		c.plain[i].reads = slices.Clone(g.plain[i].reads)
	}
	return &c
}

// place is where a write stands in its word's order; -1: what was there at the start.
func (g *graph) place(write int) int {
	if write < 0 {
		return -1
	}
	return slices.Index(g.order[g.events[write].loc], write)
}

// floor is the oldest place in a word's order that an event of a thread may read, or write behind: all that happens before it
// has written or read that far.
func (g *graph) floor(t *thread, loc int) int {
	at := -1
	for i, w := range g.order[loc] {
		if t.before.has(w) {
			at = i
		}
	}
	t.before.each(func(e int) {
		if f := &g.events[e]; f.loc == loc && !f.plain && f.reads && !f.writes {
			at = max(at, g.place(f.from))
		}
	})
	return at
}

// taken reports that the write behind place at is an update of that at place: nothing can come between.
func (g *graph) taken(loc, at int) bool {
	o := g.order[loc]
	if at+1 >= len(o) {
		return false
	}
	next := &g.events[o[at+1]]
	return next.reads && g.place(next.from) == at
}

// value is that at a place of a word's order.
func (g *graph) value(p *compiled, loc, at int) uint64 {
	if at < 0 {
		return p.init[loc]
	}
	return g.events[g.order[loc][at]].value
}

// add appends an event of a thread, with what happens before it.
func (g *graph) add(ti int, e event) int {
	t := &g.threads[ti]
	id := len(g.events)
	if id == eventsMax {
		panic("weakmem: the program is too long")
	}
	e.thread, e.nth = ti, t.events
	t.events++
	if e.reads && !e.plain && e.from >= 0 {
		if e.order.acquires() {
			t.before.join(&g.events[e.from].gives)
		} else {
			t.pending.join(&g.events[e.from].gives)
		}
	}
	if e.loc < 0 && e.order.acquires() {
		t.before.join(&t.pending)
	}
	e.before = t.before
	t.before.add(id)
	switch {
	case e.loc < 0 && e.order.releases():
		t.released = id
	case e.writes && !e.plain:
		if t.released >= 0 {
			e.gives = g.events[t.released].before
			e.gives.add(t.released)
		}
		if e.order.releases() {
			e.gives.join(&e.before)
			e.gives.add(id)
		}
		if e.reads && e.from >= 0 { // an update goes on with the release sequence of what it read
			e.gives.join(&g.events[e.from].gives)
		}
	}
	if e.order == SeqCst && !e.plain {
		g.sc.add(id)
		if e.loc < 0 {
			g.fences.add(id)
		}
	}
	g.events = append(g.events, e)
	return id
}

// insert puts a write behind a place of its word's order.
func (g *graph) insert(write, at int) {
	loc := g.events[write].loc
	g.order[loc] = slices.Insert(g.order[loc], at+1, write)
}
