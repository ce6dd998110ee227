package core

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Stats are all counters and gauges as one flat JSON object, keys as group_name. Groups of counters: none (the plane),
// lease, beat, read, pump, side, go (its runtime); of gauges: tracker, reads. Groups within side: client and server (handshakes), zmtp, readers
// and owners (death wires). pump_class is what the kernel has granted the pump's thread: 0 nothing, 1 nice,
// 2 real-time. kv_lease_duration_ms, interval_ms and extension_ms are what is in
// effect; healthy is the one number to watch.
func (c *Core) Stats() []byte {
	out, err := json.Marshal(c.counters())
	if err != nil { // numbers and texts only
		panic(err)
	}
	return out
}

func (c *Core) counters() map[string]any {
	all := c.stepCounters()
	if c.side != nil {
		c.side.stats(all) // without our lock: a crowd at the listener makes this wait, and must not make a step wait
	}
	var g goStats
	g.read()
	flatten(all, "go_", g.values)
	return all
}

// gauges are what stands now. Those of a part that the role does not have are 0, and not shown.
type gauges struct {
	own     ownGauges
	state   stateGauges
	plane   planeGauges
	rank    rankGauges
	pump    pumpGauges
	tracker heartbeat.Gauges
	reads   read.Gauges
	stream  stream.Counters
	group   group.Gauges
	ranks   []group.RankStats
}

// ownGauges are those of every context.
type ownGauges struct {
	Held              int    // leases
	HeldBlocks        uint64 // under them
	Alive             int    // leases, requests, reads and messages that need further steps
	Healthy           int    // 0: poisoned, or all engines that are known have been failing for a lease duration, and requests need one of them
	KvLeaseDurationMs int64  // in effect
	IntervalMs        int64  // between two heartbeats of a request
	ExtensionMs       int64  // what a heartbeat gives
	StatsPageHidden   int    // 1: its folder cannot hold the stats page, so nobody else sees it, or there is no memory for one
	StatsPageFailed   uint64 // writes of the stats page that failed: no room, or somebody has cut the file
}

// stateGauges are those that change although nobody steps: the page shows them beside the step.
type stateGauges struct {
	Poisoned int // 1: the core broke, or kvl_fence_all was called
	Draining int // 1: kvl_drain or kvl_close was called, and nothing new is taken

	UntakenBytes uint64 // of records of hooks, of a rank of what its host has said, that no step has taken; not what waits for a message of the engine that carries it (carrier delta)
	RefusedRing  uint64 // hooks that answered KVL_ERR_FULL for want of room in a ring: nobody steps, or too seldom
	RefusedTable uint64 // hooks that answered it since all slots were taken (requests_max, tracked_max)
	LogLost      uint64 // records of the log that found no place: nobody takes them, or too seldom
	LogLeftOut   uint64 // records of the log that came more often than its rate allows
}

// read takes them. Any thread.
func (s *stateGauges) read(c *Core) {
	of := c.mem.Control
	s.Poisoned = min(1, int(atomic.LoadUint32(&of.Poisoned)))
	s.Draining = min(1, int(atomic.LoadUint32(&of.Draining)))
	if s.UntakenBytes = c.half().Untaken(); c.ranked != nil {
		s.UntakenBytes += c.ranked.carrier.Untaken()
	}
	s.RefusedRing, s.RefusedTable = atomic.LoadUint64(&of.RefusedRing), atomic.LoadUint64(&of.RefusedTable)
	if c.log != nil {
		s.LogLost, s.LogLeftOut = c.log.log.Lost(), c.log.log.LeftOut()
	}
}

// planeGauges are those of a context with an agent.
type planeGauges struct {
	Expected  int    // requests that have started to run and hold no lease yet
	Ending    int    // leases and expectations that are over, whose end has found no room in the completion ring: their slots are not free
	Lingering int    // leases past their deadline, held for a stock reader
	ReadsOpen int    // transfers whose memory may still be written
	LoadMaxNs uint64 // longest load of a peer's metadata

	RegisteredBytes  uint64 // of the cache and of ours beside it that the transport has; grows while a registration is under way
	RegisteringBytes uint64 // what the registration that is under way is to reach; 0: none is
	RegionsProven    int    // registered regions of which a page was read back as by a peer
	RegionsUnproven  int    // and those of which that was not shown: memory_unproven in the log says why
	Asleep           int    // 1: memory was unregistered on purpose (kvl_unregister), and nobody has tried to register any since
}

// rankGauges are those of a rank.
type rankGauges struct {
	StreamState int    // to the host: 0 waiting, 1 attached, 2 lost
	Misfit      int    // 1: another kv_lease_duration than the host's
	HostLost    int    // 1: the host, or the stream to it, is gone: nothing new comes, and what is held ends at its deadline
	MapsLoaded  uint64 // maps and deaths of peers that the loader is done with
	MapsRefused uint64 // of these, those that could not be used
}

// pumpGauges are those of a pump.
type pumpGauges struct {
	Class int // what the kernel has granted its thread: 0 nothing, 1 nice, 2 real-time
}

// gather takes what stands now. walk has counted the engines; nil: they are walked here. Under the lock.
func (c *Core) gather(g *gauges, walk *engineWalk) {
	own := &g.own
	if c.hosted != nil {
		h := c.hosted.group
		own.Held, own.HeldBlocks, own.Alive = h.Held(), h.Blocks(), c.alive()
		if g.group = h.Counted(); walk == nil {
			g.group = h.Gauges()
		}
		for n := range g.ranks {
			g.ranks[n] = h.Rank(n)
		}
	} else {
		own.Held, own.HeldBlocks, own.Alive = c.leases.Held(), c.leases.Blocks(), c.alive()
		g.plane = planeGauges{Expected: c.leases.Expected(), Ending: c.leases.Ending(), Lingering: c.leases.Lingering(), ReadsOpen: c.reads.Open(), LoadMaxNs: uint64(c.agent.longest)}
		c.gatherMemory(&g.plane)
		if g.tracker = c.tracker.Counted(); walk == nil {
			g.tracker = c.tracker.Gauges()
		}
		g.reads = c.reads.Gauges()
	}
	if walk != nil {
		walk.into(g)
	}
	if r := c.ranked; r != nil {
		g.rank = rankGauges{StreamState: int(r.carrier.State()), MapsLoaded: r.loaded.Load(), MapsRefused: r.refused.Load()}
		if r.told.Era != 0 && !r.fits(c.cfg) {
			g.rank.Misfit = 1
		}
		if r.carrier.State() == stream.Lost {
			g.rank.HostLost = 1
		}
		g.stream = r.carrier.Counters()
	}
	if c.pump != nil {
		g.pump.Class = int(c.pump.class)
	}
	own.KvLeaseDurationMs, own.IntervalMs, own.ExtensionMs = c.cfg.Duration.Milliseconds(), c.cfg.Interval().Milliseconds(), c.cfg.Extension().Milliseconds()
	g.state.read(c)
	own.Healthy = g.healthy()
	own.StatsPageHidden, own.StatsPageFailed = 0, 0
	if c.pageErr != nil {
		own.StatsPageHidden = 1
	}
	if c.page != nil {
		own.StatsPageFailed = c.page.out.Failed()
	}
}

// healthy is 0 if the context is poisoned, or if all engines that it knows have been failing for a lease duration and one of them is
// missed; else 1.
func (g *gauges) healthy() int {
	known := g.tracker.Idle + g.tracker.Loading + g.tracker.Connected + g.tracker.Broken + g.group.Engines
	long := g.tracker.FailingLong + g.group.FailingLong
	if g.state.Poisoned != 0 || long > 0 && long+g.tracker.FailingUnused+g.group.FailingUnused == known {
		return 0
	}
	return 1
}

func (c *Core) stepCounters() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	var g gauges
	if c.hosted != nil {
		g.ranks = make([]group.RankStats, c.hosted.group.Ranks())
	}
	c.gather(&g, nil)
	all := map[string]any{}
	flatten(all, "", g.own)
	flatten(all, "", g.state)
	if c.hosted != nil {
		flatten(all, "", c.hosted.group.Counters)
		flatten(all, "group_", g.group)
		for n := range g.ranks {
			flatten(all, fmt.Sprintf("rank_%d_", n), g.ranks[n])
		}
	} else {
		flatten(all, "", g.plane)
		flatten(all, "", c.plane.Counters)
		flatten(all, "lease_", c.leases.Counters)
		flatten(all, "beat_", c.tracker.Counters())
		flatten(all, "tracker_", g.tracker)
		flatten(all, "read_", c.reads.Counters)
		flatten(all, "reads_", g.reads)
	}
	if c.ranked != nil {
		flatten(all, "", g.rank)
		flatten(all, "link_", c.ranked.link.Counters)
		flatten(all, "stream_", g.stream)
	}
	if c.pump != nil {
		flatten(all, "pump_", c.pump.counters)
		flatten(all, "pump_", g.pump)
	}
	return all
}

// flatten adds the fields of a struct of integers and arrays of integers under snake case names.
func flatten(all map[string]any, prefix string, s any) {
	stats.Each(s, func(name string, v reflect.Value) { all[prefix+name] = v.Interface() })
}

// Held is the number of leases held.
func (c *Core) Held() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosted != nil {
		return c.hosted.group.Held()
	}
	return c.leases.Held()
}
