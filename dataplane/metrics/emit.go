package metrics

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// emitter sends the metrics of one context.
type emitter struct {
	out     chan<- prometheus.Metric
	snap    *watch.Snapshot
	base    []string // values of baseLabels or machineLabels
	machine bool
}

// labels are the names of e.base.
func (e *emitter) labels() []string {
	if e.machine {
		return machineLabels
	}
	return baseLabels
}

// put sends a metric of the table; more are the values of its own labels.
func (e *emitter) put(name string, v float64, more ...string) {
	m := byName[name]
	kind := prometheus.GaugeValue
	if m.kind == watch.Counter {
		kind = prometheus.CounterValue
	}
	values := append(append(make([]string, 0, len(e.base)+len(more)), e.base...), more...)
	e.out <- constant(descOf(name, e.labels(), m.labels...), kind, v, values...)
}

func (e *emitter) seconds(name string, d time.Duration, more ...string) {
	e.put(name, d.Seconds(), more...)
}

// now is when the page was read, by the clock of its steps.
func (e *emitter) now() clock.Instant { return e.snap.Stepped.Add(e.snap.Age) }

// age sends how long ago something was; nothing if it never was.
func (e *emitter) age(name string, at clock.Instant, more ...string) {
	if at != 0 {
		e.seconds(name, max(0, e.now().Sub(at)), more...)
	}
}

func (e *emitter) context() {
	s := e.snap
	e.put("up", 1)
	// The hash of the name, whatever the page says: two names of one hash would make every join by it an error.
	e.put("engine_info", 1, wire.HashText(wire.EngineHash([]byte(s.Engine))), clean(s.Provider), clean(s.Drive), clean(s.Carrier), strconv.Itoa(s.TP), strconv.Itoa(s.PP), clean(s.Library))
	e.seconds("lease_duration_seconds", s.Duration)
	e.seconds("heartbeat_interval_seconds", s.Interval)
	e.seconds("lease_extension_seconds", s.Extension)
	e.age("context_age_seconds", s.Opened)
	e.seconds("step_age_seconds", max(0, s.Age))
	e.put("poisoned", truth(s.Poisoned))
	e.put("draining", truth(s.Draining))
	e.values()
	e.readers()
	e.remotes()
	shown := make(map[string]bool, len(s.Histograms))
	for i := range s.Histograms {
		if h := &s.Histograms[i]; !shown[h.Name] {
			shown[h.Name] = true
			e.histogram(h)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// named are the keys of numbers that the head of a page has as well, from where context takes them.
var named = [...]string{"poisoned", "draining", "kv_lease_duration_ms", "interval_ms", "extension_ms"}

// values sends what the table takes from the page's numbers, and the rest of them by their keys.
func (e *emitter) values() {
	s := e.snap
	type entry struct {
		v    *watch.Value
		used bool
	}
	found := make(map[string]*entry, len(s.Values))
	order := make([]string, 0, len(s.Values))
	for i := range s.Values[:min(len(s.Values), valuesMax)] {
		key := clean(keyOf(&s.Values[i]))
		if _, twice := found[key]; !twice {
			found[key] = &entry{v: &s.Values[i]}
			order = append(order, key)
		}
	}
	for i := range table {
		m := &table[i]
		if len(m.parts) == 0 {
			continue
		}
		for k := range m.parts {
			sum, there := 0.0, false
			for _, key := range m.parts[k].keys {
				if f, ok := found[key]; ok {
					f.used, there = true, true
					sum += number(f.v)
				}
			}
			switch {
			case !there || !m.of.has(s.Role):
			case len(m.labels) > 0:
				e.put(m.name, sum*m.unit(), m.parts[k].value)
			default:
				e.put(m.name, sum*m.unit())
			}
		}
	}
	if blocks, ok := found["held_blocks"]; ok && s.BlockBytes > 0 && ofRequests.has(s.Role) {
		e.put("held_bytes", number(blocks.v)*float64(s.BlockBytes))
	}
	for _, t := range s.Tables {
		if t.Name == "slots" && ofRequests.has(s.Role) {
			e.put("leases_limit", float64(t.Count))
		}
	}
	for _, key := range order {
		f := found[key]
		if f.used || slices.Contains(named[:], key) {
			continue
		}
		if f.v.Kind == watch.Counter {
			e.put("internal_total", number(f.v), key)
		} else {
			e.put("internal", number(f.v), key)
		}
	}
}

// keyOf is a value's key in kvl_stats; of an array with the number of the entry.
func keyOf(v *watch.Value) string {
	if v.Label == "" {
		return v.Name
	}
	return v.Name + "/" + v.Label
}

// number reads a word: gauges are signed.
func number(v *watch.Value) float64 {
	if v.Kind == watch.Counter {
		return float64(v.V)
	}
	return float64(int64(v.V))
}
