// Package soak runs a prefill and a decode process over real NIXL for minutes, on a machine whose cores are busy with other
// work, and reports what an engine would feel: the longest step, the longest time without one, collections, and which lease
// durations held without a false expiry. Numbers are reported, never asserted.
package soak

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/internal/jsons"
)

// Spec is what both processes of a run are told.
type Spec struct {
	Mode      string          // pump or inline
	Transport string          // nixl
	NixlPath  string          //
	Priority  string          // pump_priority, "" its default
	Leases    []time.Duration // one pair of contexts each, all at once
	Port      int             // of the first side channel; the others follow
	Pass      time.Duration   // inline: length of a forward pass, all of it work
}

const (
	requestsEach = 16                     // alive at once, per duration
	blocksEach   = 8                      // per request
	handOver     = 500 * time.Millisecond // of the first term beyond the duration: the router's part is not what is measured
	waitLeast    = time.Second            // a request waits that long before it is read, and up to waitSpan more
	waitSpan     = 2 * time.Second
	churnEvery   = 4 * time.Second // each reader leaves one engine and meets it again that often
	scrapeEvery  = time.Second
)

// Ladder are the durations that a run tries. Each has a context of its own on both sides.
var Ladder = []time.Duration{
	50 * time.Millisecond, 75 * time.Millisecond, 100 * time.Millisecond, 150 * time.Millisecond,
	200 * time.Millisecond, 300 * time.Millisecond, 500 * time.Millisecond, time.Second,
}

// config is that of one context. The last place of the ladder is the engine that readers leave and meet again.
func (s *Spec) config(side string, i int) []byte {
	lease := time.Second
	if i < len(s.Leases) {
		lease = s.Leases[i]
	}
	keys := map[string]any{
		"engine_id": engineID(side, i), "transport": s.Transport, "drive": s.Mode,
		"kv_lease_duration": lease.Seconds(), "allow_short_leases": true,
		"step_max":     (lease * 3 / 10).Seconds(), // two lost beats are survivable up to a third of the duration
		"read_timeout": max(4*lease, 5*time.Second).Seconds(), "block_size": kvcache.Tokens,
		"stall_cover":  (5 * time.Second).Seconds(),
		"requests_max": 256, "tracked_max": 256, "reads_max": 64, "engines_max": 8, "events_max": 1024, "log": "host", // its books judge
	}
	if side == "P" {
		keys["side_channel_listen"], keys["side_channel_host"], keys["side_channel_port"] = true, "127.0.0.1", s.Port+i
	}
	if s.Priority != "" {
		keys["pump_priority"] = s.Priority
	}
	if s.NixlPath != "" {
		keys["nixl_path"] = s.NixlPath
	}
	text, err := json.Marshal(keys)
	if err != nil { // strings, numbers and booleans only
		panic(err)
	}
	return text
}

func engineID(side string, i int) string { return fmt.Sprintf("soak-%s%d", side, i) }

// Offer is what a router would carry: one request of one duration. P writes it, D reads it.
type Offer struct {
	Context    int                `json:"c"`
	ID         string             `json:"id"`
	Blocks     jsons.List[uint32] `json:"b"`
	Epoch, Key uint64
	Slot, Use  uint32
}

// Figures are what one context of a process has seen.
type Figures struct {
	LeaseMs   float64           `json:"lease_ms"`
	Requests  uint64            `json:"requests"`
	Completed uint64            `json:"completed"` // P: freed as completed
	Expired   uint64            `json:"expired"`   // P: freed as expired although a living D tracked it
	OtherEnds uint64            `json:"other_ends"`
	Read      uint64            `json:"read"` // D: read and proven
	WrongData uint64            `json:"wrong_data"`
	Failed    map[string]uint64 `json:"failed,omitempty"` // D: by outcome
	Beats     uint64            `json:"beats"`
	Steps     uint64            `json:"steps"`
	StepMaxMs float64           `json:"step_max_ms"`
	PauseMax  float64           `json:"pause_max_ms"` // beyond the sleep or the pass
	Overslept uint64            `json:"overslept"`
	LoadMaxMs float64           `json:"load_max_ms"` // longest load of an agent's metadata, which is a part of a step
	Priority  string            `json:"priority,omitempty"`
}

// Process is what one process has seen.
type Process struct {
	Contexts    jsons.List[Figures] `json:"contexts"`
	Scrapes     uint64              `json:"scrapes"`
	ScrapeMaxMs float64             `json:"scrape_max_ms"`
	Handshakes  uint64              `json:"handshakes"` // engines met again
	Collections uint32              `json:"collections"`
	GCPauseMs   float64             `json:"gc_pause_max_ms"`
	Pressure    Pressure            `json:"pressure"` // of the whole run
	Worst       *Stall              `json:"worst_stall,omitempty"`
}
