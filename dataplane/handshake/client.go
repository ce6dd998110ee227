package handshake

import (
	"container/list"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// Config says how to ask. A field that is zero has its default.
type Config struct {
	// Now reads this host's CLOCK_BOOTTIME, for offsets. Required. Waits and time-outs are those of package time.
	Now func() clock.Instant
	// Hash is our own compatibility hash; empty: none to compare.
	Hash string
	// IgnoreHash takes peers of any hash: enforce_handshake_compat is false.
	IgnoreHash bool
	// Check, if set, looks at each rank's map once it is known to be the engine's; an error makes the peer incompatible.
	// It runs on an attempt's goroutine.
	Check func(engine uint64, r Rank, h *wire.Handshake) error
	// Notify, if set, is called when Next has something after it had nothing. It runs on any goroutine, on several at
	// once, holding no lock of the client, and must not block: it may sit in a caller of Want.
	Notify func()

	RankTimeout time.Duration // for one rank, connecting to ask the first one included; 5 s, as vLLM's
	Interval    time.Duration // between heartbeats: no wait for a tracked engine is longer; 5 s
	EnginesMax  int           // 4,096

	Sites *trace.Sites // nil: nobody can attach
}

// Desc says where an engine is and what is asked of it.
type Desc struct {
	ID   string // engine id that must answer
	Addr string // host:port, IPv6 in brackets
	// Ranks are asked one after the other, on one connection. A stock listener dies of a rank that it does not have.
	Ranks []Rank
	// TP is the ranks of a stage: a map of ours may say its number among all ranks, PP x TP + Transfer. 0: they are not known.
	TP uint32
}

const (
	activeMax   = 8                     // attempts that may be busy at once
	parkedMax   = 256                   // attempts that wait for a silent peer at once
	patience    = 50 * time.Millisecond // silence after which an attempt may be parked
	backoffMin  = time.Second
	backoffMax  = time.Minute
	retryGap    = 100 * time.Millisecond // least time from one attempt's start to the next one's that a Retry or Refresh makes
	attemptMax  = time.Minute            // for all ranks of an engine together
	mapBytesMax = 16 << 20               // payloads of all ranks of an engine together
)

// Client knows engines: it asks each one until it answers, and waits longer after each failure. One attempt per engine
// runs at a time.
//
// Fairness: eight attempts are busy at once. One whose peer has been silent for 50 ms may be parked when another engine
// is due: it goes on waiting, outside the eight, and is cut short only when 256 wait so, the longest first. Engines
// that answered last time go first, then those that were never asked. So a hundred dead peers delay a live one by less
// than a second when they are all new, and later not at all.
//
// Threads: any. Calls hold a lock for moments and do no input or output; one that starts an attempt makes a goroutine.
// Memory: per engine one result not yet taken, at most 16 MiB of payloads and about 16 times that parsed, in the worst
// case that a peer can make; some tens of KiB per rank with an honest one.
// Goroutines: one per running attempt. An engine that is known, or waits, has none.
type Client struct {
	cfg  Config
	dial func(ctx context.Context, addr string) (conn, error)

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	voids   uint64 // VoidClocks so far: samples taken across one say nothing
	engines map[uint64]*engine
	due     [dues]list.List // of *engine: due now
	results list.List       // of *engine: with a result to take
	news    bool            // results was empty and is not now
	active  []*attempt      // at most activeMax, oldest first
	parked  list.List       // of *attempt, at most parkedMax, parked longest first
	counts  counts
}

// conn is what an attempt needs of a connection.
type conn interface {
	Request(ctx context.Context, frames ...[]byte) ([][]byte, zmtp.Timing, error)
	Close() error
}

// engine is one engine that somebody wants.
type engine struct {
	handle  uint64
	desc    Desc
	tracked bool
	state   State
	since   time.Time // in state

	queue    *list.List // of Client.due, with elem; nil: not due
	elem     *list.Element
	timer    *time.Timer // until it is due again; nil: none runs
	attempt  *attempt    // running; nil: none
	full     bool        // the next attempt asks for all maps, not only for the clock
	again    bool        // a Retry came while an attempt ran
	asked    bool        // at least once
	began    time.Time   // last attempt
	ended    time.Time   // last failure
	failures int         // in a row
	failing  time.Time   // the first of them
	err      error       // last failure
	fetched  time.Time   // last success
	doubted  time.Time   // last attempt that a Doubt began
	doubts   int         // such attempts, each within backoffMax of the one before
	late     int         // refreshes failed in a row
	notYet   time.Time   // no refresh before

	offset clock.Offset
	sums   [][sha256.Size]byte // of the payloads last fetched, per rank asked

	result     *Result // not taken
	resultElem *list.Element
}

// NewClient makes a client that wants nothing yet.
func NewClient(cfg Config) (*Client, error) {
	if cfg.Now == nil {
		return nil, fmt.Errorf("%w: client without a clock", ErrInvalid)
	}
	if cfg.RankTimeout < 0 || cfg.Interval < 0 || cfg.EnginesMax < 0 {
		return nil, fmt.Errorf("%w: time-out %v, interval %v, %d engines", ErrInvalid, cfg.RankTimeout, cfg.Interval, cfg.EnginesMax)
	}
	for _, d := range []struct {
		at  *time.Duration
		def time.Duration
	}{{&cfg.RankTimeout, 5 * time.Second}, {&cfg.Interval, 5 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.def
		}
	}
	if cfg.EnginesMax == 0 {
		cfg.EnginesMax = 4096
	}
	z := asClient(cfg.Now, cfg.RankTimeout)
	c := &Client{cfg: cfg, engines: map[uint64]*engine{}}
	c.dial = func(ctx context.Context, addr string) (conn, error) {
		conn, err := z.Dial(ctx, addr)
		if err != nil {
			return nil, err // not conn: a nil *zmtp.Conn is a conn that is not nil
		}
		return conn, nil
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c, nil
}

// asClient speaks to side channels. timeout is for connecting and for each reply.
func asClient(now func() clock.Instant, timeout time.Duration) zmtp.Client {
	const around = 4096 // payload's keys and hash, stamp
	return zmtp.Client{Now: now, Limits: zmtp.Limits{Request: timeout, ReplyBytesMax: wire.HandshakeMax + around}}
}

// Want makes an engine known, from now until Forget. With the same description again it does nothing; with another one
// it starts anew. Errors: ErrInvalid, ErrFull, ErrClosed.
func (c *Client) Want(handle uint64, d Desc) error {
	if d.ID == "" || len(d.ID) > wire.StringMax || d.Addr == "" || len(d.Ranks) == 0 || len(d.Ranks) > RanksMax {
		return fmt.Errorf("%w: engine %s at %s with %d ranks", ErrInvalid, short(d.ID), short(d.Addr), len(d.Ranks))
	}
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return ErrClosed
	}
	e, known := c.engines[handle]
	switch {
	case known && e.desc.ID == d.ID && e.desc.Addr == d.Addr && slices.Equal(e.desc.Ranks, d.Ranks):
		return nil
	case !known && len(c.engines) >= c.cfg.EnginesMax:
		return fmt.Errorf("%w: %d engines are wanted", ErrFull, len(c.engines))
	}
	d.Ranks = slices.Clone(d.Ranks)
	fresh := &engine{handle: handle, desc: d, full: true}
	if known {
		fresh.tracked = e.tracked
		c.drop(e)
	}
	c.engines[handle] = fresh
	c.enqueue(fresh)
	c.kick()
	return nil
}

// Forget ends what goes on for an engine. After it, Next has nothing of it.
func (c *Client) Forget(handle uint64) {
	c.mu.Lock()
	defer c.unlock()
	if e, ok := c.engines[handle]; ok {
		c.drop(e)
		c.kick()
	}
}

// Track says whether requests are tracked at an engine: then it is asked at least once an interval (but an incompatible
// one is not).
func (c *Client) Track(handle uint64, tracked bool) error {
	return c.with(handle, func(e *engine) {
		e.tracked = tracked
		if e.state == Failed && e.timer != nil {
			c.wait(e)
		}
	})
}

// Retry asks an engine anew, whatever is known of it, because something says that it has changed: it came back, or a
// request names a later registration generation. It ends the wait after failures. At most ten attempts a second start so.
func (c *Client) Retry(handle uint64) error {
	return c.with(handle, func(e *engine) {
		if e.attempt != nil {
			e.again = true
			return
		}
		e.full = true
		if e.queue == nil || e.state == Ready { // or a refresh was due
			c.later(e, c.gap(e))
		}
	})
}

// Doubt asks an engine that is known anew, because of a word that anybody could have made up: a request names another boot of
// it. The first doubt is followed at once, those after it with the waits that follow failures; what comes sooner is dropped, so who
// still doubts says so again. It does nothing while the maps are asked for or failed.
func (c *Client) Doubt(handle uint64) error {
	return c.with(handle, func(e *engine) {
		if e.full || e.attempt != nil {
			return
		}
		now := time.Now()
		since := now.Sub(e.doubted)
		if since >= backoffMax {
			e.doubts = 0
		}
		if e.doubts > 0 && since < c.failWait(e, e.doubts) {
			return
		}
		e.doubts++
		e.doubted, e.full = now, true
		c.counts.doubts++
		c.later(e, c.gap(e))
	})
}

// Refresh takes new samples of the clock of an engine that is known, and looks whether its first rank is still as it was;
// if not, the engine is asked anew. It does nothing while an attempt runs, while the engine is not known, and for a while
// after refreshes that failed.
func (c *Client) Refresh(handle uint64) error {
	return c.with(handle, func(e *engine) {
		if e.state == Ready && e.attempt == nil && e.queue == nil && e.timer == nil && !time.Now().Before(e.notYet) {
			c.later(e, c.gap(e))
		}
	})
}

// VoidClocks forgets all offsets: the clocks of this host have jumped against each other. Refresh finds them anew.
func (c *Client) VoidClocks() {
	c.mu.Lock()
	defer c.unlock()
	c.voids++
	for _, e := range c.engines {
		e.offset.Void()
		if e.result != nil {
			e.result.Offset.Void()
		}
	}
}

// Close ends all attempts and returns when their goroutines have ended. Results that were not taken are gone.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	for _, e := range c.engines {
		c.drop(e)
	}
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
}

// with does something with a wanted engine.
func (c *Client) with(handle uint64, do func(*engine)) error {
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return ErrClosed
	}
	e, ok := c.engines[handle]
	if !ok {
		return ErrUnknown
	}
	do(e)
	c.kick()
	return nil
}

// unlock tells of news, once the lock is free.
func (c *Client) unlock() {
	news := c.news
	c.news = false
	c.mu.Unlock()
	if news && c.cfg.Notify != nil {
		c.cfg.Notify()
	}
}

// drop forgets an engine; its attempt ends by itself and finds nobody.
func (c *Client) drop(e *engine) {
	delete(c.engines, e.handle)
	c.unqueue(e)
	if e.attempt != nil {
		e.attempt.cancel(nil)
		e.attempt = nil
	}
	if e.result != nil {
		c.results.Remove(e.resultElem)
		e.result, e.resultElem = nil, nil
	}
}
