// Package core is a context's Go half: it opens the parts over a context's memory, runs the step under one lock,
// answers the calls that are not hooks, and fails safe. The C library and the kvlease tool both stand on it.
package core

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Errors that a caller can decide on; each has its C status.
var (
	ErrFull        = errors.New("no room")               // KVL_ERR_FULL
	ErrInvalid     = errors.New("invalid argument")      // KVL_ERR_INVALID
	ErrStale       = errors.New("the handle has ended")  // KVL_ERR_STALE
	ErrBusy        = errors.New("work is in flight")     // KVL_ERR_BUSY
	ErrPoisoned    = errors.New("the core is broken")    // KVL_ERR_POISONED
	ErrUnavailable = transport.ErrUnavailable            // KVL_ERR_UNAVAILABLE
	ErrTransport   = errors.New("transport refused")     // KVL_ERR_TRANSPORT
	ErrClosed      = errors.New("draining or closed")    // KVL_ERR_CLOSED
	ErrTimeout     = errors.New("the time has passed")   // KVL_ERR_TIMEOUT
	ErrState       = errors.New("not in this state yet") // KVL_ERR_INVALID
)

// Version is that of this source tree; kvl_version of the C library says the same.
const Version = "0.1.0"

// OpenTransport makes a transport agent for a context.
type OpenTransport func(cfg *Config, agent string) (transport.Transport, error)

// Core is one open context.
//
// Threads: any; one lock is held around everything. In pump mode the pump takes it for each step.
type Core struct {
	number   uint64       // of the context in this process, from 1
	ownClock bool         // clock is CLOCK_BOOTTIME, and not a test's
	sites    *trace.Sites // of this context; nil: none

	cfg   *Config
	mem   *record.Memory
	open  OpenTransport
	clock func() clock.Instant

	now        clock.Instant // of the last step, under mu
	mu         sync.Mutex
	tr         transport.Transport
	agent      *ownAgent  // tr as the parts of the plane hold it
	nextEra    func() era // what a registration after the first begins
	plane      *dataplane.Plane
	leases     *lease.Table
	tracker    *heartbeat.Tracker
	reads      *read.Machine
	regions    []Region
	registered []transport.Region
	// registering is the registration that is under way beside steps; nil: none.
	registering *registration
	pace        registrationPace
	ending      bool   // Close was called: nothing is registered any more
	proven      int    // registered regions that a twin has read
	unproven    int    // and those of which that was not shown
	handshake   []byte // our own map, after Register
	closed      bool   // no step begins any more
	gone        bool   // the agent is destroyed
	met         bool   // memory was registered in this era, so peers may know of it
	broken      string // what the recovered panic said

	// slept: memory was unregistered on purpose, and nobody has tried to register any since.
	slept bool

	naming sync.Mutex   // before mu: engines are named and removed one after the other, here and at the side channel
	side   *sideChannel // nil in role rank
	deaths *deaths      // on their way from the side channel to a step
	apply  func(death, clock.Instant)
	view   func(engine uint64) heartbeat.EngineView

	hosted *hostSide // role host; then all of tr to reads are nil
	ranked *rankSide // role rank

	openDevices OpenDevices                  // nil: device memory is the transport's affair
	hostCheck   func(regions []Region) error // nil: what is said to be host memory is believed
	held        Held                         // nil: no device memory is registered

	log     *logs      // nil: nothing is said
	page    *statsPage // nil: there is no memory for one
	pageErr error      // why nobody else sees it, or why there is none

	pump    *pump
	sources []source // what the pump listens to beside the producers' rings; set before it starts
}

// Region is one region of the KV cache, as kvl_region_t says it.
type Region struct {
	Addr, Bytes, BlockLen, BlockStride uint64
	Blocks                             uint32
	Group                              int32
	Device                             uint32
	Mem                                transport.Mem
	Name                               string
	Parts                              uint32 // pieces of a block, each with one run of bytes per head; 0 counts as 1
	Replicated                         bool   // every rank holds the whole block (MLA)
}

// Now is CLOCK_BOOTTIME.
func Now() clock.Instant {
	ts := bootTime()
	return clock.Instant(ts.Nano())
}

// contexts numbers the contexts of this process, those that could not be opened, too.
var contexts atomic.Uint64

// Open makes a context over mem. transports are the implementations by name; the configured one is opened, which takes
// about half a second for nixl the first time.
func Open(cfg *Config, mem *record.Memory, transports map[string]OpenTransport, now func() clock.Instant) (*Core, error) {
	open, ok := transports[cfg.Transport]
	if !ok && cfg.Role != "host" {
		return nil, fmt.Errorf("transport %q: %w: it is not built into this program", cfg.Transport, ErrUnavailable)
	}
	ownClock := now == nil
	if ownClock {
		now = Now
	}
	if cfg.EngineID == "" {
		cfg.EngineID = fmt.Sprintf("kvl-%016x", mem.Epoch)
	}
	c := &Core{number: contexts.Add(1), cfg: cfg, mem: mem, open: open, clock: now, ownClock: ownClock, nextEra: newEra}
	c.sites = trace.Process().For(c.number)
	c.makeLog()
	if err := c.openParts(); err != nil {
		c.dropParts()
		return nil, err
	}
	c.log.watch()
	return c, nil
}

// openParts opens what the role needs.
func (c *Core) openParts() error {
	if c.cfg.Drive == "pump" {
		if err := c.makeWake(); err != nil {
			return err
		}
	}
	var err error
	switch c.cfg.Role {
	case "host":
		err = c.buildHost()
	case "rank":
		if err = c.buildCarrier(); err == nil {
			err = c.build()
		}
	default:
		err = c.build()
	}
	if err == nil {
		err = c.openSide()
	}
	if err == nil && c.cfg.Drive == "pump" {
		c.pump, err = startPump(c)
	}
	if err == nil {
		c.openPage()
	}
	return err
}

// dropParts closes what an open that failed has opened.
func (c *Core) dropParts() {
	if c.side != nil {
		c.side.close()
	}
	if c.tr != nil {
		c.tr.Close()
	}
	if c.ranked != nil {
		c.ranked.close()
	}
	if c.hosted != nil {
		c.hosted.streams.Close()
	}
}

// build makes agent, leases, tracker and plane. Everything that a step will need is allocated here.
func (c *Core) build() error {
	own, err := c.newAgent(c.mem.Epoch)
	if err != nil {
		return err
	}
	tr := &ownAgent{Transport: own, clock: c.clock}
	header, rows := record.Board(c.mem.Board)
	c.mem.Control.DurationNs = uint64(c.cfg.Duration)
	out, err := dataplane.NewEvents(c.mem.Events, c.notify)
	if err == nil {
		cfg := c.cfg.leaseConfig(c.mem.Epoch)
		cfg.Sites, cfg.Log = c.sites, c.log.step()
		if c.ranked != nil {
			cfg.ExpectMax = -1 // the host cancels expectations
		}
		c.leases, err = lease.New(cfg, lease.Memory{
			Control: c.mem.Control, Slots: c.mem.Slots, Header: header, Rows: rows[:len(c.mem.Slots)],
		}, c.mem.Secret, c.mem.Base, c.mem.Epoch)
	}
	if err == nil {
		cfg := c.cfg.readConfig()
		cfg.Sites = c.sites
		c.reads, err = read.New(cfg, tr, c.mem.Landing, nil)
	}
	if err == nil {
		self := heartbeat.Identity{EngineHash: wire.EngineHash([]byte(c.cfg.EngineID)), Epoch: c.mem.Epoch, Rank: uint32(c.cfg.Rank())}
		beats := c.cfg.heartbeatConfig(self)
		beats.Nonce, beats.Sites, beats.Log = c.nonce, c.sites, c.log.step()
		var events heartbeat.Events = out
		if c.ranked != nil {
			events = c.ranked.link
		}
		c.tracker, err = heartbeat.New(beats, tr, c.reads, c.mem.Tracks, c.mem.Control, events)
	}
	cfg := c.cfg.planeConfig()
	cfg.Sites, cfg.Log = c.sites, c.log.step()
	switch {
	case err != nil:
	case c.ranked != nil:
		c.plane, err = dataplane.NewRank(cfg, c.mem, tr, c.leases, c.tracker, c.reads, out, c.ranked.link)
	default:
		c.plane, err = dataplane.New(cfg, c.mem, tr, c.leases, c.tracker, c.reads, out)
	}
	if err != nil {
		tr.Close()
		return err
	}
	c.tr, c.agent = own, tr
	c.setReach(heartbeat.ReachMessages)
	return nil
}

// notify makes the host's descriptor readable.
func (c *Core) notify() {
	if fd := c.mem.Control.EventFd; fd >= 0 {
		writeEventFd(int(fd))
	}
}

// Wake ends the pump's sleep; nothing without a pump.
func (c *Core) Wake() {
	if fd := c.mem.Control.WakeFd; fd >= 0 {
		writeEventFd(int(fd))
	}
}

// Step runs one step now. ErrPoisoned once the core is broken.
func (c *Core) Step() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.step()
}

// StepAt is Step for a caller that has just read CLOCK_BOOTTIME itself: reading it again would be a system call.
func (c *Core) StepAt(now clock.Instant) error {
	if !c.mu.TryLock() {
		c.mu.Lock()
		now = c.clock() // it waited, perhaps for a registration: what the caller read is old
	}
	defer c.mu.Unlock()
	return c.stepAt(now)
}

func (c *Core) step() error { return c.stepAt(c.clock()) }

func (c *Core) stepAt(now clock.Instant) (err error) {
	if c.closed {
		return ErrClosed
	}
	// Edge S1: stepping is set before poisoned is looked at; pairs with S2 in kvl_poll, which sees poisoned and then waits
	// for stepping to be 0 before it tells ends from the slots. So no end is told by both.
	atomic.StoreUint32(&c.mem.Control.Stepping, 1)
	defer atomic.StoreUint32(&c.mem.Control.Stepping, 0)
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		c.tellPoison()
		return ErrPoisoned
	}
	defer c.failSafe(&err)
	defer c.exit(c.held, c.enter())
	before := c.now
	c.now = max(c.now, now) // a step may have waited for the lock behind one that was told a later time
	work := c.traceBegin(before)
	switch {
	case c.hosted != nil:
		c.hostStep(c.now)
	case c.ranked != nil:
		c.rankStep(c.now)
	default:
		c.sideStep(c.now)
		c.plane.Step(c.now)
	}
	c.listen()
	c.traceEnd(work)
	c.log.stepped(c.now)
	c.stepped(now)
	return nil
}

// listen lets carriers wake a host's loop that sleeps on kvl_wait_fd until the next step, which empties the descriptor first.
// Edge W2, as in the pump: what came before is looked for once more. With a pump it listens itself.
func (c *Core) listen() {
	if c.cfg.Drive == "pump" {
		return
	}
	for _, s := range c.sources {
		s.Sleeping(true)
	}
	for _, s := range c.sources {
		if s.Pending() {
			c.Wake()
			return
		}
	}
}

// failSafe turns a panic into a poisoned context: every row is fenced before anybody is told that anything ended.
// C then reports the ends from the slot records.
func (c *Core) failSafe(err *error) {
	what := recover()
	if what == nil {
		return
	}
	c.broken = fmt.Sprintf("%v\n%s", what, debug.Stack())
	c.log.broke(what)
	if c.leases != nil {
		c.leases.FenceAll()
	}
	defer func() {
		_ = recover() // the ring, or a stream, may be what is broken
		c.mem.Control.PoisonNs = uint64(c.clock())
		atomic.StoreUint32(&c.mem.Control.Poisoned, 1)
		c.notify()
		*err = ErrPoisoned
	}()
	c.half().Flush() // ends whose slots have gone back already
	c.tellPoison()
}

// Broken is what the panic said that poisoned the context, "" if none did.
func (c *Core) Broken() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// Config is the configuration in force.
func (c *Core) Config() *Config { return c.cfg }

// Number is that of the context in this process, from 1: trace sites and the stats page name it.
func (c *Core) Number() uint64 { return c.number }

// Sites are the trace sites of this process as this context has them, for the host's side; nil: none.
func (c *Core) Sites() *trace.Sites { return c.sites }

// Memory is the context's memory.
func (c *Core) Memory() *record.Memory { return c.mem }
