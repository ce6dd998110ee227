package simnet

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func timeOf[T int | int64 | float64](t T) time.Duration { return time.Duration(t) }

// SetLink changes how the connections from one agent name to another behave from now on.
func (n *Net) SetLink(from, to string, l Link) {
	pair := [2]int32{n.nameOf(from), n.nameOf(to)}
	n.links[pair] = newLink(l)
	n.eachConn(pair, func(_ int32, c *conn) { c.link = n.links[pair] })
}

// SetDefault changes how connections behave that are made from now on between agents that no SetLink has named.
func (n *Net) SetDefault(l Link) { n.link = newLink(l) }

// Link is what the connections from one name to another are like.
func (n *Net) Link(from, to string) Link { return *n.linkOf(n.nameOf(from), n.nameOf(to)) }

// Partition separates two agents, or joins them again. Notifications and reads wait meanwhile, as retransmission does it, and
// sends succeed. A connection for which something has waited for Link.Break is lost: ErrPeer until Drop and Load.
func (n *Net) Partition(a, b string, on bool) {
	x, y := n.nameOf(a), n.nameOf(b)
	for _, pair := range [2][2]int32{{x, y}, {y, x}} {
		if on {
			n.cuts[pair] = true
		} else {
			delete(n.cuts, pair)
		}
		n.eachConn(pair, func(_ int32, c *conn) { n.cut(c, on) })
	}
}

func (n *Net) cut(c *conn, on bool) {
	if c.cut == on {
		return
	}
	c.cut = on
	if n.silent(c) {
		return
	}
	c.event = 0
	for c.stalled != none {
		mi := c.stalled
		m := n.msgs.at(mi)
		c.stalled, m.next = m.next, none
		n.heap.Push(n.now, event{mi, evMessage})
	}
	n.unpark(&c.parked)
}

// eachConn visits the connections between two names.
func (n *Net) eachConn(pair [2]int32, visit func(int32, *conn)) {
	for i := range n.conns.items {
		c := &n.conns.items[i]
		if c.live && n.agents[c.from].name == pair[0] && c.toName == pair[1] {
			visit(int32(i), c)
		}
	}
}

// Reset breaks the connection from one agent to another while both live: sends and reads of from fail until Drop and Load.
// Part of what was on its way is lost; of the reads that fail half go on landing.
func (n *Net) Reset(from, to string) {
	n.eachConn([2]int32{n.nameOf(from), n.nameOf(to)}, func(i int32, c *conn) {
		if c.lost {
			return
		}
		n.lose(c)
		n.failReads(i, c, func(r *read) bool { return r.fate.of(drawGo)&1 == 0 })
	})
}

// FailReads reports an error of every read of from at to that has not ended, while its pieces go on landing.
func (n *Net) FailReads(from, to string) {
	n.eachConn([2]int32{n.nameOf(from), n.nameOf(to)}, func(i int32, c *conn) {
		n.failReads(i, c, func(*read) bool { return true })
	})
}

func (n *Net) failReads(i int32, c *conn, goesOn func(*read) bool) {
	for k := range n.reads.items {
		r := &n.reads.items[k]
		if !r.live || r.conn != i || r.status != transport.Pending || r.phase == landed {
			continue
		}
		n.takeOut(int32(k), r, c)
		n.fail(int32(k), r, c, goesOn(r))
	}
}

// takeOut takes a read from the list in which it waits, if it does.
func (n *Net) takeOut(i int32, r *read, c *conn) {
	if r.event != 0 {
		r.event = 0
		return
	}
	lists := []*int32{&c.parked, &n.agents[r.reader].held}
	if c.to != none {
		lists = append(lists, &n.agents[c.to].parked)
	}
	for _, at := range lists {
		for ; *at != none; at = &n.reads.at(*at).next {
			if *at == i {
				*at, r.next = r.next, none
				return
			}
		}
	}
}

// HoldReads lets the reads of an agent go no further, or lets them go on.
func (n *Net) HoldReads(agent string, on bool) {
	if a := n.living(agent); a != nil {
		a.hold = on
		if !on {
			n.unpark(&a.held)
		}
	}
}

// Stop makes an agent a stopped process: sends to it succeed and queue, reads of it wait, except over RDMA. Its own reads go on
// landing. Nothing wakes it and its polls bring nothing.
func (n *Net) Stop(agent string) {
	if a := n.living(agent); a != nil {
		a.stopped = true
	}
}

// Resume lets a stopped agent go on.
func (n *Net) Resume(agent string) {
	a := n.living(agent)
	if a == nil || !a.stopped {
		return
	}
	a.stopped = false
	n.unpark(&a.parked)
	a.wake()
}

// Kill ends an agent as SIGKILL does. Reads of it fail within milliseconds, the first send to it still succeeds, later ones are
// ErrPeer. What it has sent arrives; nothing more lands in its memory. Another agent may take its name. Metadata of
// the killed one still loads, and nothing sent by it arrives.
func (n *Net) Kill(agent string) {
	if a := n.living(agent); a != nil {
		n.end(a, true)
	}
}

// PowerOff ends an agent without a word to anybody: its peers are told nothing, and lose their connections after Link.Break.
func (n *Net) PowerOff(agent string) {
	if a := n.living(agent); a != nil {
		a.silent = true
		n.end(a, true)
	}
}

// end takes an agent off the network. If it is killed its own reads end with it; if it only closed, failed ones go on.
func (n *Net) end(a *Agent, killed bool) {
	a.alive = false
	n.named[a.name].alive = none
	for a.first != none {
		mi := a.first
		m := n.msgs.at(mi)
		a.first = m.next
		a.queued--
		n.drop(mi, m, n.conns.at(m.conn))
	}
	for i := range n.reads.items {
		r := &n.reads.items[i]
		if !r.live {
			continue
		}
		c := n.conns.at(r.conn)
		switch {
		case r.reader == a.index:
			if killed {
				n.takeOut(int32(i), r, c)
				r.phase = ended
			}
			r.released = true
			n.tidy(int32(i), r)
		case c.to == a.index && r.phase == going:
			n.takeOut(int32(i), r, c)
			n.schedule(int32(i), r, n.now)
		}
	}
	for _, i := range a.peers {
		if i != none {
			c := n.conns.at(i)
			c.gone = true
			n.settle(i, c)
		}
	}
	a.peers, a.loaded, a.regions, a.open = nil, nil, nil, 0
}
