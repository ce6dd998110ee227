package deathwire

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"
	"time"
)

// Waits of a client.
const (
	retryMin  = time.Second // doubles
	retryMax  = time.Minute
	graceStep = 20 * time.Millisecond // between two looks within the grace
	dialMax   = 5 * time.Second
	flapSpan  = time.Second // a wire that fell sooner than this after it was up waits before it returns
	flapsMax  = 4           // doublings of graceStep that it waits: no longer than owners have patience
)

// answer is how an attempt to connect ended.
type answer uint8

const (
	met         answer = iota // by the owner that it is for
	another                   // by another life, or another engine
	withdrew                  // by the owner that it is for, with a farewell: that life is over
	refused                   // nobody listens there
	hungUp                    // by somebody who closed: full, not an owner, or dying
	silent                    // connected, and no answer: a process that stands still
	unreachable               // the network says no, or nothing
	local                     // we lack something, descriptors mostly
)

// run keeps one wire.
func (c *Client) run(ctx context.Context, l *link) {
	var (
		known  bool      // it was up once
		parted bool      // it ended behind a farewell when it was up last
		fell   time.Time // it was closed then, and nobody was met since; zero: it was not
		fails  int
		flaps  int
	)
	for ctx.Err() == nil {
		conn, flags, got := c.connect(ctx, l, fell)
		if got == met {
			if !fell.IsZero() {
				c.n.returned.Add(1)
			}
			known, fails, fell = true, 0, time.Time{}
			l.fallen.Store(false)
			up := time.Now()
			ended := c.hold(ctx, l, conn, flags)
			parted = ended == endParted
			switch ended {
			case endClosed, endParted:
				c.n.fallen.Add(1)
				l.fallen.Store(true)
				if fell = time.Now(); fell.Sub(up) > flapSpan {
					flaps = 0
				} else {
					c.sleep(ctx, graceStep<<min(flaps, flapsMax)/2)
					flaps++
				}
				continue
			}
			c.tell(ctx, c.cfg.Changed, l.engine)
			c.sleep(ctx, retryMin)
			continue
		}
		over := !fell.IsZero() && time.Since(fell) >= c.cfg.Grace
		lives := over && got == hungUp && c.cfg.Lives != nil && c.cfg.Lives(ctx, l.engine, l.w)
		switch {
		case ctx.Err() != nil:
			return
		case (got == another || got == withdrew) && known:
			c.n.others.Add(1)
			c.end(ctx, l, parted || got == withdrew)
			return
		case got == refused && known, over && !lives && (got == hungUp || got == unreachable):
			c.end(ctx, l, parted)
			return
		case !fell.IsZero() && !lives && (got == hungUp || got == unreachable):
			c.sleep(ctx, min(graceStep, c.cfg.Grace))
			continue
		}
		switch got { // alive, or not to be known: no grace ends it any more
		case hungUp:
			c.n.full.Add(1)
		case refused:
			c.n.refused.Add(1)
		case another, withdrew:
			c.n.others.Add(1)
			c.tell(ctx, c.cfg.Changed, l.engine)
		}
		fell = time.Time{}
		l.fallen.Store(false)
		c.set(l, Down, nil, 0)
		c.sleep(ctx, min(retryMin<<min(fails, 10), retryMax))
		fails++
	}
}

// connect makes one attempt, and gives the flags of the welcome. Within the grace connecting may take what is left of it.
func (c *Client) connect(ctx context.Context, l *link, fell time.Time) (net.Conn, uint16, answer) {
	most := dialMax
	if !fell.IsZero() {
		most = max(c.cfg.Grace-time.Since(fell), graceStep)
	}
	dialing, cancel := context.WithTimeout(ctx, most)
	conn, err := c.cfg.Dial(dialing, l.w.Addr)
	cancel()
	if err != nil {
		return nil, 0, whyNot(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	flags, got := c.greet(conn, l)
	if !stop() && got == met {
		got = local // it was let go meanwhile: the connection is closed
	}
	if got != met {
		c.unmeet(l, conn)
		conn.Close()
		return nil, 0, got
	}
	return conn, flags, met
}

func whyNot(err error) answer {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return refused
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM),
		errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EAGAIN):
		return local
	}
	return unreachable
}

// greet says hello and reads the welcome, of which it gives the flags.
func (c *Client) greet(conn net.Conn, l *link) (uint16, answer) {
	steady(conn)
	conn.SetReadDeadline(time.Now().Add(c.cfg.HelloAnswer))
	var b [FrameLen]byte
	err := c.hello(l, conn)
	if err == nil {
		_, err = io.ReadFull(conn, b[:])
	}
	if err != nil {
		if closedByPeer(err) {
			return 0, hungUp
		}
		return 0, silent
	}
	conn.SetReadDeadline(time.Time{})
	w, err := Parse(b[:])
	switch {
	case err != nil || w.Kind != Welcome && w.Kind != Farewell:
		return 0, another
	case w.Engine != l.w.Owner || w.Epoch != l.w.OwnersEpoch || w.Nonce != l.w.Self.Nonce:
		return 0, another
	case w.Kind == Farewell:
		return 0, withdrew
	}
	return w.Flags, met
}

// unmeet forgets a connection that came to nothing.
func (c *Client) unmeet(l *link, conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.conn == conn {
		l.conn = nil
	}
}

// hello says who we are. From then on the owner may keep the wire, so whoever lets go of it says so, whether there was an answer or not.
func (c *Client) hello(l *link, conn net.Conn) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wires[l.engine] != l {
		return net.ErrClosed
	}
	l.conn, l.flags, l.left = conn, Farewells, false
	return c.say(l, Hello)
}

// end is how a wire that was up ended.
type end uint8

const (
	endClosed end = iota // by the owner's end
	endParted            // likewise, behind a farewell
	endOther             // the network, or something that is no frame
)

// hold waits for the end of a wire. That of an owner which has said that it leaves is like any other: it served until then, and
// is over now.
func (c *Client) hold(ctx context.Context, l *link, conn net.Conn, flags uint16) end {
	defer conn.Close()
	c.n.up.Add(1)
	if !c.set(l, Up, conn, flags) {
		return endOther
	}
	defer c.set(l, Connecting, nil, 0)
	closed := endClosed
	var said [Farewell + 1]bool
	for n := 0; ; n++ {
		var b [FrameLen]byte
		_, err := io.ReadFull(conn, b[:])
		switch {
		case err != nil && closedByPeer(err):
			return closed
		case err != nil:
			return endOther
		}
		f, err := Parse(b[:])
		switch {
		case err != nil || n == framesMax || f.Kind < Leaving || f.Engine != l.w.Owner || f.Epoch != l.w.OwnersEpoch:
			return endOther
		case f.Kind == Farewell:
			closed = endParted
		case !said[f.Kind]:
			c.n.left.Add(1)
		}
		said[f.Kind] = true
	}
}

// set notes where a wire stands. It reports false if nobody wants it any more.
func (c *Client) set(l *link, s State, conn net.Conn, flags uint16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wires[l.engine] != l {
		return false
	}
	if l.state != Gone {
		l.state = s
	}
	l.conn, l.flags = conn, flags
	if conn != nil && c.leaving {
		c.leave(l)
	}
	return true
}

// end is the end of the owner's life: parted, it has said farewell; else its process has died.
func (c *Client) end(ctx context.Context, l *link, parted bool) {
	if !c.set(l, Gone, nil, 0) {
		return
	}
	n, over := &c.n.dead, c.cfg.Dead
	if parted {
		n, over = &c.n.withdrawn, c.cfg.Withdrawn
	}
	n.Add(1)
	if over != nil && ctx.Err() == nil {
		over(l.engine, l.w)
	}
	l.fallen.Store(false)
	c.tell(ctx, c.cfg.Changed, l.engine)
}

func (c *Client) tell(ctx context.Context, f func(uint64), engine uint64) {
	if f != nil && ctx.Err() == nil {
		f(engine)
	}
}

func (c *Client) sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
