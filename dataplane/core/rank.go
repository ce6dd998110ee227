package core

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// rankSide is what a rank context has in place of producers: its end of the stream to the host.
type rankSide struct {
	carrier stream.Carrier
	link    *dataplane.Link
	told    record.Era // the last that the host told
	in      uint64     // the era in which we registered, or are about to; 0: none yet
	spent   uint64     // the last in which memory was registered, and is not any more
	unheard bool       // memory was registered and is gone before any era was told: that is the first one's
	blob    []byte     // of the agent; nil: nothing is registered
	mapDue  bool       // the map is to be made behind this step

	loaded   atomic.Uint64 // maps and deaths of peers that the loader is done with
	refused  atomic.Uint64 // of these, those that could not be used
	stop     chan struct{}
	stopOnce sync.Once
	loader   sync.WaitGroup
}

// buildCarrier makes the rank's end. It does not wait for the host.
func (c *Core) buildCarrier() error {
	carrier, err := stream.OpenRank(c.cfg.Carrier, c.streamConfig())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	r := &rankSide{carrier: carrier, stop: make(chan struct{})}
	r.link = dataplane.NewLink(dataplane.LinkConfig{Rank: uint32(c.cfg.Rank()), Engines: c.cfg.EnginesMax, Era: c.eraTold}, c.mem, carrier)
	c.ranked = r
	c.sources = append(c.sources, carrier)
	r.loader.Go(c.loadMaps)
	return nil
}

// eraTold is called within the step that hears of a new era, before any grant of it.
func (c *Core) eraTold(e record.Era) {
	r := c.ranked
	if r.told = e; r.unheard {
		r.unheard, r.spent = false, e.Era
	}
	r.link.Spent(r.spent == e.Era)
	if !r.fits(c.cfg) {
		c.log.sayMisfit(e, c.cfg.Duration, c.now)
		r.link.Refuse()
	}
	c.enterEra()
}

// fits reports that the rank was given the same leases as its host: one with others would beat, expire and promise differently.
func (r *rankSide) fits(cfg *Config) bool { return r.told.DurationNs == uint64(cfg.Duration) }

// waitsFor says what registered memory still lacks before readers may know of it.
func (r *rankSide) waitsFor() string {
	switch r.told.Era {
	case 0:
		return "memory is registered, and the host has not been heard yet"
	case r.spent:
		return "memory is registered again, in an era that is over here: the host begins the next one once every rank has called kvl_unregister"
	}
	return "memory is registered: the next kvl_step tells the host"
}

// enterEra makes the host's era ours. One in which memory of ours has gone is not lived in again: it ends with kvl_unregister, and the
// host begins the next one once every rank has unregistered, or at once if nobody knew us in it. If it begins one while we are registered, it had not heard of our
// registration yet, so no reader has: we go on in the new one. Under the lock.
func (c *Core) enterEra() {
	r := c.ranked
	switch {
	case r.told.Era == 0, !c.ranked.fits(c.cfg):
		return
	case r.told.Era == r.in:
		r.mapDue = r.mapDue || c.handshake == nil && r.blob != nil && r.in != r.spent
		return
	case c.handshake != nil, c.leases.Held() > 0: // some are granted before we register, too
		c.handshake = nil
		c.leases.FenceAll()
		c.leases.EndAll(record.FreedClosed, max(c.now, c.clock()))
	}
	base := c.nextEra().base
	if err := c.leases.Reset(r.told.Secret, base, r.told.Epoch); err != nil {
		return // poisoned
	}
	r.in = r.told.Era
	c.mem.Epoch, c.mem.Secret, c.mem.Base = r.told.Epoch, r.told.Secret, base
	c.mem.Control.BeginEra(r.told.Epoch, r.told.Secret)
	c.tracker.Enter(r.told.Epoch, max(c.now, c.clock())) // the host tells it while we sleep, as a rule
	r.mapDue = r.blob != nil && r.in != r.spent
}

// leave says that the memory is gone. What was granted for it may still be on its way from the host, so the era is over with it, also
// if no reader has known us in it, or the host has told none yet.
func (r *rankSide) leave() {
	if r.blob == nil {
		return
	}
	r.blob, r.mapDue = nil, false
	if r.unheard = r.told.Era == 0; !r.unheard {
		r.spent = r.told.Era
		r.link.Spent(true)
	}
}

// rankStep is a step of a rank context. It allocates only when it has registered and its host is heard.
func (c *Core) rankStep(now clock.Instant) {
	c.plane.Step(now)
	if c.ranked.mapDue {
		c.ranked.mapDue = false
		c.handshake = wire.AppendHandshake(nil, c.describe(c.regions, c.ranked.blob))
		c.ranked.link.SetMap(c.handshake)
		c.Wake() // the next step tells it
	}
}

// loadMaps hands the maps of peers' ranks on, off the step.
func (c *Core) loadMaps() {
	r := c.ranked
	for {
		select {
		case <-r.stop:
			return
		case m := <-r.link.Maps():
			if err := r.link.Load(m); err != nil {
				r.refused.Add(1)
				c.log.side().Put(log.MapRefused, c.clock(), log.Entry{Text: err.Error()})
			}
			r.loaded.Add(1)
			c.Wake()
		}
	}
}

// close ends the stream: the host counts what is held here as ended. Again it does nothing.
func (r *rankSide) close() error {
	r.stopOnce.Do(func() { close(r.stop) })
	r.loader.Wait()
	r.link.Closed()
	return r.carrier.Close()
}
