package deathwire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ClientConfig says what a reader does with its wires. A field that is zero has its default.
type ClientConfig struct {
	// Dead hears that an owner's process has died: its wire was closed without a word, and nobody answers there, or
	// somebody else. It says of which life; another wire may have been kept meanwhile. It and Changed run on a goroutine of
	// the client, under no lock.
	Dead func(engine uint64, w Wire)
	// Changed hears that an owner is perhaps not the one that it was; its handshake should be asked for anew.
	Changed func(engine uint64)

	Grace       time.Duration // for an owner's listener to answer again
	HelloAnswer time.Duration // for the welcome; 5 s
	WiresMax    int           // owners at once; 4,096
	Dial        func(ctx context.Context, addr string) (net.Conn, error)
}

// Wire says where an owner's listener is and who is to meet.
type Wire struct {
	Addr        string // host:port, IPv6 in brackets
	Self        Frame  // engine, epoch and nonce of ours
	Owner       uint64 // its engine hash
	OwnersEpoch uint64
}

// Errors of Keep.
var (
	ErrClosed = errors.New("deathwire: closed")
	ErrFull   = errors.New("deathwire: no place for one more wire")
)

// State is where a wire stands.
type State uint8

const (
	Connecting State = iota
	Up               // the owner has taken it
	Down             // it cannot be had now: refused, full, or the network; it is tried again
	Gone             // the owner is dead or another one: it is not tried any more
	statesN
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

// Client keeps a wire to each owner that it is told of.
//
// Threads: any.
// Goroutines: one per wire.
type Client struct {
	cfg     ClientConfig
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	leaving bool
	wires   map[uint64]*link

	n clientCounters
}

type clientCounters struct{ up, full, refused, fallen, returned, dead, others, left atomic.Uint64 }

// link is the wire to one owner.
type link struct {
	engine uint64
	w      Wire
	cancel context.CancelFunc
	state  State    // under the client's lock
	conn   net.Conn // while it is Up; under the client's lock
}

// NewClient makes a client without a wire.
func NewClient(cfg ClientConfig) *Client {
	if cfg.HelloAnswer <= 0 {
		cfg.HelloAnswer = 5 * time.Second
	}
	if cfg.WiresMax <= 0 {
		cfg.WiresMax = 4096
	}
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	}
	c := &Client{cfg: cfg, wires: map[uint64]*link{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Keep has a wire to an owner from now on, until Drop. With the same Wire again it does nothing, unless that one is Gone.
// Errors: ErrFull, ErrClosed.
func (c *Client) Keep(engine uint64, w Wire) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.wires[engine]
	switch {
	case c.closed:
		return ErrClosed
	case old != nil && old.w == w && old.state != Gone:
		return nil
	case old == nil && len(c.wires) >= c.cfg.WiresMax:
		return fmt.Errorf("%w: %d are kept", ErrFull, len(c.wires))
	}
	if old != nil {
		c.drop(old)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	l := &link{engine: engine, w: w, cancel: cancel}
	c.wires[engine] = l
	c.running.Go(func() { c.run(ctx, l) })
	return nil
}

// Drop ends the wire to an owner. It says so first: what this engine still has there ends by itself.
func (c *Client) Drop(engine uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.wires[engine]; l != nil {
		c.drop(l)
	}
}

func (c *Client) drop(l *link) {
	delete(c.wires, l.engine)
	if l.conn != nil {
		c.sayLeaving(l, l.conn)
		l.conn.Close()
		l.conn = nil
	}
	l.cancel()
}

// Leave tells all owners, now and when they are met later, that we go on purpose.
func (c *Client) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	for _, l := range c.wires {
		if l.conn != nil {
			c.sayLeaving(l, l.conn)
		}
	}
}

func (c *Client) sayLeaving(l *link, conn net.Conn) {
	f := l.w.Self
	f.Kind = Leaving
	conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	conn.Write(f.Append(nil))
}

// Reset ends all wires without a word, as the death of this process would: this life of our engine is over, and nothing
// will be read for it any more.
func (c *Client) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reset()
	c.leaving = false
}

func (c *Client) reset() {
	for _, l := range c.wires {
		if l.conn != nil {
			l.conn.Close()
			l.conn = nil
		}
		l.cancel()
	}
	clear(c.wires)
}

// Close is Reset for good; it returns when all goroutines have ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.reset()
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// answer is how an attempt to connect ended.
type answer uint8

const (
	met         answer = iota // by the owner that it is for
	another                   // by another life, or another engine
	refused                   // nobody listens there
	hungUp                    // by somebody who closed: full, not an owner, or dying
	silent                    // connected, and no answer: a process that stands still
	unreachable               // the network says no, or nothing
	local                     // we lack something, descriptors mostly
)

// run keeps one wire.
func (c *Client) run(ctx context.Context, l *link) {
	var (
		known bool      // it was up once, and its owner has not said that it leaves
		fell  time.Time // it was closed then, and nobody was met since; zero: it was not
		fails int
		flaps int
	)
	for ctx.Err() == nil {
		conn, got := c.connect(ctx, l, fell)
		if got == met {
			if !fell.IsZero() {
				c.n.returned.Add(1)
			}
			known, fails, fell = true, 0, time.Time{}
			up := time.Now()
			switch c.hold(ctx, l, conn) {
			case endLeft:
				c.n.left.Add(1)
				known = false
			case endClosed:
				c.n.fallen.Add(1)
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
		switch {
		case ctx.Err() != nil:
			return
		case got == another && known:
			c.n.others.Add(1)
			c.end(ctx, l)
			return
		case got == refused && known, over && (got == hungUp || got == unreachable):
			c.end(ctx, l)
			return
		case !fell.IsZero() && (got == hungUp || got == unreachable):
			c.sleep(ctx, min(graceStep, c.cfg.Grace))
			continue
		}
		switch got { // alive, or not to be known: no grace ends it any more
		case hungUp:
			c.n.full.Add(1)
		case refused:
			c.n.refused.Add(1)
		case another:
			c.n.others.Add(1)
			c.tell(ctx, c.cfg.Changed, l.engine)
		}
		fell = time.Time{}
		c.set(l, Down, nil)
		c.sleep(ctx, min(retryMin<<min(fails, 10), retryMax))
		fails++
	}
}

// connect makes one attempt. Within the grace connecting may take what is left of it.
func (c *Client) connect(ctx context.Context, l *link, fell time.Time) (net.Conn, answer) {
	most := dialMax
	if !fell.IsZero() {
		most = max(c.cfg.Grace-time.Since(fell), graceStep)
	}
	dialing, cancel := context.WithTimeout(ctx, most)
	conn, err := c.cfg.Dial(dialing, l.w.Addr)
	cancel()
	if err != nil {
		return nil, whyNot(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	got := c.greet(conn, l)
	if !stop() && got == met {
		got = local // it was let go meanwhile: the connection is closed
	}
	if got != met {
		conn.Close()
		return nil, got
	}
	return conn, met
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

// greet says hello and reads the welcome.
func (c *Client) greet(conn net.Conn, l *link) answer {
	steady(conn)
	conn.SetDeadline(time.Now().Add(c.cfg.HelloAnswer))
	f := l.w.Self
	f.Kind = Hello
	var b [FrameLen]byte
	_, err := conn.Write(f.Append(nil))
	if err == nil {
		_, err = io.ReadFull(conn, b[:])
	}
	if err != nil {
		if closedByPeer(err) {
			return hungUp
		}
		return silent
	}
	conn.SetDeadline(time.Time{})
	w, err := Parse(b[:])
	switch {
	case err != nil || w.Kind != Welcome:
		return another
	case w.Engine != l.w.Owner || w.Epoch != l.w.OwnersEpoch || w.Nonce != l.w.Self.Nonce:
		return another
	}
	return met
}

// end is how a wire that was up ended.
type end uint8

const (
	endClosed end = iota // by the owner's end
	endLeft              // likewise, and it had said that it leaves
	endOther             // the network, or something that is no frame
)

// hold waits for the end of a wire.
func (c *Client) hold(ctx context.Context, l *link, conn net.Conn) end {
	defer conn.Close()
	c.n.up.Add(1)
	if !c.set(l, Up, conn) {
		return endOther
	}
	defer c.set(l, Connecting, nil)
	left := false
	for {
		var b [FrameLen]byte
		_, err := io.ReadFull(conn, b[:])
		switch {
		case err != nil && left:
			return endLeft
		case err != nil && closedByPeer(err):
			return endClosed
		case err != nil:
			return endOther
		}
		f, err := Parse(b[:])
		if err != nil || f.Kind != Leaving || f.Engine != l.w.Owner || f.Epoch != l.w.OwnersEpoch {
			return endOther
		}
		left = true
	}
}

// set notes where a wire stands. It reports false if nobody wants it any more.
func (c *Client) set(l *link, s State, conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wires[l.engine] != l {
		return false
	}
	if l.state != Gone {
		l.state = s
	}
	l.conn = conn
	if conn != nil && c.leaving {
		c.sayLeaving(l, conn)
	}
	return true
}

// end is the owner's death.
func (c *Client) end(ctx context.Context, l *link) {
	if !c.set(l, Gone, nil) {
		return
	}
	c.n.dead.Add(1)
	if c.cfg.Dead != nil && ctx.Err() == nil {
		c.cfg.Dead(l.engine, l.w)
	}
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

// ClientStats are a client's gauges, and its counters since NewClient.
type ClientStats struct {
	States   [statesN]int
	Ups      uint64 // wires that an owner took
	Full     uint64 // attempts that an owner closed without an answer: no place there, or not an owner
	Refused  uint64 // attempts where nobody listened
	Fallen   uint64 // wires that the owner's end closed
	Returned uint64 // of these, those that were up again in time
	Dead     uint64 // owners found dead
	Others   uint64 // attempts that another life of the owner, or another engine, answered
	Left     uint64 // wires whose owner said that it goes on purpose
}

// Stats reads them.
func (c *Client) Stats() ClientStats {
	n := &c.n
	s := ClientStats{
		Ups: n.up.Load(), Full: n.full.Load(), Refused: n.refused.Load(), Fallen: n.fallen.Load(), Returned: n.returned.Load(),
		Dead: n.dead.Load(), Others: n.others.Load(), Left: n.left.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.wires {
		s.States[l.state]++
	}
	return s
}
