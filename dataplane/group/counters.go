package group

import (
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Counters of a group. They only grow.
type Counters struct {
	Steps    uint64
	Sent     uint64 // records to ranks
	Unsent   uint64 // records for which a rank's stream had no room: its full state follows
	Received uint64 // records of ranks
	Bad      uint64 // of these, those of unknown kind or wrong length
	Misfits  uint64 // of these, those about what cannot be
	Repeated uint64 // of these, those that said what was known

	Expects, Grants uint64
	Cancelled       uint64    // expectations
	Lapsed          uint64    // expectations
	Duplicates      uint64    // grants under an id that holds a lease
	BadHandle       uint64    // submissions that do not fit their slot: a bug of the host side
	LongIDsFull     uint64    // ids too long for the room left: a rank that has to be told again gets another one
	Retired         uint64    // slots out of uses
	Freed           [9]uint64 // leases, by the gravest reason

	Tracked, Untracked, Rejected uint64
	Reads                        uint64
	Outcomes                     [7]uint64 // of reads, by the gravest status
	Gone, AtRisk                 uint64
	RunsFull                     uint64 // reads that failed for want of room for their runs
	BadParts                     uint64
	Stale                        uint64 // requests of engines that are not known
	RejectsUntold                uint64 // rejects that a rank was not told, since laterMax waited: the owner's lease ends by itself
	DeathsUntold                 uint64 // the same of readers' deaths
	WaitTimeouts                 uint64 // reads of fixed leases whose engine's clock did not become known
	Cut                          uint64 // requests ended on the other ranks because one was bad

	FullStates  uint64 // begun, over all ranks
	FullsDone   uint64
	MapsSent    uint64
	MapsTaken   uint64 // own maps of ranks
	MapsBroken  uint64
	RanksLost   uint64
	EventsHeld  uint64 // publications put off because the completion ring was full
	EventsCut   uint64 // steps that left events for the next one
	ReceivedCut uint64 // steps that left records of a rank for the next one
}

// RankStats is how one rank stands.
type RankStats struct {
	State      stream.State
	Registered bool
	Poisoned   bool
	Behind     bool   // its full state has still to be told, or is being told
	FullStates uint64 // begun
	Received   uint64 // records
	Sent       uint64
	Unsent     uint64
	Held       uint32 // as it told last
	Tracked    uint32
	Reads      uint32
	Steps      uint64
}

// Rank gives how rank n stands. Stepping thread.
func (g *Group) Rank(n int) RankStats {
	r := &g.ranks[n]
	return RankStats{
		State: r.carrier.State(), Registered: r.up, Poisoned: r.broken, Behind: r.busy(), FullStates: r.fulls,
		Received: r.received, Sent: r.sent, Unsent: r.unsent,
		Held: r.state.Held, Tracked: r.state.Tracked, Reads: r.state.Reads, Steps: r.state.Steps,
	}
}

// Ranks is how many there are.
func (g *Group) Ranks() int { return len(g.ranks) }

// Gauges are what there is now.
type Gauges struct {
	Held, Expected, Ending     int
	Tracked, Reading, Waiting  int
	BlocksHeld                 int
	RunsLeft                   int // chunks of 32
	LongIDsLeft, LongRemotes   int
	RanksUp, RanksLost, Behind int
	Engines, Failing           int    // engines that are known; of these, that are not up on all ranks, or fail on one, for an interval
	FailingLong                int    // for one lease duration, and requests are tracked there, or were in its trouble: two minutes and a lease duration ago at most
	FailingUnused              int    // for one lease duration, and nobody misses them
	FailingMs                  uint64 // the longest of all
	RanksAsleep                int    // ranks that live and have unregistered their memory
}

// Gauges gives them. Stepping thread; it walks the engines once.
func (g *Group) Gauges() Gauges {
	v := g.Counted()
	var e heartbeat.EngineShown
	for i := range g.places {
		if g.ShowEngine(i, &e) {
			v.Add(&e, g.cfg.Duration)
		}
	}
	return v
}

// Counted is Gauges without those for which the engines are walked: Engines and Failing*.
func (g *Group) Counted() Gauges {
	v := Gauges{
		Held: g.held, Expected: g.expected, Ending: g.ends.N, Tracked: g.tracked, Reading: g.reading, Waiting: g.waiting.N + g.stuck.N,
		BlocksHeld: g.blocksHeld, RunsLeft: g.runs.free.Left(), LongIDsLeft: g.ids.free.Left(), LongRemotes: g.remotes.free.Left(),
	}
	for i := range g.ranks {
		r := &g.ranks[i]
		if r.up {
			v.RanksUp++
		}
		if g.slept(r) {
			v.RanksAsleep++
		}
		if g.dead&r.bit != 0 {
			v.RanksLost++
		} else if r.busy() {
			v.Behind++
		}
	}
	return v
}
