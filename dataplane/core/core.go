// Package core is a context's Go half: it opens the parts over a context's memory, runs the step under one lock,
// answers the calls that are not hooks, and fails safe. The C library and the kvlease tool both stand on it.
package core

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
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

// OpenTransport makes a transport agent for a context.
type OpenTransport func(cfg *Config, agent string) (transport.Transport, error)

// Core is one open context.
//
// Threads: any; one lock is held around everything. In pump mode the pump takes it for each step.
type Core struct {
	cfg   *Config
	mem   *record.Memory
	open  OpenTransport
	clock func() clock.Instant

	now        clock.Instant // of the last step, under mu
	mu         sync.Mutex
	tr         transport.Transport
	plane      *dataplane.Plane
	leases     *lease.Table
	tracker    *heartbeat.Tracker
	reads      *read.Machine
	regions    []Region
	registered []transport.Region
	handshake  []byte // our own map, after Register
	closed     bool   // no step begins any more
	gone       bool   // the agent is destroyed
	broken     string // what the recovered panic said

	side   *sideChannel // nil in role rank
	deaths *deaths      // of readers, on their way from the side channel to a step
	view   func(engine uint64) heartbeat.EngineView

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
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err) // the clock is there on every Linux that can run this
	}
	return clock.Instant(ts.Nano())
}

// Open makes a context over mem. transports are the implementations by name; the configured one is opened, which takes
// about half a second for nixl the first time.
func Open(cfg *Config, mem *record.Memory, transports map[string]OpenTransport, now func() clock.Instant) (*Core, error) {
	open, ok := transports[cfg.Transport]
	if !ok {
		return nil, fmt.Errorf("transport %q: %w: it is not built into this program", cfg.Transport, ErrUnavailable)
	}
	if now == nil {
		now = Now
	}
	if cfg.EngineID == "" {
		cfg.EngineID = fmt.Sprintf("kvl-%016x", mem.Epoch)
	}
	c := &Core{cfg: cfg, mem: mem, open: open, clock: now}
	if err := c.build(); err != nil {
		return nil, err
	}
	if err := c.openSide(); err != nil {
		c.tr.Close()
		return nil, err
	}
	if cfg.Drive == "pump" {
		p, err := startPump(c)
		if err != nil {
			c.side.close()
			c.tr.Close()
			return nil, err
		}
		c.pump = p
	}
	return c, nil
}

// build makes agent, leases, tracker and plane. Everything that a step will need is allocated here.
func (c *Core) build() error {
	tr, err := c.open(c.cfg, fmt.Sprintf("%s.%016x", c.cfg.EngineID, c.mem.Epoch))
	if err != nil {
		return err
	}
	header, rows := record.Board(c.mem.Board)
	c.mem.Control.DurationNs = uint64(c.cfg.Duration)
	out, err := dataplane.NewEvents(c.mem.Events, c.notify)
	if err == nil {
		c.leases, err = lease.New(c.cfg.leaseConfig(c.mem.Epoch), lease.Memory{
			Control: c.mem.Control, Slots: c.mem.Slots, Header: header, Rows: rows[:len(c.mem.Slots)],
		}, c.mem.Secret, c.mem.Base, c.mem.Epoch)
	}
	if err == nil {
		c.reads, err = read.New(c.cfg.readConfig(), tr, c.mem.Landing, nil)
	}
	if err == nil {
		self := heartbeat.Identity{EngineHash: wire.EngineHash([]byte(c.cfg.EngineID)), Epoch: c.mem.Epoch}
		c.tracker, err = heartbeat.New(c.cfg.heartbeatConfig(self), tr, c.reads, c.mem.Tracks, c.mem.Control, out)
	}
	if err == nil {
		c.plane, err = dataplane.New(c.cfg.planeConfig(), c.mem, tr, c.leases, c.tracker, c.reads, out)
	}
	if err != nil {
		tr.Close()
		return err
	}
	c.tr = tr
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
		return ErrPoisoned
	}
	defer c.failSafe(&err)
	c.now = max(c.now, now) // a step may have waited for the lock behind one that was told a later time
	c.sideStep(c.now)
	c.plane.Step(c.now)
	return nil
}

// failSafe turns a panic into a poisoned context: every row is fenced before anybody is told that anything ended.
// C then reports the ends from the slot records.
func (c *Core) failSafe(err *error) {
	what := recover()
	if what == nil {
		return
	}
	c.broken = fmt.Sprintf("%v\n%s", what, debug.Stack())
	c.leases.FenceAll()
	defer func() {
		_ = recover() // the ring may be what is broken
		c.mem.Control.PoisonNs = uint64(c.clock())
		atomic.StoreUint32(&c.mem.Control.Poisoned, 1)
		c.notify()
		*err = ErrPoisoned
	}()
	c.plane.Flush() // ends whose slots have gone back already
}

// Broken is what the panic said that poisoned the context, "" if none did.
func (c *Core) Broken() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// Config is the configuration in force.
func (c *Core) Config() *Config { return c.cfg }

// Memory is the context's memory.
func (c *Core) Memory() *record.Memory { return c.mem }
