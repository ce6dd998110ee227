package simnet

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

type instant = clock.Instant

// message is one notification on its way or waiting to be polled.
type message struct {
	conn, body, len int32
	next            int32 // in the receiver's queue, or among those that a partition holds back
	fate            draws
}

// Send posts one notification. The first one after the peer's death still succeeds.
func (a *Agent) Send(p transport.Peer, msg []byte) error {
	if !a.alive {
		return transport.ErrClosed
	}
	i, c := a.conn(p)
	if c == nil {
		return transport.ErrInvalid
	}
	return a.net.send(i, c, msg, classMessage)
}

func (n *Net) send(i int32, c *conn, msg []byte, class uint32) error {
	if n.lost(c) {
		return transport.ErrPeer
	}
	to := n.owner(c)
	if to != nil && to.cfg.NotifsMax > 0 && to.coming+to.queued >= to.cfg.NotifsMax {
		return transport.ErrFull
	}
	n.counters.Sent++
	n.counters.SentBytes += uint64(len(msg))
	n.tell(EvSent, c, len(msg))
	if to == nil {
		n.unheard(i, c)
		n.counters.Lost++
		n.tell(EvLost, c, len(msg))
		return nil
	}
	l, d := c.link, n.fate(c, classOf(class, msg))
	lose, copies := d.chance(drawLoss, l.Loss), 0
	if d.chance(drawDup, l.Dup) {
		copies++
	}
	delay := l.Delay + d.span(drawDelay, l.Jitter)
	if n.intercept != nil {
		n.sent = Sent{From: n.text(c.from), To: n.named[to.name].text, Body: msg, Attached: class == classAttached}
		f := n.intercept(&n.sent)
		lose = lose || f.Lose
		copies += min(max(f.Copies, 0), copiesMax)
		delay += f.Delay
	}
	if !c.up {
		c.up = true
		delay += l.Connect
	}
	if lose {
		n.counters.Lost++
		n.tell(EvLost, c, len(msg))
		return nil
	}
	at := n.now.Add(delay)
	if at < c.floor {
		at = c.floor
	}
	if d.chance(drawReorder, l.Reorder) {
		n.put(i, c, to, msg, d, at.Add(d.span(drawSpread, l.Spread)))
	} else {
		c.floor = at
		n.put(i, c, to, msg, d, at)
	}
	for k := range copies {
		n.counters.Copies++
		n.put(i, c, to, msg, d, at.Add(d.span(drawCopy+uint64(k)<<32, l.Spread)))
	}
	return nil
}

// copiesMax is the number of copies that an intercept function may ask for.
const copiesMax = 16

func (n *Net) put(i int32, c *conn, to *Agent, msg []byte, d draws, at instant) {
	mi, m := n.msgs.take()
	*m = message{conn: i, body: n.bytes.put(msg), len: int32(len(msg)), next: none, fate: d}
	c.refs++
	c.sent++
	to.coming++
	n.heap.Push(at, event{mi, evMessage})
}

// owner is the agent at the other end, or nil if it is dead or was never there.
func (n *Net) owner(c *conn) *Agent {
	if c.to == none || !n.agents[c.to].alive {
		return nil
	}
	return n.agents[c.to]
}

// silent reports whether nothing at all comes back on a connection: no data, and no word that it is over.
func (n *Net) silent(c *conn) bool { return c.cut || c.to != none && n.agents[c.to].silent }

// lost reports whether a connection is known to be gone.
func (n *Net) lost(c *conn) bool {
	if c.notice != 0 && n.now >= c.notice {
		n.lose(c)
	}
	return c.lost
}

// lose makes a connection one that is known to be gone.
func (n *Net) lose(c *conn) {
	if !c.lost {
		c.lost = true
		n.counters.Broken++
		n.tell(EvBroken, c, 0)
	}
}

// unheard is a use of a connection whose other end is dead: it is answered by a reset, or by nothing.
func (n *Net) unheard(i int32, c *conn) {
	if n.silent(c) {
		n.wait(i, c)
	} else if c.notice == 0 {
		c.notice = n.now.Add(noticeDelay)
	}
}

// wait starts the time after which a connection that gets nothing through is lost.
func (n *Net) wait(i int32, c *conn) {
	if c.event == 0 && !c.lost {
		c.event = n.heap.Push(n.now.Add(c.link.Break), event{i, evConn})
	}
}

// breakConn ends a connection that got nothing through.
func (n *Net) breakConn(i int32, c *conn) {
	c.event = 0
	n.lose(c)
	n.dropStalled(c)
	n.unpark(&c.parked) // to fail
}

// arrive brings one notification to its agent.
func (n *Net) arrive(mi int32) {
	m := n.msgs.at(mi)
	c := n.conns.at(m.conn)
	to := n.owner(c)
	switch {
	case n.silent(c):
		if c.lost || c.dropped {
			n.discard(mi, m, c)
			return
		}
		if c.stalled == none {
			c.stalled = mi
		} else {
			n.msgs.at(c.stalledLast).next = mi
		}
		c.stalledLast = mi
		n.wait(m.conn, c)
	case to == nil:
		if c.notice == 0 {
			c.notice = n.now
		}
		n.discard(mi, m, c)
	case c.lost && m.fate.chance(drawReset, 0.5): // a reset takes part of what was on its way
		n.discard(mi, m, c)
	default:
		if to.first == none {
			to.first = mi
		} else {
			n.msgs.at(to.last).next = mi
		}
		to.last = mi
		to.coming--
		to.queued++
		n.counters.Arrived++
		n.tell(EvArrived, c, int(m.len))
		to.wake()
	}
}

func (a *Agent) wake() {
	if a.onArrival != nil && !a.stopped && a.alive {
		a.onArrival()
	}
}

// discard ends a notification on its way.
func (n *Net) discard(mi int32, m *message, c *conn) {
	n.counters.Lost++
	n.tell(EvLost, c, int(m.len))
	if c.to != none {
		n.agents[c.to].coming--
	}
	n.drop(mi, m, c)
}

func (n *Net) drop(mi int32, m *message, c *conn) {
	n.bytes.give(m.body)
	n.msgs.give(mi)
	c.refs--
	c.polled++
	if c.parked != none && c.link.Flush { // those that still wait for something come back
		n.unpark(&c.parked)
	}
	n.settle(m.conn, c)
}

// dropStalled ends what a partition holds back.
func (n *Net) dropStalled(c *conn) {
	for c.stalled != none {
		mi := c.stalled
		m := n.msgs.at(mi)
		c.stalled = m.next
		n.discard(mi, m, c)
	}
}

// Poll moves what has arrived into in.
func (a *Agent) Poll(in *transport.Inbox) int {
	a.backlog = 0
	if a.stopped || !a.alive {
		return 0
	}
	n, moved := a.net, 0
	for a.first != none { // at most queued
		mi := a.first
		m := n.msgs.at(mi)
		c := n.conns.at(m.conn)
		from := n.agents[c.from].nameBytes
		size := len(from) + int(m.len)
		if size > in.Bytes() {
			in.TooLong++
		} else {
			free, entries := in.Raw()
			if entries == 0 || len(free) < size {
				break
			}
			copy(free, from)
			n.bytes.get(m.body, free[len(from):size])
			in.AddRaw(len(from), int(m.len))
			moved++
		}
		a.first = m.next
		a.queued--
		n.drop(mi, m, c)
	}
	a.backlog = a.queued
	return moved
}

// Backlog is what the last Poll left behind.
func (a *Agent) Backlog() int { return a.backlog }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
