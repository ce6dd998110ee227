package sim

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/wire"
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
	if a.As != "" {
		return a.As
	}
	return a.Req
}

func (w *World) do(a *Action) error {
	p := w.byID[a.Engine]
	l := p.life
	switch a.Do {
	case Start:
		if !l.dead {
			return fmt.Errorf("it runs")
		}
		id := a.ID
		if id == "" {
			id = p.spec.ID
		}
		if err := p.start(id); err != nil {
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
	id := a.ID
	if id == "" {
		id = a.Req
	}
	n := a.Blocks
	switch a.Do {
	case Expect:
		if l.stock != nil {
			return nil
		}
		return app.expect(a.Req, id)
	case Grant:
		if n == 0 {
			n = 4
		}
		if l.stock != nil {
			return l.stock.grant(a.Req, id, n)
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
			g.revoke = true
			return app.host.Revoke(g.handle)
		}
		err := app.host.Cancel(g.handle)
		if err == nil {
			g.cancel = true
			if !g.granted {
				g.ended = true // nothing is heard of a cancelled expectation
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
			if err != nil {
				return err
			}
		}
	case WireCut:
		for _, p := range l.side.peers {
			if k := p.wire; p.at == w.byID[a.Peer] && k != nil && k.up {
				owner, peer := k.owner, k.peer
				k.fall(time.Millisecond)
				w.after(time.Millisecond, func() { owner.closedWire(peer, true) })
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
			c.next = never
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
		l.stock.end2()
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

// end2 ends a stock engine's process.
func (s *stockEngine) end2() {
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
	l.drains = true
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

// cut reports that a partition is in force between two places.
func (w *World) cut(a, b *place) bool { return w.cuts[[2]string{a.spec.ID, b.spec.ID}] > 0 }

// eachPair visits the agents of two places that live.
func (w *World) eachPair(a, b *place, rank, toRank int, do func(from, to string)) {
	for i, from := range a.agentNames() {
		for j, to := range b.agentNames() {
			if (rank < 0 || rank == i) && (toRank < 0 || toRank == j) {
				do(from, to)
			}
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
		w.eachPair(p, o, -1, -1, func(from, to string) { w.net.SetLink(from, to, linkOf(link)) })
		if a.For > 0 {
			w.after(a.For, func() {
				w.eachPair(p, o, -1, -1, func(from, to string) { w.net.SetLink(from, to, linkOf(&w.s.Link)) })
			})
		}
	case Reset:
		w.eachPair(p, o, -1, -1, w.net.Reset)
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
	w.eachPair(p, o, -1, -1, func(from, to string) { w.net.Partition(from, to, on) })
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

// message puts one into the network by hand.
func (w *World) message(p *place, a *Action) error {
	to := w.byID[a.Peer]
	if to.life == nil || to.life.dead {
		return fmt.Errorf("nobody is there")
	}
	for n, r := range to.life.ranks {
		if a.ToRank >= 0 && a.ToRank != n || r.agent == nil {
			continue
		}
		msgs, err := w.messages(p, r, a)
		if err != nil {
			return err
		}
		for range max(a.N, 1) {
			for _, m := range msgs {
				if err := w.sendRaw(p, r, max(a.Rank, 0), m); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *World) messages(p *place, r *rankCtx, a *Action) (msgs [][]byte, err error) {
	switch a.Do {
	case Bytes:
		return [][]byte{[]byte(a.Data)}, nil
	case Heartbeat:
		msg := []byte("HB:")
		for i, id := range a.Reqs {
			if i > 0 {
				msg = append(msg, ',')
			}
			msg = append(msg, w.idOf(id)...)
		}
		return [][]byte{msg}, nil
	case Completion:
		for _, id := range a.Reqs {
			msgs = append(msgs, fmt.Appendf(nil, "%s:%d", w.idOf(id), max(a.Readers, 1)))
		}
		return msgs, nil
	}
	l := p.life
	h := wire.Header{Engine: wire.EngineHash([]byte(l.id)), Epoch: l.era.epoch, Rank: uint32(max(a.Rank, 0)), Count: uint32(len(a.Reqs))}
	switch a.Do {
	case Renew:
		h.Kind = wire.Renew
	case Complete:
		h.Kind, h.Readers = wire.Complete, uint16(max(a.Readers, 1))
	case Release:
		h.Kind = wire.Release
	case Leaving:
		h.Kind, h.Count = wire.Leaving, 0
	}
	msg := wire.AppendHeader(nil, &h)
	if a.Do != Leaving {
		for _, name := range a.Reqs {
			g := w.grants[name]
			if g == nil {
				return nil, fmt.Errorf("no grant %q", name)
			}
			msg = wire.AppendEntry(msg, g.handle.Slot(), g.handle.Use(), lease.Key(r.secret, g.handle.Slot(), g.handle.Use()))
		}
	}
	return [][]byte{msg}, nil
}

// idOf is the id of a grant on the wire; a name that is none stands for itself.
func (w *World) idOf(name string) string {
	if g := w.grants[name]; g != nil {
		return g.id
	}
	return name
}

// sendRaw sends from an agent that only these messages have: of each place and rank one, so that a receiver tells them apart.
func (w *World) sendRaw(p *place, to *rankCtx, rank int, msg []byte) error {
	name := fmt.Sprintf("raw.%s.%d", p.spec.ID, rank)
	a := w.raw[name]
	if a == nil {
		var err error
		if a, err = w.net.Agent(name, simnet.AgentConfig{}); err != nil {
			return err
		}
		if w.raw == nil {
			w.raw = map[string]*simnet.Agent{}
		}
		w.raw[name] = a
		w.agents[name] = &agentOf{place: p, rank: rank}
	}
	blob, err := to.agent.Metadata()
	if err != nil {
		return err
	}
	peer, err := a.Load(blob)
	if err != nil {
		return err
	}
	defer a.Drop(peer)
	return a.Send(peer, msg)
}

// messageText is a notification for the log.
func messageText(m *simnet.Sent) string {
	what := fmt.Sprintf("%d bytes", len(m.Body))
	if h, _, st := wire.ParseNative(m.Body); st == wire.OK {
		kind := [...]string{wire.Hello: "hello", wire.Renew: "renew", wire.Complete: "complete", wire.Release: "release", wire.Leaving: "leaving"}[h.Kind]
		what = fmt.Sprintf("%s of rank %d, %d entries", kind, h.Rank, h.Count)
	} else if s, st := wire.ParseStock(m.Body); st == wire.OK {
		what = [...]string{wire.Heartbeat: "heartbeat", wire.Completion: "completion", wire.PushReg: "registration"}[s.Kind]
		what += fmt.Sprintf(" %.60q", m.Body)
	}
	if m.Attached {
		what += ", with a read"
	}
	return what
}
