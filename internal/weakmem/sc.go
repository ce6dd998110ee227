package weakmem

// relations are those that psc is made of, by event: what comes behind it.
type relations struct {
	behind []set // happens-before
	eco    []set // mo, rf, fr and what follows from them: the orders of each word
	scb    []set
}

func (g *graph) relations() relations {
	n := len(g.events)
	r := relations{behind: make([]set, n), eco: make([]set, n), scb: make([]set, n)}
	for b := range n {
		g.events[b].before.each(func(a int) { r.behind[a].add(b) })
	}
	for a := range n {
		e := &g.events[a]
		if e.loc < 0 || e.plain {
			continue
		}
		from := g.place(e.from)
		if e.writes {
			from = g.place(a)
		}
		for i, w := range g.order[e.loc] {
			if i > from {
				r.scb[a].add(w) // mo or fr
				r.eco[a].add(w)
			}
		}
		for b := range n {
			f := &g.events[b]
			if f.loc != e.loc || f.plain || !f.reads || b == a {
				continue
			}
			if at := g.place(f.from); at > from || at == from && e.writes {
				r.eco[a].add(b)
			}
		}
	}
	same := func(a, b int) bool { return g.events[a].loc >= 0 && g.events[a].loc == g.events[b].loc }
	next := make([]set, n) // program order to another word
	for a := range n {
		for b := a + 1; b < n; b++ {
			if g.events[a].thread == g.events[b].thread {
				r.scb[a].add(b)
				if !same(a, b) {
					next[a].add(b)
				}
			}
		}
	}
	for a := range n {
		var reach set
		next[a].each(func(x int) {
			r.behind[x].each(func(y int) { reach.join(&next[y]) })
		})
		r.scb[a].join(&reach)
		r.behind[a].each(func(b int) {
			if same(a, b) {
				r.scb[a].add(b)
			}
		})
	}
	return r
}

// scHolds reports that sequentially consistent accesses and fences have one order: psc of RC11 has no cycle.
func (g *graph) scHolds() bool {
	count := 0
	g.sc.each(func(int) { count++ })
	if count < 2 {
		return true
	}
	r := g.relations()
	edges := make(map[int]*set, count)
	g.sc.each(func(a int) {
		var from, mid, to set
		from.add(a)
		if g.fences.has(a) {
			from.join(&r.behind[a])
		}
		from.each(func(x int) { mid.join(&r.scb[x]) })
		mid.each(func(y int) {
			if g.sc.has(y) {
				to.add(y)
			}
			g.fences.each(func(f int) {
				if y == f || r.behind[y].has(f) {
					to.add(f)
				}
			})
		})
		if g.fences.has(a) {
			g.fences.each(func(f int) {
				if f != a && r.behind[a].has(f) {
					to.add(f)
				}
			})
			r.behind[a].each(func(x int) {
				r.eco[x].each(func(y int) {
					g.fences.each(func(f int) {
						if r.behind[y].has(f) {
							to.add(f)
						}
					})
				})
			})
		}
		edges[a] = &to
	})
	return acyclic(edges)
}

func acyclic(edges map[int]*set) bool {
	state := make(map[int]uint8, len(edges)) // 1: on the way, 2: done
	var visit func(a int) bool
	visit = func(a int) bool {
		state[a] = 1
		ok := true
		edges[a].each(func(b int) {
			if ok && (state[b] == 1 || state[b] == 0 && !visit(b)) {
				ok = false
			}
		})
		state[a] = 2
		return ok
	}
	for a := range edges {
		if state[a] == 0 && !visit(a) {
			return false
		}
	}
	return true
}
