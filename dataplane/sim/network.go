package sim

import (
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
)

// cut reports that a partition is in force between two places.
func (w *World) cut(a, b *place) bool { return w.cuts[[2]string{a.spec.ID, b.spec.ID}] > 0 }

// eachPair visits the agents of two places that live.
func (w *World) eachPair(a, b *place, do func(from, to string)) {
	for _, from := range a.agentNames() {
		for _, to := range b.agentNames() {
			do(from, to)
		}
	}
}

// agentNames are those of the present life, in order of rank; and that of messages made by hand.
func (p *place) agentNames() (all []string) {
	if p.life == nil {
		return nil
	}
	if s := p.life.stock; s != nil {
		for _, a := range s.agents {
			all = append(all, a.Agent())
		}
	}
	for _, r := range p.life.ranks {
		if r.agent != nil {
			all = append(all, r.agent.Agent())
		} else {
			all = append(all, "-")
		}
	}
	return all
}

// network is what befalls the network between two engines.
func (w *World) network(p *place, a *Action) error {
	o := w.byID[a.Peer]
	switch a.Do {
	case Handshake:
		p.answers = a.How
		if a.For > 0 {
			w.after(a.For, func() { p.answers = Well })
		}
	case Partition:
		w.partition(p, o, true)
		if a.For > 0 {
			w.after(a.For, func() {
				if w.cut(p, o) {
					w.partition(p, o, false)
				}
			})
		}
	case SetLink:
		link := a.Link
		if link == nil {
			link = &w.s.Link
		}
		w.eachPair(p, o, func(from, to string) { w.net.SetLink(from, to, linkOf(link)) })
		if a.For > 0 {
			w.after(a.For, func() {
				w.eachPair(p, o, func(from, to string) { w.net.SetLink(from, to, linkOf(&w.s.Link)) })
			})
		}
	case Reset:
		w.eachPair(p, o, w.net.Reset)
	case Lose, Double, Hold:
		f := &fate{from: p.spec.ID, to: o.spec.ID, rank: a.Rank, toRank: a.ToRank, n: max(a.N, 1)}
		switch a.Do {
		case Lose:
			f.what.Lose = true
		case Double:
			f.what.Copies = 1
		case Hold:
			f.what.Delay = a.For
		}
		w.fates = append(w.fates, f)
	}
	return nil
}

func (w *World) partition(p, o *place, on bool) {
	n := 1
	if !on {
		n = -1
	}
	w.cuts[[2]string{p.spec.ID, o.spec.ID}] += n
	w.cuts[[2]string{o.spec.ID, p.spec.ID}] += n
	w.applyCuts(p, o)
}

// applyCuts tells the network of the agents that live now.
func (w *World) applyCuts(p, o *place) {
	on := w.cut(p, o)
	w.eachPair(p, o, func(from, to string) { w.net.Partition(from, to, on) })
}

// fate is what becomes of the next n notifications between two engines.
type fate struct {
	from, to     string
	rank, toRank int // -1: all
	n            int
	what         simnet.Fate
}

// fateOf is what becomes of a notification.
func (w *World) fateOf(m *simnet.Sent) simnet.Fate {
	from, to := w.agents[m.From], w.agents[m.To]
	if from == nil || to == nil {
		return simnet.Fate{}
	}
	if w.o.Log {
		w.log(Entry{Kind: Sent, Engine: from.place.spec.ID, Rank: from.rank, Peer: to.place.spec.ID, What: messageText(m)})
	}
	for i, f := range w.fates {
		if f.from != from.place.spec.ID || f.to != to.place.spec.ID || f.rank >= 0 && f.rank != from.rank || f.toRank >= 0 && f.toRank != to.rank {
			continue
		}
		if f.n--; f.n == 0 {
			w.fates = append(w.fates[:i:i], w.fates[i+1:]...)
		}
		return f.what
	}
	return simnet.Fate{}
}

// readFate is what becomes of the next n reads of an engine.
type readFate struct {
	of   string
	rank int // -1: any
	n    int
	what simnet.ReadFate
}

func (w *World) fateOfRead(m *simnet.Posted) simnet.ReadFate {
	from := w.agents[m.From]
	if len(w.readFate) == 0 || from == nil {
		return simnet.ReadFate{}
	}
	for i, f := range w.readFate {
		if f.of != from.place.spec.ID || f.rank >= 0 && f.rank != from.rank {
			continue
		}
		if f.n--; f.n == 0 {
			w.readFate = append(w.readFate[:i:i], w.readFate[i+1:]...)
		}
		return f.what
	}
	return simnet.ReadFate{}
}

// readsOf is what befalls the reads of an engine.
func (w *World) readsOf(p *place, a *Action) error {
	if a.Do == FailRead {
		w.readFate = append(w.readFate, &readFate{of: p.spec.ID, rank: a.Rank, n: max(a.N, 1), what: simnet.ReadFate{Fail: true, After: 0.5, Delay: a.For}})
		return nil
	}
	for i, name := range p.agentNames() {
		if a.Rank >= 0 && a.Rank != i {
			continue
		}
		w.net.HoldReads(name, true)
		if a.For > 0 {
			w.after(a.For, func() { w.net.HoldReads(name, false) })
		}
	}
	return nil
}
