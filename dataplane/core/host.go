package core

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// hostSide is what a host context has in place of an agent: the streams to its ranks, and the group that speaks over them.
type hostSide struct {
	streams *stream.Host
	group   *group.Group
	eras    uint64 // begun
	maps    [][]byte
	taken   uint64 // maps that the group had taken when they were looked at last
	whole   bool   // the maps of all ranks are published

	blockBytes uint64 // of one block over all ranks, as far as their maps are known

	shapes  map[uint64]topology.Shape  // of engines; under the core's lock
	offered map[uint64][]group.PeerMap // maps that came out of band, of engines that are not complete yet; under the core's lock
}

// carrierRing is the room of a stream each way and rank. What does not fit is told again by a full state. Tests make it small.
var carrierRing uint32 = 1 << 20

// streamConfig says whose ends these are. Their wake descriptor is what the pump sleeps on, or, inline, the host's loop in
// kvl_wait_fd; -1, of a Go host without pump: nobody does.
func (c *Core) streamConfig() stream.Config {
	fd := int(c.mem.Control.WakeFd)
	return stream.Config{
		EngineID: c.cfg.EngineID, TP: uint32(c.cfg.TPSize), PP: uint32(c.cfg.PPSize), Rank: uint32(c.cfg.Rank()),
		WakeFd: fd, RingBytes: carrierRing, Path: c.cfg.CarrierPath,
	}
}

// buildHost makes the streams and the group of a host context.
func (c *Core) buildHost() error {
	out, err := dataplane.NewEvents(c.mem.Events, c.notify)
	if err != nil {
		return err
	}
	streams, err := stream.OpenHost(c.cfg.Carrier, c.streamConfig())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	h := &hostSide{streams: streams, maps: make([][]byte, streams.Ranks()), offered: map[uint64][]group.PeerMap{}, shapes: map[uint64]topology.Shape{}}
	var ends []stream.Carrier
	for n := range streams.Ranks() {
		ends = append(ends, streams.End(uint32(n)))
		c.sources = append(c.sources, ends[n])
	}
	h.group, err = group.New(group.Config{
		Self: c.cfg.shape(), Duration: c.cfg.Duration, Extension: c.cfg.Extension(), FixedTTL: c.cfg.BlocksTTL, ExpectMax: c.cfg.ExpectMax,
		ReadTimeout: c.cfg.ReadTimeout, TransitMax: max(c.cfg.HandoverMax, 1), Engines: c.cfg.EnginesMax, LongIDs: c.cfg.LongIDsMax, RunsMax: c.cfg.ReadRunsMax,
		Between: c.cfg.Carrier == stream.KindDelta, Seed: c.mem.Epoch, Sites: c.sites, Log: c.log.step(),
	}, c.mem, ends, out)
	if err != nil {
		streams.Close()
		return err
	}
	c.hosted = h
	atomic.StoreUint64(&c.mem.Control.LongAtNs, uint64(clock.Never)) // no agent here
	c.beginEra(era{epoch: c.mem.Epoch, secret: c.mem.Secret})
	return nil
}

// beginEra tells the ranks and C who this engine is to its readers from now on.
func (c *Core) beginEra(e era) {
	h := c.hosted
	h.eras++
	c.mem.Epoch, c.mem.Secret = e.epoch, e.secret
	c.mem.Control.BeginEra(e.epoch, e.secret)
	h.group.SetEra(record.Era{
		Era: h.eras, Epoch: e.epoch, Secret: e.secret, DurationNs: uint64(c.cfg.Duration),
	})
}

// hostStep is a step of a host context. It allocates only when a rank has registered or unregistered its memory.
func (c *Core) hostStep(now clock.Instant) {
	h := c.hosted
	c.deaths.take(c.apply, now)
	h.group.Step(now)
	c.side.look(now, h.group.View)
	if n := h.group.Counters.MapsTaken; n != h.taken {
		h.taken = n
		c.rankMaps()
	}
	if h.group.EraOver() {
		if slices.ContainsFunc(h.maps, func(m []byte) bool { return m != nil }) { // of a rank that came late to the era before
			c.withdraw()
		}
		c.beginEra(c.nextEra())
		c.side.Begin(c.mem.Epoch, c.mem.Secret)
	}
}

// engineGone has the ranks carry out what a reader's death wire has said.
func (c *Core) engineGone(d death, _ clock.Instant) { c.hosted.group.EngineDied(d.engine, d.epoch) }

// withdraw takes the maps of all ranks back.
func (c *Core) withdraw() {
	c.side.Withdraw()
	clear(c.hosted.maps)
	c.hosted.whole = false
}

// rankMaps publishes the maps of ranks that have registered in this era. Once one has unregistered, this engine is no more to
// its readers.
func (c *Core) rankMaps() {
	h := c.hosted
	for n := range h.maps {
		m := h.group.OwnMap(n)
		switch {
		case len(m) == 0 && h.maps[n] != nil:
			c.withdraw()
			c.side.Begin(c.mem.Epoch, c.mem.Secret)
			return
		case len(m) == 0 || slices.Equal(m, h.maps[n]):
			continue
		}
		own := new(wire.Handshake)
		if wire.ParseHandshake(m, own) != nil || own.Lease.Epoch != c.mem.Epoch {
			continue // of the era before
		}
		if c.side.SetMap(uint32(n), m) == nil {
			h.maps[n] = m
		}
	}
	h.blockBytes = 0
	for _, m := range h.maps {
		if own := new(wire.Handshake); m != nil && wire.ParseHandshake(m, own) == nil {
			h.blockBytes += blockBytesOf(own)
		}
	}
	h.whole = !slices.ContainsFunc(h.maps, func(m []byte) bool { return m == nil })
}

// hostSink is the peerSink of a host context.
type hostSink struct{ c *Core }

func (k hostSink) LoadEngine(engine uint64, ranks []heartbeat.PeerRank) error {
	maps := make([]group.PeerMap, 0, len(ranks))
	for _, r := range ranks {
		maps = append(maps, group.PeerMap{Rank: r.Rank, Data: wire.AppendHandshake(nil, r.Map)})
	}
	err := k.c.hosted.group.LoadEngine(engine, maps)
	k.c.Wake()
	return err
}

// The error below says that the engine was removed meanwhile.
func (k hostSink) SetOffset(engine uint64, o clock.Offset) {
	_ = k.c.hosted.group.SetOffset(engine, o)
	k.c.Wake()
}

func (k hostSink) EngineOver(engine uint64, why heartbeat.Over) {
	_ = k.c.hosted.group.EngineOver(engine, why) // stale: it was removed
	k.c.Wake()
}

func (k hostSink) ReaderOver(engineHash, epoch uint64) {
	k.c.deaths.put(death{engine: engineHash, epoch: epoch})
	k.c.Wake()
}

// offer takes a map that came out of band; with the last one that a rank of ours needs all are told.
func (c *Core) offer(engine uint64, rank uint32, h *wire.Handshake, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	shape, ok := c.hosted.shapes[engine]
	if !ok {
		return ErrStale
	}
	if rank >= shape.Ranks() {
		return fmt.Errorf("%w: rank %d of engine %q, which has %d", ErrInvalid, rank, h.EngineID, shape.Ranks())
	}
	have := slices.DeleteFunc(c.hosted.offered[engine], func(m group.PeerMap) bool { return m.Rank == rank })
	have = append(have, group.PeerMap{Rank: rank, Data: slices.Clone(data)})
	for r := range c.cfg.shape().Ranks() {
		need, err := topology.Reach(c.cfg.shape(), shape, r)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		for _, n := range need {
			if !slices.ContainsFunc(have, func(m group.PeerMap) bool { return m.Rank == n }) {
				c.hosted.offered[engine] = have
				return nil
			}
		}
	}
	if err := c.hosted.group.LoadEngine(engine, have); err != nil {
		return err
	}
	delete(c.hosted.offered, engine)
	c.Wake()
	return nil
}

// closeHost ends a host context: its ranks close the rows of all leases first, as far as they live. ErrBusy: one has not, so blocks
// are not free yet; close the rank contexts, or call again. Those of a broken host have to be told so.
func (c *Core) closeHost(timeout time.Duration) error {
	c.mu.Lock()
	over := c.closed
	c.mu.Unlock()
	if over {
		return nil
	}
	err := c.await(timeout, c.allEnded)
	if errors.Is(err, ErrPoisoned) {
		err = c.awaitPoison(timeout)
	}
	c.mu.Lock()
	if n := c.hosted.group.Held(); n > 0 && err != nil {
		defer c.mu.Unlock()
		return fmt.Errorf("%w: %d leases have not ended on every rank: close the rank contexts first", ErrBusy, n)
	}
	c.closed = true
	c.closePage()
	c.mu.Unlock()
	if c.pump != nil {
		c.pump.halt()
	}
	c.side.close()
	c.mu.Lock()
	c.hosted.group.Leave()
	c.mu.Unlock()
	return c.hosted.streams.Close()
}

// allEnded has the ranks end every lease, those that a step has taken since it was asked before, too. It is a part of a step, and a
// broken group is left alone. Under the lock.
func (c *Core) allEnded() bool {
	atomic.StoreUint32(&c.mem.Control.Stepping, 1)
	defer atomic.StoreUint32(&c.mem.Control.Stepping, 0)
	if atomic.LoadUint32(&c.mem.Control.Poisoned) == 0 && c.hosted.group.Held() > 0 {
		var err error
		defer c.failSafe(&err)
		c.hosted.group.CancelAll()
	}
	return c.hosted.group.Held() == 0
}

// awaitPoison waits until every rank that lives has been told that this host is broken, and has said that its rows are closed.
func (c *Core) awaitPoison(timeout time.Duration) error {
	for end := time.Now().Add(timeout); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		told := c.tellPoison() && c.hosted.group.RowsClosed(c.clock())
		c.mu.Unlock()
		switch {
		case told:
			return nil
		case !time.Now().Before(end):
			return ErrTimeout
		}
	}
}
