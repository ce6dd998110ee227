package core

import (
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
)

// engineSink is the peerSink of a context that is its own rank.
type engineSink struct{ c *Core }

func (k engineSink) LoadEngine(engine uint64, ranks []heartbeat.PeerRank) error {
	err := k.c.tracker.LoadEngine(engine, ranks)
	k.c.Wake()
	return err
}

// The errors below say that the engine was removed meanwhile.

func (k engineSink) SetOffset(engine uint64, o clock.Offset) { _ = k.c.tracker.SetOffset(engine, o) }

func (k engineSink) EngineOver(engine uint64, why heartbeat.Over) {
	_ = k.c.tracker.EngineOver(engine, why)
	k.c.Wake()
}

func (k engineSink) ReaderOver(engineHash, epoch uint64) {
	k.c.deaths.put(death{engine: engineHash, epoch: epoch})
	k.c.Wake()
}

// death is the end of a reader's life: the hash of its engine id, and its epoch.
type death struct{ engine, epoch uint64 }

// deaths are those that no step has taken yet.
type deaths struct {
	mu      sync.Mutex
	list    []death // its capacity is all that there ever is
	n       atomic.Int32
	dropped atomic.Uint64 // left to their leases
}

func newDeaths(most int) *deaths { return &deaths{list: make([]death, 0, most)} }

func (d *deaths) put(who death) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.list) == cap(d.list) {
		d.dropped.Add(1)
		return
	}
	d.list = append(d.list, who)
	d.n.Store(int32(len(d.list)))
}

// deathsStepMax bounds the deaths of one step; the rest waits for the next one.
const deathsStepMax = 64

// take is the step's. Another goroutine holds the lock for moments; then the next step looks again.
func (d *deaths) take(apply func(death, clock.Instant), now clock.Instant) {
	if d.n.Load() == 0 || !d.mu.TryLock() {
		return
	}
	defer d.mu.Unlock()
	n := min(len(d.list), deathsStepMax)
	for _, who := range d.list[:n] {
		apply(who, now)
	}
	d.list = d.list[:copy(d.list, d.list[n:])]
	d.n.Store(int32(len(d.list)))
}

// openSide opens the side channel of a context that has one; a rank hands on what it hears.
func (c *Core) openSide() (err error) {
	if c.ranked != nil {
		c.plane.SetWires(c.ranked.link)
		return nil
	}
	c.deaths = newDeaths(max(c.cfg.DeathWiresMax, c.cfg.EnginesMax))
	if c.hosted != nil {
		c.apply = c.engineGone
		if c.side, err = newSideChannel(c.cfg, hostSink{c}, c.clock, c.sites, c.log.side()); err == nil {
			c.side.Begin(c.mem.Epoch, c.mem.Secret)
			c.hosted.group.SetWires(c.side)
		}
		return err
	}
	c.apply = func(d death, now clock.Instant) { c.leases.EngineGone(d.engine, d.epoch, now) }
	if c.side, err = newSideChannel(c.cfg, engineSink{c}, c.clock, c.sites, c.log.side()); err == nil {
		c.view = c.tracker.View
		c.plane.SetWires(c.side)
	}
	return err
}

// sideStep is the side channel's part in a step: what it has found out, and how its peers stand.
func (c *Core) sideStep(now clock.Instant) {
	if c.side == nil {
		return
	}
	c.deaths.take(c.apply, now)
	c.side.look(now, c.view)
}

// nonce is that of our death wire to an owner, which our hello says; zeros: there is none.
func (c *Core) nonce(owner string) (n [16]byte) {
	switch {
	case c.side != nil:
		n = c.side.nonce(owner)
	case c.cfg.DeathWire: // the host keeps the wire
		for {
			if _, secret, ok := c.mem.Control.ReadEra(); ok {
				return deathwire.Nonce(secret, owner)
			}
		}
	}
	return n
}
