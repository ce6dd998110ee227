package core

import (
	"encoding/json"
	"testing"
)

// What ARCHITECTURE.md calls a counter or a gauge can be read, and no two parts of the plane write under one name.
func TestTheStatisticsHoldEveryCounterAndGauge(t *testing.T) {
	l := newLab(t, `{}`)
	var got map[string]any
	if err := json.Unmarshal(l.p.core.Stats(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	take := func(group map[string]any) {
		for name := range group {
			if want[name] {
				t.Errorf("%s: written twice", name)
			}
			want[name] = true
		}
	}
	add := func(prefix string, s any) {
		group := map[string]any{}
		flatten(group, prefix, s)
		take(group)
	}
	c := l.p.core
	add("", c.plane.Counters)
	add("lease_", c.leases.Counters)
	add("beat_", c.tracker.Counters())
	add("tracker_", c.tracker.Gauges())
	add("read_", c.reads.Counters)
	add("reads_", c.reads.Gauges())
	side := map[string]any{}
	c.side.stats(side)
	take(side)
	for _, name := range []string{"held", "held_blocks", "lingering", "expected", "alive", "reads_open", "load_max_ns", "registered_bytes", "registering_bytes", "asleep", "regions_proven", "regions_unproven", "kv_lease_duration_ms", "interval_ms", "extension_ms", "ending", "draining", "poisoned", "healthy", "untaken_bytes", "refused_ring", "refused_table", "stats_page_hidden", "stats_page_failed", "log_lost", "log_left_out", "go_collections", "go_heap_bytes"} {
		if want[name] {
			t.Errorf("%s: written twice", name)
		}
		want[name] = true
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range got {
		if !want[name] {
			t.Errorf("%s is of no group", name)
		}
	}
}
