// Package top is `kvlease top`: the contexts of a machine, or of metrics URLs, and what their peers hold, as a live table.
package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
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

	State   State         `json:"state"`
	Level   Level         `json:"level"`   // of the worst of it
	Trouble []string      `json:"trouble"` // in words
	Age     time.Duration `json:"page_age_ns"`

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
	RanksLost  uint64 `json:"ranks_lost,omitempty"` // of a host

	Peers []Peer `json:"peers"`

	key      string
	at       time.Duration // of these numbers, by the clock of the source
	bytes    uint64
	ofRank   bool // leases are those of its host, too
	fresh    bool // seen once only: no rates yet
	poisoned bool
	draining bool
	alive    bool
	stopped  bool
	sick     bool // healthy says 0
	misfit   bool // a rank whose host has another lease duration
	why      string
}

// State is how a context stands.
type State string

// States.
const (
	Fit     State = "ok"
	Idle    State = "idle"    // holds and wants nothing, and does not step
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
	Address string  `json:"address,omitempty"`

	key     string
	bytes   uint64
	unnamed bool
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
	At      time.Time `json:"at"`
	Engines []*Engine `json:"engines"`
	Notes   []string  `json:"notes,omitempty"`
}

// judge finds how everything of a context stands, once its numbers are there.
func (e *Engine) judge() {
	e.State = e.state()
	for i := range e.Peers {
		e.Peers[i].judge(e)
	}
	sortPeers(e.Peers)
	e.Beat, e.Slack = nil, nil
	for i := range e.Peers {
		p := &e.Peers[i]
		if p.Leases == 0 || e.gone() {
			continue
		}
		if p.Beat != nil && (e.Beat == nil || *p.Beat > *e.Beat) {
			e.Beat = p.Beat
		}
		if p.Slack != nil && (e.Slack == nil || *p.Slack < *e.Slack) {
			e.Slack = p.Slack
		}
	}
	e.Level, e.Trouble = Fine, []string{}
	for _, t := range []struct {
		is    bool
		level Level
		text  string
	}{
		{e.State == Missing, Alarm, e.why},
		{e.State == Dead && e.busy(), Alarm, "its process has ended; these are its last numbers"},
		{e.State == Dead && !e.busy(), Note, "its process has ended; it held nothing and wanted nothing"},
		{e.State == Broken, Alarm, "poisoned: every row is closed, and all leases end"},
		{e.State == Stopped, Alarm, "its process is stopped by a signal"},
		{e.State == Still, Alarm, fmt.Sprintf("no step for %s", spanText(e.Age))},
		{e.State == Cut, Alarm, "no engine that it knows could be reached for one lease duration"},
		{e.RanksLost > 0 && !e.gone(), Alarm, text.Counted(int(e.RanksLost), "rank is lost", "ranks are lost") + ": the engine has to be started again"},
		{e.misfit && !e.gone(), Alarm, "its host has another kv_lease_duration: this rank takes nothing"},
		{e.State == Drains, Note, "it takes nothing new"},
		{e.Abandoned > 0, Warn, text.Counted(int(e.Abandoned), "transfer", "transfers") + " may never end, and the blocks stay aside"},
		{e.Quarantine > 0, Warn, text.Counted(int(e.Quarantine), "read is over whose blocks stay aside", "reads are over whose blocks stay aside")},
		{e.Late > 0, Note, text.Counted(int(e.Late), "late stock read", "late stock reads") + ": it may have read blocks of another request"},
		{e.Stale > 0, Note, text.Counted(int(e.Stale), "stale read was", "stale reads were") + " kept out"},
		{e.Unproven > 0, Note, text.Counted(int(e.Unproven), "read", "reads") + " could not be proven"},
	} {
		if t.is {
			e.Level, e.Trouble = max(e.Level, t.level), append(e.Trouble, t.text)
		}
	}
	if e.gone() {
		return // its peers have their own lines
	}
	for i := range e.Peers {
		p := &e.Peers[i]
		e.Level = max(e.Level, p.Level)
		if p.Level >= Warn && len(e.Trouble) < 8 {
			e.Trouble = append(e.Trouble, p.words())
		}
	}
}

// stillAfter is how long a context that has something to do may not step: its stall_gap unless that is set, and a pass may take a second.
func (e *Engine) stillAfter() time.Duration {
	return max(time.Second, e.Interval) + 250*time.Millisecond
}

// busy says whether it holds something, or wants something.
func (e *Engine) busy() bool { return e.Leases+e.Expected+e.Tracked+e.Reads > 0 }

// gone says that what is known of it is over.
func (e *Engine) gone() bool { return e.State == Dead || e.State == Missing }

func (e *Engine) state() State {
	switch {
	case e.why != "":
		return Missing
	case !e.alive:
		return Dead
	case e.poisoned:
		return Broken
	case e.stopped:
		return Stopped
	case e.Age > e.stillAfter() && e.busy():
		return Still
	case e.sick:
		return Cut
	case e.draining:
		return Drains
	case e.Age > e.stillAfter():
		return Idle
	}
	return Fit
}

// judge of a peer. What is left to a reader's leases is the least that its renewals found, or what is left since it was heard last:
// so the number falls while a reader is silent.
func (p *Peer) judge(e *Engine) {
	p.Slack, p.Level = nil, Fine
	if e.gone() {
		return // nobody waits for these leases any more
	}
	if p.Kind == Reads {
		p.judgeOwner(e)
		return
	}
	if p.Leases == 0 {
		p.State = "-"
		return
	}
	p.Slack = p.least
	left, known := time.Duration(0), false
	switch {
	case p.unnamed && p.Oldest != nil:
		left, known = e.Duration-*p.Oldest, true
	case p.Beat != nil:
		left, known = e.Extension-*p.Beat, true
		if p.Oldest != nil { // the first term of a young lease is longer
			left = max(left, e.Duration-*p.Oldest)
		}
	}
	// Far below zero, and without a renewal lately, they are held by something else: a fixed life, or a longer first term.
	if known && (left > -e.Extension-time.Second || p.least != nil) && (p.Slack == nil || left < *p.Slack) {
		p.Slack = &left
	}
	switch {
	case p.unnamed:
		p.State = "unnamed"
	case p.Beat != nil && *p.Beat > 2*e.Interval:
		p.State, p.Level = "silent", Warn
	default:
		p.State = "beats"
	}
	if p.Slack != nil && !p.unnamed {
		switch {
		case *p.Slack < e.Interval:
			p.Level = Alarm
		case *p.Slack < 2*e.Interval:
			p.Level = max(p.Level, Warn)
		}
	} else if p.unnamed && p.Slack != nil && *p.Slack < e.Interval {
		p.Level = Warn // nobody has come for them
	}
}

func (p *Peer) judgeOwner(e *Engine) {
	switch {
	case p.Leases+p.Reads == 0:
		if p.State != "connected" && p.State != "idle" {
			p.Level = Note
		}
	case p.State == "broken":
		p.Level = Alarm
	case p.State != "connected":
		p.Level = Warn
	case p.Fails > 0, p.Heard != nil && *p.Heard > 4*e.Interval, p.Beat != nil && *p.Beat > 2*e.Interval:
		p.Level = Warn
	}
}

// words say what is wrong with a peer.
func (p *Peer) words() string {
	leases, tracked := text.Counted(int(p.Leases), "lease", "leases"), text.Counted(int(p.Leases), "tracked request", "tracked requests")
	switch {
	case p.Kind == Reads && p.State != "connected":
		return fmt.Sprintf("%s, which has blocks of %s, is %s", p.Name, tracked, p.State)
	case p.Kind == Reads && p.Fails > 0:
		return fmt.Sprintf("%s, which has blocks of %s, fails", p.Name, tracked)
	case p.Kind == Reads:
		return fmt.Sprintf("%s, which has blocks of %s, has not been heard lately", p.Name, tracked)
	case p.unnamed:
		return fmt.Sprintf("nobody has come for %s", leases)
	case p.Slack != nil && *p.Slack < 0:
		return fmt.Sprintf("%s has let %s run out", p.Name, leases)
	case p.Slack != nil:
		return fmt.Sprintf("%s: %s left to %s", p.Name, spanText(*p.Slack), leases)
	}
	return fmt.Sprintf("%s is silent", p.Name)
}

// Order is what engines are sorted by.
type Order int

// Orders.
const (
	ByTrouble Order = iota
	ByName
	ByLeases
	BySlack
	ByBeats
	ByReads
	orders
)

// String is the order's name.
func (o Order) String() string {
	return [...]string{"trouble", "name", "bytes held", "slack", "beats", "reads"}[o]
}

// sortEngines puts them in order; where they are equal by engine, its host before its ranks.
func sortEngines(list []*Engine, by Order, reverse bool) {
	slices.SortStableFunc(list, func(a, b *Engine) int {
		c := 0
		switch by {
		case ByTrouble: // who can still be helped before who is gone
			c = cmp.Or(cmp.Compare(b.Level, a.Level), cmp.Compare(boolInt(a.gone()), boolInt(b.gone())))
		case ByLeases:
			c = cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Leases, a.Leases))
		case BySlack:
			c = compareSpans(a.Slack, b.Slack)
		case ByBeats:
			c = -compareNumbers(a.Beats, b.Beats)
		case ByReads:
			c = cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Reads, a.Reads))
		}
		if c == 0 {
			c = cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Rank, b.Rank), cmp.Compare(boolInt(a.Role == "rank"), boolInt(b.Role == "rank")), strings.Compare(a.key, b.key))
			if by != ByName {
				return c
			}
		}
		if reverse {
			return -c
		}
		return c
	})
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// compareNumbers puts what has none first.
func compareNumbers(a, b *float64) int {
	switch {
	case a != nil && b != nil:
		return cmp.Compare(*a, *b)
	case a != nil:
		return 1
	case b != nil:
		return -1
	}
	return 0
}

// compareSpans puts what has none last.
func compareSpans(a, b *time.Duration) int {
	switch {
	case a != nil && b != nil:
		return cmp.Compare(*a, *b)
	case a != nil:
		return -1
	case b != nil:
		return 1
	}
	return 0
}

// sortPeers puts trouble first, then who holds most.
func sortPeers(list []Peer) {
	slices.SortStableFunc(list, func(a, b Peer) int {
		return cmp.Or(
			cmp.Compare(b.Level, a.Level), compareSpans(a.Slack, b.Slack), cmp.Compare(boolInt(a.Leases+a.Reads == 0), boolInt(b.Leases+b.Reads == 0)),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(b.Leases, a.Leases), strings.Compare(a.Name, b.Name), strings.Compare(a.key, b.key),
		)
	})
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
