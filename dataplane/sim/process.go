package sim

import (
	"cmp"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// process is what befalls processes and their memory.
func (l *life) process(a *Action) error {
	w := l.w
	some := l.chosen(a.Rank)
	if len(some) == 0 {
		return fmt.Errorf("no rank %d", a.Rank)
	}
	switch a.Do {
	case SetPass:
		l.place.pass = max(a.For, time.Millisecond)
		for _, c := range some {
			c.wake()
		}
	case Stall:
		for _, c := range some {
			c.stall = max(c.stall, w.now.Add(a.For))
		}
	case Stop:
		l.stop(some)
		if a.For > 0 {
			w.after(a.For, func() { l.resume(some) })
		}
	case Suspend:
		all := l.contexts()
		l.stop(all)
		w.after(a.For, func() {
			l.place.suspended += a.For
			l.resume(all)
		})
	case Kill:
		l.kill(a.Rank)
	case Poison:
		for _, c := range some {
			switch {
			case l.stock != nil:
				return fmt.Errorf("a stock engine")
			case c.rank < 0:
				l.host.poison()
			default:
				l.ranks[c.rank].poison()
			}
		}
	case Drain:
		return l.drain()
	case Unregister, Register:
		if l.stock != nil {
			return fmt.Errorf("a stock engine")
		}
		var first error
		for _, c := range some {
			if c.rank < 0 || c.gone || c.stopped > 0 {
				continue
			}
			r := l.ranks[c.rank]
			var err error
			if a.Do == Register {
				err = r.register()
			} else if err = r.unregister(); err == nil {
				l.app.scrubbed()
			}
			first = cmp.Or(first, err)
		}
		return first
	case WireCut:
		for _, p := range l.side.peers {
			if k := p.wire; p.at == w.byID[a.Peer] && k != nil && k.up {
				owner, peer := k.owner, k.peer
				k.fall(time.Millisecond, false)
				w.after(time.Millisecond, func() { owner.closedWire(peer) })
			}
		}
	default:
		return fmt.Errorf("unknown")
	}
	return nil
}

// stop lets processes stand still.
func (l *life) stop(some []*steps) {
	for _, c := range some {
		if c.stopped++; c.stopped == 1 {
			c.turn++
			c.next = clock.Never
			l.net(c, l.w.net.Stop)
		}
	}
}

func (l *life) resume(some []*steps) {
	for _, c := range some {
		if c.stopped == 0 { // the faults are over
			continue
		}
		if c.stopped--; c.stopped == 0 && !c.gone {
			l.net(c, l.w.net.Resume)
			if l.stock != nil {
				l.stock.stale = true
			}
			c.wake()
		}
	}
}

// net does something to the agents of a context.
func (l *life) net(c *steps, do func(agent string)) {
	if l.stock != nil {
		for _, a := range l.stock.agents {
			do(a.Agent())
		}
	} else if c.rank >= 0 && l.ranks[c.rank].agent != nil {
		do(l.ranks[c.rank].agent.Agent())
	}
}

// kill ends processes as SIGKILL does. In one process with its host a rank has none of its own: its context is closed.
func (l *life) kill(rank int) {
	switch {
	case l.stock != nil:
		l.stock.killed()
		l.dead = true
		return
	case rank >= 0 && l.host != nil:
		if rank < len(l.ranks) {
			l.loseRank(l.ranks[rank])
		}
		return
	case rank == HostOnly && l.host != nil && l.kind() == stream.KindDelta: // its ranks live on, and hear of it from the engine
		l.host.end()
		l.dead = true
		l.side.died()
		for _, r := range l.ranks {
			l.w.after(time.Second, func() {
				if end, ok := r.carrier.(stream.Delta); ok && !r.gone {
					end.Lose()
					r.wake()
				}
			})
		}
		l.w.after(2*l.place.lease(), func() { // and end with it
			for _, r := range l.ranks {
				r.kill()
			}
		})
		return
	}
	l.dead = true
	for _, r := range l.ranks {
		r.kill()
	}
	if l.host != nil {
		l.host.end()
	}
	l.side.died()
}

// killed ends a stock engine's process.
func (s *stockEngine) killed() {
	s.steps.end()
	for _, a := range s.agents {
		s.w.net.Kill(a.Agent())
	}
}

// loseRank ends a rank's process, or closes its context where it has no process of its own.
func (l *life) loseRank(r *rankCtx) {
	if r.gone {
		return
	}
	if l.kind() == stream.KindDelta {
		r.kill()
		l.w.after(time.Second, func() {
			if l.host != nil && !l.host.gone {
				l.host.streams.End(r.n).(stream.Delta).Lose() // as the engine sees it
				l.host.wake()
			}
		})
		return
	}
	r.leases.FenceAll()
	r.link.Closed()
	_ = r.carrier.Close()
	r.kill()
	l.host.wake()
}

// drain is kvl_drain.
func (l *life) drain() error {
	if l.stock != nil {
		return fmt.Errorf("a stock engine")
	}
	l.drains, l.asks = true, true
	if h := l.host; h != nil {
		h.mem.Control.Draining = 1
		if !h.poisoned {
			h.group.Drain(l.place.lease(), l.place.local(l.w.now))
		}
		h.wake()
	} else if r := l.ranks[0]; !r.poisoned {
		r.mem.Control.Draining = 1
		r.leases.Drain()
		r.tracker.Drain(r.now())
		r.wake()
	}
	l.side.leaveWires()
	return nil
}

// drained reports that a drain has come to its end: the engine asks until it has.
func (l *life) drained() bool {
	switch {
	case !l.asks:
		return false
	case l.host != nil:
		return !l.host.poisoned && l.host.group.DrainLeft() == 0
	}
	r := l.ranks[0]
	return !r.poisoned && r.leases.Held()+r.leases.Expected() == 0 && r.tracker.DrainLeft() == 0
}

// carrierAct is what befalls the messages between a host and its ranks.
func (l *life) carrierAct(a *Action) error {
	if l.host == nil || a.Rank >= len(l.ranks) {
		return fmt.Errorf("it has no such rank")
	}
	for _, r := range l.ranks {
		if a.Rank >= 0 && int(r.n) != a.Rank {
			continue
		}
		lane := &r.lanes[toRank]
		if a.ToHost {
			lane = &r.lanes[toHost]
		}
		n := max(a.N, 1)
		switch a.Do {
		case LoseDelta:
			lane.lose += n
		case DoubleDelta:
			lane.double += n
		case SwapDelta:
			lane.swap += n
		case LoseRank:
			l.loseRank(r)
		}
	}
	return nil
}
