package sim

import (
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/stats"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// LeaseView is what is known of a grant.
type LeaseView struct {
	Named   bool // an expectation or grant of this name was made
	Held    bool // granted, and the engine has not polled its end
	Freed   bool
	Reason  int // record.Freed*
	FreedAt time.Duration
	Ranks   []bool // by rank: its table holds it
}

// Lease tells of the latest grant with this name.
func (w *World) Lease(req string) LeaseView {
	g := w.grants[req]
	if g == nil {
		return LeaseView{}
	}
	v := LeaseView{Named: true, Held: g.granted && !g.ended, Freed: g.granted && g.ended, Reason: g.reason}
	if v.Freed {
		v.FreedAt = g.at.Sub(startInstant)
	}
	for _, r := range g.life.ranks {
		s := r.mem.Slots[g.handle.Slot()].State
		v.Ranks = append(v.Ranks, uint32(s>>32) == g.handle.Use() && uint32(s)&record.Mask == record.Granted && !r.gone)
	}
	return v
}

// TrackView is what is known of a request at a reader.
type TrackView struct {
	Named      bool
	Tracked    bool // neither read nor untracked
	Read       bool // read was called
	Done       bool // data accepted
	Failed     bool
	Status     int // of Failed: record.Read*
	At         time.Duration
	BlocksHeld bool // failed, and its blocks are still set aside
	Gone       bool // told that the lease is gone
	AtRisk     bool
}

// Track tells of the latest request of this name (As) at an engine.
func (w *World) Track(engine, as string) TrackView {
	q := w.requests[engine+"/"+as]
	if q == nil {
		return TrackView{}
	}
	return TrackView{
		Named: true, Tracked: !q.read && !q.untrack, Read: q.read, Done: q.done, Failed: q.outcome && !q.done, Status: q.status,
		At: q.at.Sub(startInstant), BlocksHeld: q.held, Gone: q.gone, AtRisk: q.risk,
	}
}

const (
	hostPrefix = "host_"       // of a host's own counters
	freeBlocks = "free_blocks" // of the engine's cache
)

// counterGroups are the parts whose counters and gauges Counter knows, with the prefixes that kvl_stats gives them.
var counterGroups = []struct {
	prefix string
	of     any
}{
	{"", dataplane.Counters{}}, {"lease_", lease.Counters{}}, {"beat_", heartbeat.Counters{}}, {"read_", read.Counters{}},
	{"reads_", read.Gauges{}}, {"tracker_", heartbeat.Gauges{}}, {"link_", dataplane.LinkCounters{}}, {hostPrefix, group.Counters{}},
}

// Counters lists the names that Counter knows: those of kvl_stats, and of a host's own counters with host_ before them. An array
// has a name for each index.
var Counters = sync.OnceValue(func() (names []string) {
	all := map[string]int64{}
	for _, g := range counterGroups {
		flatten(all, g.prefix, g.of)
	}
	for n := range all {
		names = append(names, n)
	}
	names = append(names, "held", "held_blocks", "lingering", "alive", "expected", "ending", "reads_open", freeBlocks)
	slices.Sort(names)
	return names
})

// flatten adds the fields of a struct of integers and arrays of integers.
func flatten(all map[string]int64, prefix string, s any) {
	stats.Each(s, func(name string, v reflect.Value) {
		if v.Kind() != reflect.Array {
			all[prefix+name] += number(v)
			return
		}
		for k := range v.Len() {
			all[prefix+name+"_"+string(rune('0'+k))] += number(v.Index(k))
		}
	})
}

func number(v reflect.Value) int64 {
	switch {
	case v.CanInt():
		return v.Int()
	case v.CanUint():
		return int64(v.Uint())
	}
	return 0
}

// Counter gives a counter or gauge of an engine, summed over its ranks.
func (w *World) Counter(engine, name string) (int64, bool) {
	p := w.byID[engine]
	if p == nil || !slices.Contains(Counters(), name) {
		return 0, false
	}
	all := map[string]int64{}
	for _, r := range p.life.ranks {
		flatten(all, "", r.plane.Counters)
		flatten(all, "lease_", r.leases.Counters)
		flatten(all, "beat_", r.tracker.Counters())
		flatten(all, "read_", r.reads.Counters)
		flatten(all, "reads_", r.reads.Gauges())
		flatten(all, "tracker_", r.tracker.Gauges())
		if r.link != nil {
			flatten(all, "link_", r.link.Counters)
		}
		all["held"] += int64(r.leases.Held())
		all["held_blocks"] += int64(r.leases.Blocks())
		all["lingering"] += int64(r.leases.Lingering())
		all["expected"] += int64(r.leases.Expected())
		all["ending"] += int64(r.leases.Ending())
		all["alive"] += int64(r.plane.Alive())
		all["reads_open"] += int64(r.reads.Open())
	}
	if h := p.life.host; h != nil {
		flatten(all, hostPrefix, h.group.Counters)
	}
	all[freeBlocks] = int64(len(p.life.app.free))
	return all[name], true
}
