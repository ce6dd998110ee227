package sim

import (
	"cmp"
	"fmt"
)

// act carries an action out. One that means nothing now does nothing, and the log says so: schedules are drawn up front, and made
// smaller.
func (w *World) act(a *Action) {
	if w.quiet {
		return
	}
	what := string(a.Do)
	if err := w.do(a); err != nil {
		what += " refused: " + err.Error()
	}
	rank := -1
	if a.Rank > 0 {
		rank = a.Rank
	}
	w.log(Entry{Kind: Acted, Engine: a.Engine, Rank: rank, Peer: a.Peer, Req: a.request(), What: what})
}

// request is the name under which a reader knows what an action is about.
func (a *Action) request() string {
	return cmp.Or(a.As, a.Req)
}

func (w *World) do(a *Action) error {
	p := w.byID[a.Engine]
	l := p.life
	switch a.Do {
	case Start:
		if !l.dead {
			return fmt.Errorf("it runs")
		}
		if err := p.start(cmp.Or(a.ID, p.spec.ID)); err != nil {
			return err
		}
		for _, k := range p.spec.Known {
			p.life.know(w.byID[k])
		}
		return nil
	case Partition, SetLink, Reset, Lose, Double, Hold, Handshake, Clock:
		return w.network(p, a)
	}
	if l.dead {
		return fmt.Errorf("it is dead")
	}
	switch a.Do {
	case Expect, Grant, Cancel, Revoke, Pressure, Track, Read, Untrack, Reject:
		if c := l.contexts()[0]; c.stopped > 0 {
			return fmt.Errorf("its process stands still")
		}
		return l.hook(a)
	case Heartbeat, Completion, Renew, Complete, Release, Leaving, Bytes:
		return w.message(p, a)
	case FailRead, HoldRead:
		return w.readsOf(p, a)
	case LoseDelta, DoubleDelta, SwapDelta, LoseRank:
		return l.carrierAct(a)
	case AddEngine:
		l.know(w.byID[a.Peer])
		return nil
	case RemoveEngine:
		if o := w.byID[a.Peer].life; o != nil && l.stock == nil {
			return l.side.remove(o.id)
		}
		return fmt.Errorf("nothing to remove")
	}
	return l.process(a)
}

// hook is what the engine says to its context.
func (l *life) hook(a *Action) error {
	app := l.app
	id := cmp.Or(a.ID, a.Req)
	n := a.Blocks
	switch a.Do {
	case Expect:
		if l.stock != nil {
			return nil
		}
		return app.expect(a.Req, id)
	case Grant:
		n = cmp.Or(n, 4)
		if l.stock != nil {
			return l.stock.grant(a.Req, id, n, a.For, a.Fixed)
		}
		return app.grant(a.Req, id, n, a.For, a.Fixed)
	case Pressure:
		if l.stock != nil {
			return nil
		}
		return app.host.Pressure(n)
	case Track, Reject:
		g := l.w.grants[a.Req]
		if g == nil || !g.granted {
			return fmt.Errorf("no grant of this name")
		}
		switch {
		case g.life == l:
			return fmt.Errorf("its own grant")
		case l.stock != nil && a.Do == Track:
			return l.stock.track(a.request(), g)
		case l.stock != nil:
			l.stock.tell(&request{of: g})
			return nil
		case a.Do == Track:
			return app.track(a.request(), g)
		}
		return app.reject(g)
	case Cancel, Revoke:
		g := l.w.grants[a.Req]
		if g == nil || g.life != l || g.ended || l.stock != nil {
			return fmt.Errorf("nothing of this name is held")
		}
		if a.Do == Revoke {
			err := app.host.Revoke(g.handle)
			g.revoke = g.revoke || err == nil
			return err
		}
		err := app.host.Cancel(g.handle)
		if err == nil {
			g.cancel = true
			if !g.granted {
				g.ended, g.back = true, l.w.now // nothing is heard of a cancelled expectation
			}
		}
		return err
	}
	q := l.w.requests[l.place.spec.ID+"/"+a.request()]
	if q == nil || q.life != l {
		return fmt.Errorf("nothing of this name is tracked")
	}
	if a.Do == Untrack {
		if l.stock != nil {
			return l.stock.untrack(q)
		}
		return app.untrack(q)
	}
	if a.All {
		n = uint32(len(q.of.blocks)) - min(a.From, uint32(len(q.of.blocks)))
	}
	if l.stock != nil {
		return l.stock.read(q, a.From, n)
	}
	return app.read(q, a.From, n)
}
