package sim

import (
	"fmt"
	"time"
)

// settle takes all faults away: everything must come to its end.
func (w *World) settle() {
	w.quiet = true
	w.fates, w.readFate = nil, nil
	calm := &w.s.Link // what a link is from now on, also one that a SetLink gives back
	calm.Loss, calm.Dup, calm.Reorder, calm.ReadFail = 0, 0, 0, 0
	w.net.SetDefault(linkOf(calm))
	longest := time.Duration(0)
	for _, p := range w.places {
		longest = max(longest, p.lease())
		p.answers = Well
		p.pass = min(p.pass, 200*time.Millisecond)
		for _, o := range w.places {
			if w.cuts[[2]string{p.spec.ID, o.spec.ID}] > 0 {
				w.cuts[[2]string{p.spec.ID, o.spec.ID}] = 0
				w.eachPair(p, o, func(from, to string) { w.net.Partition(from, to, false) })
			}
			if p != o {
				w.eachPair(p, o, func(from, to string) { w.net.SetLink(from, to, linkOf(&w.s.Link)) })
			}
		}
		w.calm(p)
	}
	span := w.s.Settle
	if span == 0 {
		span = 40 * longest
	}
	begin := w.now
	for end := w.now.Add(span); w.now < end; {
		for _, p := range w.places {
			if !p.life.dead {
				p.life.app.endAll(w.now.Sub(begin) > 8*longest)
			}
		}
		w.runUntil(w.now.Add(time.Second))
		if w.over {
			return
		}
		if w.idle() == "" {
			break
		}
	}
	if w.idle() == "" {
		w.proveAlive(longest)
		for end := w.now.Add(8 * longest); w.now < end && !w.over && w.idle() != ""; {
			w.runUntil(w.now.Add(time.Second))
		}
	}
	if w.over {
		return
	}
	for _, p := range w.places {
		if what := p.life.left(); what != "" {
			w.broke(Leak, p.spec.ID, "", "%v after the last fault: %s", w.now.Sub(begin), what)
		}
		if a := p.life.app; !p.life.dead && p.life.stock == nil {
			for _, b := range a.free {
				a.whole(b, "was still free at the end")
			}
		}
	}
}

// calm lets what stands still at a place go on.
func (w *World) calm(p *place) {
	l := p.life
	for _, name := range p.agentNames() {
		w.net.HoldReads(name, false)
	}
	if l.dead {
		return
	}
	for _, c := range l.contexts() {
		c.stall = 0
		if c.stopped > 0 && !c.gone {
			c.stopped = 1
			l.resume([]*steps{c})
		}
		c.stopped = 0
		c.wake()
	}
	for _, r := range l.ranks {
		r.idleLanes()
		if r.blob == nil && !r.gone && !r.poisoned {
			_ = r.register()
		}
	}
}

// idle tells what is still open anywhere; "": nothing is.
func (w *World) idle() string {
	for _, p := range w.places {
		if what := p.life.left(); what != "" {
			return what
		}
	}
	return ""
}

// left tells what is still open in an engine.
func (l *life) left() string {
	switch {
	case l.dead:
		return ""
	case l.stock != nil:
		if n := len(l.stock.held) + len(l.stock.reads) + len(l.stock.pending); n > 0 {
			return fmt.Sprintf("stock: %d leases and reads", n)
		}
		return ""
	}
	if what := l.app.done(); what != "" {
		return what
	}
	if h := l.host; h != nil && !h.poisoned {
		if n := h.group.Alive(); n != 0 && !(l.hurt() && n == h.group.Gauges().BlocksHeld) {
			return fmt.Sprintf("host: %d alive: %+v", n, h.group.Gauges())
		}
	}
	for _, r := range l.ranks {
		if r.gone || r.poisoned {
			continue
		}
		if n := r.leases.Held() + r.leases.Ending() + r.leases.Expected(); n != 0 {
			return fmt.Sprintf("rank %d: %d leases", r.n, n)
		}
		g := r.tracker.Gauges()
		if g.Tracked+g.Remotes+g.Owed+g.Reading+g.Waiting+g.BlocksHeld != 0 {
			return fmt.Sprintf("rank %d: tracker %+v", r.n, g)
		}
		if n := r.reads.Open(); n != 0 && r.reads.NeedsStep() {
			return fmt.Sprintf("rank %d: %d transfers", r.n, n)
		}
	}
	return ""
}
