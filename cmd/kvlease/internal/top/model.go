// Package top is `kvlease top`: the contexts of a machine, or of metrics URLs, and what their peers hold, as a live table.
package top

import (
	"time"

	"github.com/kvlease/kvlease/internal/jsons"
)

// Level is how much something asks for a look.
type Level uint8

// Levels.
const (
	Fine  Level = iota
	Note        // there was something
	Warn        // it goes the wrong way
	Alarm       // blocks or data are about to be lost, or somebody is gone
)

// mark shows a level where there are no colours.
func (l Level) mark() string { return [...]string{" ", ".", "*", "!"}[l] }

// Engine is one context: an engine, its host, or one of its ranks.
type Engine struct {
	Source  string `json:"source"` // its stats page, or a URL
	Name    string `json:"engine"`
	Hash    string `json:"hash,omitempty"`
	Role    string `json:"role"`
	Rank    int    `json:"rank"`
	Ranks   int    `json:"ranks"`
	PID     int    `json:"pid,omitempty"`
	Context int    `json:"context,omitempty"`
	Library string `json:"library,omitempty"`
	Drive   string `json:"drive,omitempty"`
	Carried string `json:"transport,omitempty"`

	State   State              `json:"state"`
	Level   Level              `json:"level"`   // of the worst of it
	Trouble jsons.List[string] `json:"trouble"` // in words
	Age     time.Duration      `json:"page_age_ns"`

	Duration  time.Duration `json:"kv_lease_duration_ns"`
	Interval  time.Duration `json:"interval_ns"`
	Extension time.Duration `json:"extension_ns"`

	Leases   uint64         `json:"leases"`
	Blocks   uint64         `json:"blocks"`
	Bytes    uint64         `json:"bytes"`
	Expected uint64         `json:"expected"`
	Lingers  uint64         `json:"lingering"`
	Beat     *time.Duration `json:"beat_age_ns,omitempty"`      // the oldest of what its peers need
	Slack    *time.Duration `json:"slack_ns,omitempty"`         // the least of its readers
	Beats    *float64       `json:"beats_per_second,omitempty"` // received and sent; nil: not watched for an interval yet
	Beaten   uint64         `json:"beats"`                      // so far
	Tracked  uint64         `json:"tracked"`
	Reads    uint64         `json:"reads_in_flight"`
	Rate     float64        `json:"read_bytes_per_second"`

	Stale      uint64 `json:"stale"` // reads that the fence kept from the engine
	Unproven   uint64 `json:"unproven"`
	Quarantine uint64 `json:"quarantine"` // reads that are over and whose blocks stay aside
	Abandoned  uint64 `json:"abandoned"`  // transfers that may never end
	Late       uint64 `json:"late_stock_reads"`
	RanksLost  uint64 `json:"ranks_lost,omitempty"`       // of a host
	Untaken    uint64 `json:"untaken_bytes,omitempty"`    // of what its hooks were told; of a rank, of what its host has said
	LogLost    uint64 `json:"log_records_lost,omitempty"` // for want of somebody who takes them

	Peers jsons.List[Peer] `json:"peers"`

	key      string
	at       time.Duration // of these numbers, by the clock of the source
	bytes    uint64
	ofRank   bool // leases are those of its host, too
	fresh    bool // seen once only: no rates yet
	poisoned bool
	draining bool
	alive    bool
	stopped  bool
	bare     bool // its memory is not registered; of a host none of its ranks'
	slept    int  // 1: given up on purpose; of a host how many ranks have
	sick     bool // healthy says 0
	misfit   bool // a rank whose host has another lease duration
	hostless bool // a rank whose host is lost
	calm     bool // a rank whose host holds and wants nothing
	why      string
}

// State is how a context stands.
type State string

// States.
const (
	Fit     State = "ok"
	Idle    State = "idle"    // holds and wants nothing, and does not step
	Sleeps  State = "sleeps"  // its memory is unregistered on purpose
	Drains  State = "drains"  // takes nothing new
	Cut     State = "cut off" // no engine that it knows can be reached
	Still   State = "still"   // does not step, although it holds something
	Stopped State = "stopped" // its process is stopped by a signal
	Broken  State = "broken"  // poisoned
	Dead    State = "dead"    // its process is gone, its page is left
	Missing State = "no page" // what was asked for does not answer
)

// Kind is what a peer is to the engine.
type Kind string

// Kinds.
const (
	Holds Kind = "holds" // reads from the engine, and holds blocks of it
	Reads Kind = "reads" // the engine reads from it
)

// Peer is an engine at the other end.
type Peer struct {
	Name  string `json:"name"`
	Hash  string `json:"hash,omitempty"`
	Kind  Kind   `json:"kind"`
	State string `json:"state"`
	Level Level  `json:"level"`

	Beat  *time.Duration `json:"beat_age_ns,omitempty"`  // holds: received; reads: sent
	Heard *time.Duration `json:"heard_age_ns,omitempty"` // reads: the last sign of its memory
	Since *time.Duration `json:"state_age_ns,omitempty"`

	Leases  uint64         `json:"leases"` // holds; reads: requests tracked
	Blocks  uint64         `json:"blocks"`
	Bytes   uint64         `json:"bytes"`
	Oldest  *time.Duration `json:"oldest_lease_age_ns,omitempty"`
	Slack   *time.Duration `json:"slack_ns,omitempty"`
	Expired uint64         `json:"expired"`

	Reads   uint64  `json:"reads_in_flight"`
	Rate    float64 `json:"read_bytes_per_second"`
	Fails   uint64  `json:"fails"`
	Unheard uint64  `json:"unheard_bytes"`
	Missed  bool    `json:"missed"` // reads: it fails, and requests are tracked there, or were lost, given up or not read there for it
	Address string  `json:"address,omitempty"`

	Asked    string         `json:"handshake,omitempty"` // reads: how asking it for its maps stands; empty: it is not asked, or metrics do not say
	AskFails uint64         `json:"handshake_fails"`     // in a row
	AskSince *time.Duration `json:"handshake_failing_ns,omitempty"`
	AskWhy   string         `json:"handshake_why,omitempty"` // of the last failure

	key     string
	bytes   uint64
	unnamed bool
	partly  bool           // reads: it fails, though something of it is heard
	least   *time.Duration // slack that renewals found left
}

// What leases are said to be held by that no reader has named yet, and those of readers without a place of their own.
const (
	nobody = "nobody yet"
	others = "all others"
)

// join names readers of which their owner knows the hash only: they have pages or metrics of their own, or somebody reads from them.
func join(list []*Engine) {
	names := map[string]string{}
	for _, e := range list {
		names[e.Hash] = e.Name
		for i := range e.Peers {
			if p := &e.Peers[i]; p.Kind == Reads {
				names[p.Hash] = p.Name
			}
		}
	}
	for _, e := range list {
		for i := range e.Peers {
			p := &e.Peers[i]
			if p.Name == "" && p.Hash != "" {
				p.Name = names[p.Hash]
			}
			if p.Name == "" && p.Hash != "" {
				p.Name = "engine " + p.Hash
			}
		}
	}
}

// Reading is one look at everything.
type Reading struct {
	At      time.Time           `json:"at"`
	Engines jsons.List[*Engine] `json:"engines"`
	Notes   jsons.List[string]  `json:"notes"`
}

// totals are over whole engines: what a rank holds its host has said.
type totals struct {
	Contexts, Troubled    int
	Leases, Blocks, Bytes uint64
	Rate                  float64
}

func (r *Reading) totals() (t totals) {
	for _, e := range r.Engines {
		t.Contexts++
		if e.Level >= Warn {
			t.Troubled++
		}
		if e.gone() {
			continue
		}
		t.Rate += e.Rate
		if !e.ofRank {
			t.Leases, t.Blocks, t.Bytes = t.Leases+e.Leases, t.Blocks+e.Blocks, t.Bytes+e.Bytes
		}
	}
	return t
}
