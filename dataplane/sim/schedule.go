// Package sim runs whole fleets of the real plane code on one virtual clock, with faults, and watches what may never happen.
//
// Everything that decides a run stands in its Schedule, and everything that is random in it is a hash of the schedule's seed and of
// what it is about: the same schedule gives the same log, and an action taken out changes nothing but what it did.
package sim

import (
	"cmp"
	"time"
)

// Schedule is everything that a run is made of.
//
// Times are spans since the start, on a true clock that no engine sees.
type Schedule struct {
	Name    string        `yaml:"name,omitempty"`
	Seed    uint64        `yaml:"seed,omitempty"`
	Span    time.Duration `yaml:"span"`              // of the actions; then faults end and everything has to come to its end
	Settle  time.Duration `yaml:"settle,omitempty"`  // how long that may take; 0: forty of the longest lease durations. Negative: the run ends with Span
	Link    Link          `yaml:"link,omitempty"`    // between all agents, until an action changes it
	Engines []Engine      `yaml:"engines"`           // in the order in which they step at one time
	Actions []Action      `yaml:"actions,omitempty"` // in order of time; those of one time in this order
}

// Engine is one engine, with all that runs for it.
type Engine struct {
	ID      string        `yaml:"id"`
	Stock   bool          `yaml:"stock,omitempty"`   // vLLM's own connector in place of ours
	Host    bool          `yaml:"host,omitempty"`    // a host context with TP x PP ranks; false: one context of role engine
	TP      uint32        `yaml:"tp,omitempty"`      // 0 counts as 1
	PP      uint32        `yaml:"pp,omitempty"`      // likewise
	Carrier string        `yaml:"carrier,omitempty"` // of a host: process (default) or delta
	Lease   time.Duration `yaml:"lease,omitempty"`   // lease duration; 30 s
	Pass    time.Duration `yaml:"pass,omitempty"`    // from the begin of a step to the next one; 20 ms
	Offset  time.Duration `yaml:"offset,omitempty"`  // what its clock is ahead of the true one at the start
	Drift   int           `yaml:"drift,omitempty"`   // parts per million that its clock runs fast
	Ranks   time.Duration `yaml:"ranks,omitempty"`   // what its ranks' clocks are ahead of its host's (delta: they run on other machines)
	Blocks  uint32        `yaml:"blocks,omitempty"`  // of its cache; 64
	Slots   uint32        `yaml:"slots,omitempty"`   // leases at once, and requests tracked; 64
	Known   []string      `yaml:"known,omitempty"`   // engines that it is told of at the start

	Reads uint32 `yaml:"reads,omitempty"` // transfers that its transport takes at once; 512

	Notifs uint32 `yaml:"notifs,omitempty"` // messages that a step applies; 1,024

	CarrierLoss float64 `yaml:"carrier_loss,omitempty"` // share of the messages of a delta carrier that vanish

	AllPeersCheck bool          `yaml:"all_peers_check,omitempty"` // as the configuration's keys of these names
	StockOff      bool          `yaml:"stock_off,omitempty"`       // stock_peers false
	ReadTimeout   time.Duration `yaml:"read_timeout,omitempty"`    // 4 leases
	StockLinger   time.Duration `yaml:"stock_linger,omitempty"`    // one extension; negative: none
	ExpectMax     time.Duration `yaml:"expect_max,omitempty"`      // 10 leases
	WireGrace     time.Duration `yaml:"wire_grace,omitempty"`      // 500 ms; negative: no death wires
	BlocksTTL     time.Duration `yaml:"blocks_ttl,omitempty"`      // fixed leases that name none; 16 leases
	Posting       time.Duration `yaml:"posting,omitempty"`         // what posting a descriptor takes of a step, which posts for 36 µs; 0: lists are posted whole
}

func (e *Engine) notifsMax() int { return int(cmp.Or(e.Notifs, 1024)) }

func (e *Engine) readsMax() uint32 {
	if e.Reads == 0 {
		return 512
	}
	return e.Reads
}

// Link is how one direction between two agents carries notifications and reads.
type Link struct {
	Delay     time.Duration `yaml:"delay,omitempty"`      // of a notification, at least
	Jitter    time.Duration `yaml:"jitter,omitempty"`     // up to this longer
	Loss      float64       `yaml:"loss,omitempty"`       // share of notifications that vanish
	Dup       float64       `yaml:"dup,omitempty"`        // share that arrives twice
	Reorder   float64       `yaml:"reorder,omitempty"`    // share that others may overtake
	Spread    time.Duration `yaml:"spread,omitempty"`     // how much later a second copy, or what is overtaken, may be; 1 ms
	ReadDelay time.Duration `yaml:"read_delay,omitempty"` // of a read's first block
	DescTime  time.Duration `yaml:"desc_time,omitempty"`  // of each block of it, up to this
	ReadFail  float64       `yaml:"read_fail,omitempty"`  // share of reads that end in an error while parts still land
	Late      time.Duration `yaml:"late,omitempty"`       // how much later they land than without the error, up to this
	Torn      float64       `yaml:"torn,omitempty"`       // share of reads of rows that are copied byte by byte at different times
	Rate      float64       `yaml:"rate,omitempty"`       // bytes a second; 0: no limit
	Break     time.Duration `yaml:"break,omitempty"`      // what gets nothing through for so long is a lost connection; 20 s
	RDMA      bool          `yaml:"rdma,omitempty"`       // memory answers reads without its process
}

// Verb is what an action does. The comment names the fields that count, beside At and Engine.
type Verb string

const (
	// The engine as owner. Req names the grant for all other actions; ID is the request's id on the wire, Req if it is empty.
	Expect   Verb = "expect"   // Req, ID
	Grant    Verb = "grant"    // Req, ID, Blocks, For (time to live, 0: the configured), Fixed
	Cancel   Verb = "cancel"   // Req
	Revoke   Verb = "revoke"   // Req
	Pressure Verb = "pressure" // Blocks

	// The engine as reader. Req is a grant of Peer; its parameters go the way of the router, as JSON.
	Track   Verb = "track"   // Req, Peer, As (name of the local request; Req if it is empty)
	Read    Verb = "read"    // As or Req; From, Blocks: positions, 0 blocks: nothing is left to read; All: every position
	Untrack Verb = "untrack" // As or Req
	Reject  Verb = "reject"  // Req, Peer

	// Messages put into the network by hand, N copies (0 counts as 1), from rank Rank of Engine to rank ToRank of Peer.
	Heartbeat  Verb = "heartbeat"  // Reqs: stock heartbeat of these ids
	Completion Verb = "completion" // Reqs: stock completion of each; Readers is n
	Renew      Verb = "renew"      // Reqs: native, by the keys of these grants
	Complete   Verb = "complete"   // Reqs, Readers: native
	Release    Verb = "release"    // Reqs: native
	Leaving    Verb = "leaving"    // native
	Bytes      Verb = "bytes"      // Data

	// Fate of messages and reads. Rank and ToRank -1: of all ranks.
	Lose     Verb = "lose"      // Peer, N: the next N notifications from Engine to Peer vanish
	Double   Verb = "double"    // Peer, N: the next N arrive twice
	Hold     Verb = "hold"      // Peer, N, For: the next N arrive For later
	FailRead Verb = "fail_read" // N: the next N posted reads of Engine end in an error; For: how long their blocks land on behind it
	HoldRead Verb = "hold_read" // For: reads of Engine that are posted until then do not end before; 0: never

	// The network. For: how long; 0: until the end of the span.
	SetLink   Verb = "link"      // Peer, Link, For: from Engine to Peer, all ranks
	Partition Verb = "partition" // Peer, For: notifications and reads both ways wait or vanish
	Reset     Verb = "reset"     // Peer: connections from Engine to Peer break
	Handshake Verb = "handshake" // How, For: how Engine answers on its side channel
	WireCut   Verb = "wire_cut"  // Peer: the connection of the death wire from Engine (reader) to Peer falls, both live

	// Processes. Rank -1: the engine's host and all ranks; -2: the host alone.
	Stop       Verb = "stop"       // Rank, For: the process stands still
	Stall      Verb = "stall"      // Rank, For: no step, while the process lives
	SetPass    Verb = "pass"       // For: length of passes from now on
	Kill       Verb = "kill"       // Rank
	Start      Verb = "start"      // after kill: the engine again at its address; ID: under this engine id, else its own
	Clock      Verb = "clock"      // For: CLOCK_REALTIME jumps by this; no plane may see it
	Suspend    Verb = "suspend"    // For: the machine sleeps: CLOCK_BOOTTIME goes on, CLOCK_MONOTONIC does not
	Poison     Verb = "poison"     // Rank: a panic in the step
	Drain      Verb = "drain"      // kvl_drain
	Unregister Verb = "unregister" // Rank
	Register   Verb = "register"   // Rank

	// The carrier between a host and its ranks (delta), N messages, ToHost: of that direction.
	LoseDelta   Verb = "lose_delta"
	DoubleDelta Verb = "double_delta"
	SwapDelta   Verb = "swap_delta"
	LoseRank    Verb = "lose_rank" // the engine says that the rank is lost (kvl_delta_lost), or its stream breaks

	// Engines that the engine knows.
	AddEngine    Verb = "engine_add"    // Peer
	RemoveEngine Verb = "engine_remove" // Peer
)

// How an engine answers handshakes.
const (
	Refuse = "refused" // nobody listens
	Never  = "never"   // connects, and no answer comes
	Slow   = "slow"    // an answer takes 4 s
	Other  = "other"   // a layout that does not fit
	Well   = ""        // as it should
)

// AllRanks and HostOnly are places of an action's Rank.
const (
	AllRanks = -1
	HostOnly = -2
)

// Action is one thing that happens.
type Action struct {
	At      time.Duration `yaml:"at"`
	Engine  string        `yaml:"engine"`
	Do      Verb          `yaml:"do"`
	Peer    string        `yaml:"peer,omitempty"`
	Rank    int           `yaml:"rank,omitempty"`
	ToRank  int           `yaml:"to_rank,omitempty"`
	Req     string        `yaml:"req,omitempty"`
	As      string        `yaml:"as,omitempty"`
	ID      string        `yaml:"id,omitempty"`
	Reqs    []string      `yaml:"reqs,omitempty,flow"`
	Blocks  uint32        `yaml:"blocks,omitempty"`
	From    uint32        `yaml:"from,omitempty"`
	All     bool          `yaml:"all,omitempty"`
	Fixed   bool          `yaml:"fixed,omitempty"`
	ToHost  bool          `yaml:"to_host,omitempty"`
	N       int           `yaml:"n,omitempty"`
	Readers int           `yaml:"readers,omitempty"`
	For     time.Duration `yaml:"for,omitempty"`
	How     string        `yaml:"how,omitempty"`
	Data    string        `yaml:"data,omitempty"` // bytes; in a case file they may be written with escapes
	Link    *Link         `yaml:"link,omitempty"`
}
