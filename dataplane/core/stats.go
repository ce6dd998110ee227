package core

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/internal/stats"
)

// Stats are all counters and gauges as one flat JSON object, keys as group_name. Groups of counters: none (the plane),
// lease, beat, read, pump, side; of gauges: tracker, reads. Groups within side: client and server (handshakes), zmtp, readers
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
	all["poisoned"] = min(1, int(atomic.LoadUint32(&c.mem.Control.Poisoned)))
	all["kv_lease_duration_ms"] = c.cfg.Duration.Milliseconds()
	all["interval_ms"] = c.cfg.Interval().Milliseconds()
	all["extension_ms"] = c.cfg.Extension().Milliseconds()
	all["healthy"] = healthy(all)
	if c.side != nil {
		c.side.stats(all) // without our lock: a crowd at the listener makes this wait, and must not make a step wait
	}
	return all
}

// healthy is 0 if the context is poisoned, or if it knows engines and all of them have been failing for a lease duration; else 1.
func healthy(all map[string]any) int {
	gauge := func(name string) int { n, _ := all[name].(int); return n }
	known := gauge("tracker_idle") + gauge("tracker_loading") + gauge("tracker_connected") + gauge("tracker_broken") + gauge("group_engines")
	long := gauge("tracker_failing_long") + gauge("group_failing_long")
	if gauge("poisoned") != 0 || known > 0 && long == known {
		return 0
	}
	return 1
}

func (c *Core) stepCounters() map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosted != nil {
		return c.hostCounters()
	}
	all := map[string]any{
		"held":        c.leases.Held(),
		"held_blocks": c.leases.Blocks(),
		"lingering":   c.leases.Lingering(),
		"expected":    c.leases.Expected(),
		"alive":       c.plane.Alive(),
		"reads_open":  c.reads.Open(),
		"load_max_ns": uint64(c.agent.longest),
	}
	flatten(all, "", c.plane.Counters)
	flatten(all, "lease_", c.leases.Counters)
	flatten(all, "beat_", c.tracker.Counters())
	flatten(all, "read_", c.reads.Counters)
	flatten(all, "reads_", c.reads.Gauges())
	flatten(all, "tracker_", c.tracker.Gauges())
	if c.ranked != nil {
		flatten(all, "link_", c.ranked.link.Counters)
		flatten(all, "stream_", c.ranked.carrier.Counters())
		all["stream_state"] = int(c.ranked.carrier.State())
		all["misfit"] = 0 // 1: another kv_lease_duration than the host's
		if c.ranked.told.Era != 0 && !c.ranked.fits(c.cfg) {
			all["misfit"] = 1
		}
		all["maps_loaded"] = c.ranked.loaded.Load()
		all["maps_refused"] = c.ranked.refused.Load()
	}
	c.pumpCounters(all)
	return all
}

// hostCounters are those of a host context: groups as above, and rank_N_ for each rank.
func (c *Core) hostCounters() map[string]any {
	g := c.hosted.group
	all := map[string]any{"held": g.Held(), "held_blocks": g.Blocks(), "alive": g.Alive()}
	flatten(all, "", g.Counters)
	flatten(all, "group_", g.Gauges())
	for n := range g.Ranks() {
		flatten(all, fmt.Sprintf("rank_%d_", n), g.Rank(n))
	}
	c.pumpCounters(all)
	return all
}

func (c *Core) pumpCounters(all map[string]any) {
	if c.pump != nil {
		flatten(all, "pump_", c.pump.counters)
		all["pump_class"] = int(c.pump.class)
	}
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
