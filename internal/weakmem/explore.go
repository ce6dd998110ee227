package weakmem

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
)

// Result is what Explore found.
type Result struct {
	Graphs     int // different executions so far, each counted where the search branched
	Executions int // that came to their end
	LeftOut    int // in which an Await never ended
	Bad        *Bad
}

// Bad is an execution that must not be.
type Bad struct {
	Why   string
	Trace string // an order in which the events could have been added, with what each read and from where
}

func (b *Bad) Error() string { return b.Why + "\n" + b.Trace }

// compiled is a program with its words numbered.
type compiled struct {
	Program
	words []string
	index map[string]int
	init  []uint64
	plain []bool
}

type search struct {
	p       *compiled
	seen    map[[16]byte]struct{}
	result  Result
	finals  func(*Final)
	limit   int
	scratch []byte
}

// Explore runs a program in every way there is, up to graphsMax executions, past which it panics: a bound that was not meant to be met.
func Explore(p Program, graphsMax int) Result { return ExploreAll(p, graphsMax, nil) }

// ExploreAll is Explore that also shows every end to final.
func ExploreAll(p Program, graphsMax int, final func(*Final)) Result {
	c := &compiled{Program: p, index: make(map[string]int)}
	s := &search{p: c, seen: make(map[[16]byte]struct{}), finals: final, limit: graphsMax}
	g := &graph{}
	for i := range p.Threads {
		g.threads = append(g.threads, thread{node: start(p.Threads[i].Body, nil), released: -1})
	}
	s.run(g)
	return s.result
}

// word gives a word's number. A word is either atomic or plain.
func (s *search) word(g *graph, loc string, isPlain bool) int {
	c := s.p
	i, ok := c.index[loc]
	if !ok {
		i = len(c.words)
		c.index[loc] = i
		c.words = append(c.words, loc)
		c.init = append(c.init, c.Init[loc])
		c.plain = append(c.plain, isPlain)
	}
	if c.plain[i] != isPlain {
		panic(fmt.Sprintf("weakmem: %s is used as plain and as atomic", loc))
	}
	for len(g.order) <= i {
		g.order = append(g.order, nil)
		g.plain = append(g.plain, plain{write: -1, value: c.init[len(g.plain)]})
	}
	return i
}

func (s *search) bad(g *graph, format string, args ...any) {
	if s.result.Bad == nil {
		s.result.Bad = &Bad{Why: s.p.Name + ": " + fmt.Sprintf(format, args...), Trace: s.trace(g)}
	}
}

// run adds what does not branch, then every read that can come next. It owns g.
func (s *search) run(g *graph) {
	for more := true; more; {
		if s.result.Bad != nil {
			return
		}
		more = false
		for ti := range g.threads {
			o := &g.threads[ti].node.op
			switch o.kind {
			case kWrite:
				s.write(g, ti, o)
				return
			case kFence:
				g.add(ti, event{order: o.order, loc: -1, from: -1})
				if o.order == SeqCst && !g.scHolds() {
					return
				}
				s.step(g, ti, 0)
			case kPlainRead, kPlainWrite:
				if !s.touch(g, ti, o) {
					return
				}
			case kFail:
				s.bad(g, "%s: %s", s.p.Threads[ti].Name, o.text)
				return
			default:
				continue
			}
			more = true
			break
		}
	}
	if !s.fresh(g) {
		return
	}
	open, moved, asleep := false, false, -1
	for ti := range g.threads {
		o := &g.threads[ti].node.op
		if o.kind == kEnd {
			continue
		}
		if s.read(g, ti, o) {
			moved = true
		} else if o.asleep {
			asleep = ti
		} else {
			open = true
		}
		if s.result.Bad != nil {
			return
		}
	}
	switch {
	case moved:
	case open:
		s.result.LeftOut++
	case asleep >= 0:
		s.bad(g, "%s sleeps for ever: %s", s.p.Threads[asleep].Name, g.threads[asleep].node.op.text)
	default:
		s.end(g)
	}
}

func (s *search) step(g *graph, ti int, v uint64) {
	t := &g.threads[ti]
	t.node = t.node.then(s.p.Threads[ti].Body, v)
}

// write adds a store at every place of its word's order where it can stand.
func (s *search) write(g *graph, ti int, o *op) {
	loc := s.word(g, o.loc, false)
	floor := g.floor(&g.threads[ti], loc)
	for at := len(g.order[loc]) - 1; at >= floor; at-- {
		if g.taken(loc, at) {
			continue
		}
		h := g
		if at > floor {
			h = g.clone()
		}
		id := h.add(ti, event{order: o.order, loc: loc, writes: true, from: -1, value: o.value})
		h.insert(id, at)
		if h.scHolds() {
			s.step(h, ti, 0)
			s.run(h)
		}
	}
}

// read adds a load or an update with every source it can have, and reports whether there is one that it can go on with.
func (s *search) read(g *graph, ti int, o *op) bool {
	loc := s.word(g, o.loc, false)
	can := false
	for at := len(g.order[loc]) - 1; at >= g.floor(&g.threads[ti], loc); at-- {
		seen := g.value(s.p, loc, at)
		if o.until != nil && !o.until(seen) {
			continue
		}
		e := event{order: o.order, loc: loc, reads: true, from: -1, seen: seen}
		if at >= 0 {
			e.from = g.order[loc][at]
		}
		if o.kind == kUpdate {
			if e.value, e.writes = o.next(seen); !e.writes {
				e.order = o.fails
			} else if g.taken(loc, at) {
				continue
			}
		}
		h := g.clone()
		id := h.add(ti, e)
		if e.writes {
			h.insert(id, at)
		}
		if !h.scHolds() {
			continue
		}
		can = true
		s.step(h, ti, seen)
		s.run(h)
		if s.result.Bad != nil {
			return true
		}
	}
	return can
}

// touch adds a plain access. False: it is a race.
func (s *search) touch(g *graph, ti int, o *op) bool {
	loc := s.word(g, o.loc, true)
	w, t := &g.plain[loc], &g.threads[ti]
	e := event{loc: loc, plain: true, from: -1}
	if o.kind == kPlainWrite {
		e.writes, e.value = true, o.value
	} else {
		e.reads, e.seen = true, w.value
	}
	other := -1
	if w.write >= 0 && !t.before.has(w.write) {
		other = w.write
	}
	if e.writes {
		for _, r := range w.reads {
			if !t.before.has(r) {
				other = r
			}
		}
	}
	id := g.add(ti, e)
	if other >= 0 {
		s.bad(g, "race on %s: %s and %s", o.loc, s.name(g, other), s.name(g, id))
		return false
	}
	if e.writes {
		*w = plain{write: id, value: o.value}
	} else {
		w.reads = append(w.reads, id)
	}
	s.step(g, ti, e.seen)
	return true
}

func (s *search) end(g *graph) {
	s.result.Executions++
	if s.p.Final == nil && s.finals == nil {
		return
	}
	f := &Final{Words: make(map[string]uint64), Notes: make(map[string]uint64)}
	for i, word := range s.p.words {
		if i >= len(g.order) {
			break
		}
		if s.p.plain[i] {
			f.Words[word] = g.plain[i].value
		} else {
			f.Words[word] = g.value(s.p, i, len(g.order[i])-1)
		}
	}
	for ti := range g.threads {
		for k, v := range g.threads[ti].node.notes {
			f.Notes[k] = v
		}
	}
	if s.finals != nil {
		s.finals(f)
	}
	if s.p.Final == nil {
		return
	}
	if err := s.p.Final(f); err != nil {
		s.bad(g, "%v", err)
	}
}

// fresh notes an execution so far and reports that it is a new one. What makes it one is where the threads stand, what each read
// reads, and the order of each word's writes; the order in which the events were added is not part of it.
func (s *search) fresh(g *graph) bool {
	b := s.scratch[:0]
	id := func(e int) {
		if e < 0 {
			b = append(b, 0xFF)
			return
		}
		b = append(b, byte(g.events[e].thread), byte(g.events[e].nth))
	}
	for ti := range g.threads {
		b = append(b, 0xFE, byte(g.threads[ti].events))
		for e := range g.events {
			if f := &g.events[e]; f.thread == ti && f.reads && !f.plain {
				id(f.from)
			}
		}
	}
	for i := range g.order {
		if len(g.order[i]) == 0 {
			continue
		}
		// Which number a word has depends on the thread that came to it first, but it keeps it for the whole search.
		b = append(b, 0xFD, byte(i))
		for _, w := range g.order[i] {
			id(w)
		}
	}
	s.scratch = b
	sum := sha256.Sum256(b)
	key := [16]byte(sum[:16])
	if _, ok := s.seen[key]; ok {
		return false
	}
	s.seen[key] = struct{}{}
	if s.result.Graphs++; s.result.Graphs > s.limit {
		panic(fmt.Sprintf("weakmem: %s: more than %d executions", s.p.Name, s.limit))
	}
	return true
}

func (s *search) name(g *graph, e int) string {
	ev := &g.events[e]
	return fmt.Sprintf("%s.%d", s.p.Threads[ev.thread].Name, ev.nth)
}

// trace writes the events in the order in which they were added.
func (s *search) trace(g *graph) string {
	var b strings.Builder
	for i := range g.events {
		e := &g.events[i]
		fmt.Fprintf(&b, "  %-14s ", s.name(g, i))
		source := "the start"
		if e.from >= 0 {
			source = s.name(g, e.from)
		}
		switch {
		case e.loc < 0:
			fmt.Fprintf(&b, "fence %s", e.order)
		case e.plain && e.writes:
			fmt.Fprintf(&b, "%s = %d", s.p.words[e.loc], e.value)
		case e.plain:
			fmt.Fprintf(&b, "%s is %d", s.p.words[e.loc], e.seen)
		case e.reads && e.writes:
			fmt.Fprintf(&b, "%s: %d, of %s, becomes %d (%s)", s.p.words[e.loc], e.seen, source, e.value, e.order)
		case e.reads:
			fmt.Fprintf(&b, "%s is %d, of %s (%s)", s.p.words[e.loc], e.seen, source, e.order)
		default:
			fmt.Fprintf(&b, "%s := %d (%s)", s.p.words[e.loc], e.value, e.order)
			if o := g.order[e.loc]; slices.Index(o, i) < len(o)-1 {
				b.WriteString(", not the word's last")
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}
