package deathwire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ClientConfig says what a reader does with its wires. A field that is zero has its default.
type ClientConfig struct {
	// Dead hears that an owner's process has died: its wire was closed without a word, and nobody answers there, or
	// somebody else. It says of which life; another wire may have been kept meanwhile. It, Withdrawn and Changed run on a
	// goroutine of the client, under no lock.
	Dead func(engine uint64, w Wire)
	// Withdrawn hears in place of Dead that an owner's life is over on purpose: it said farewell before its wire was closed.
	Withdrawn func(engine uint64, w Wire)
	// Lives asks an owner otherwise whether it is still the life of a wire, where connections are taken and closed for a whole grace: so does
	// an owner that has no place, or one that a crowd keeps busy, and so does who stands before one that has died. nil: it is not.
	Lives func(ctx context.Context, engine uint64, w Wire) bool
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

type clientCounters struct {
	up, full, refused, fallen, returned, dead, withdrawn, others, left atomic.Uint64
}

// link is the wire to one owner.
type link struct {
	engine uint64
	w      Wire
	cancel context.CancelFunc
	state  State       // under the client's lock
	conn   net.Conn    // from our hello on until its end; under the client's lock
	flags  uint16      // of the welcome on conn; likewise. Before it Farewells: an owner of ours is told, another one passes over it or hangs up
	left   bool        // leaving was said on conn; likewise
	fallen atomic.Bool // it fell, and whether that was the end of its owner is not known yet
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
		c.leave(l)
		l.conn.Close()
		l.conn = nil
	}
	l.cancel()
}

// InGrace reports that the wire to an owner fell, and that it is not known yet whether its owner has died, has withdrawn or lives: a word
// of Dead or Withdrawn has been told when it is false again. Any goroutine.
func (c *Client) InGrace(engine uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.wires[engine]
	return l != nil && l.fallen.Load()
}

// Leave tells all owners, now and when they are met later, once each that we go on purpose.
func (c *Client) Leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.leaving {
		return
	}
	c.leaving = true
	for _, l := range c.wires {
		if l.conn != nil && l.state == Up { // else when it is up
			c.leave(l)
		}
	}
}

// leave says on a wire, once, that we go on purpose.
func (c *Client) leave(l *link) {
	if !l.left {
		l.left = true
		c.say(l, Leaving)
	}
}

// say tells an owner something on its wire. Under the lock, so that nothing is said before the hello: 40 bytes into an empty buffer.
func (c *Client) say(l *link, k Kind) error {
	f := l.w.Self
	if f.Kind = k; k == Hello {
		f.Flags = Farewells
	}
	l.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := l.conn.Write(f.Append(nil))
	return err
}

// Reset ends all wires with a farewell: this life of our engine is over, and nothing will be read for it any more. Owners do what
// they would do at the death of this process, and know that it is none.
func (c *Client) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.wires {
		if l.conn != nil && l.flags&Farewells != 0 {
			c.say(l, Farewell)
		}
	}
	c.reset()
	c.leaving = false
}

// reset ends all wires without a word. Under the lock.
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

// Close ends for good what Reset has left, without a word, as the death of this process would. It returns when all goroutines have
// ended.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	c.reset()
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
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
	Others   uint64 // attempts that another life of the owner, or another engine, answered, or the owner with a farewell
	Left     uint64 // wires whose owner said that it goes on purpose

	Withdrawn uint64 // owners whose life has ended on purpose: they said farewell
}

// Stats reads them.
func (c *Client) Stats() ClientStats {
	n := &c.n
	s := ClientStats{
		Ups: n.up.Load(), Full: n.full.Load(), Refused: n.refused.Load(), Fallen: n.fallen.Load(), Returned: n.returned.Load(),
		Dead: n.dead.Load(), Others: n.others.Load(), Left: n.left.Load(), Withdrawn: n.withdrawn.Load(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.wires {
		s.States[l.state]++
	}
	return s
}
