package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Times are the distributions that a tracker keeps.
type Times struct {
	BeatLate histogram.Histogram // from when a round of heartbeats was due to when it began
	Connect  histogram.Histogram // from when an engine was known to be without connection to when it had one
	Read     histogram.Histogram // of reads, from the first post to the outcome
}

// EngineShown is how a remote engine stands, for the reader of a stats page.
type EngineShown struct {
	Engine, Hash uint64
	ID, Address  string
	State        State
	Since        clock.Instant // of State
	Native       bool
	Epoch        uint64
	Ranks        int           // those that this rank talks to
	Connect      time.Duration // what the last connection took, as in Times; 0: there was none
	Connects     uint64
	LastBeat     clock.Instant // round of heartbeats that began last; 0: none
	LastRow      clock.Instant // one-sided read of a rank that ended last; 0: none
	Fails        uint32        // of its worst rank, since it was heard
	Tracked      int           // requests
	Reads        int           // begun and not over, blocks held included
	Bytes        uint64        // read
	Unheard      uint64        // bytes sent to its worst rank and not known to have been taken in; 0 unless it is connected
	Offset       clock.Offset
	Failing      bool
	FailingFor   time.Duration
	Wanted       bool // see heartbeat.Wanted
	Withdrew     bool // what it was is over on purpose, asleep or closed, and nothing has come after it
}

// EnginePlaces is how many places of the engine table have been used.
func (t *Tracker) EnginePlaces() int { return t.places }

// ShowEngine tells how the engine in a place stands; false: there is none. Stepping thread.
func (t *Tracker) ShowEngine(i int, v *EngineShown) bool {
	e := &t.engines[i]
	if e.state == Absent {
		return false
	}
	*v = EngineShown{
		Engine: uint64(record.NewHandle(uint32(i), e.use)), Hash: e.hash, ID: e.id, State: e.state, Since: e.since,
		Ranks: len(e.links), Connect: e.took, Connects: e.connects, LastRow: e.heardAt, Fails: e.fails(),
		Tracked: e.requests, Reads: e.open, Bytes: e.bytes, Offset: e.offset,
		Withdrew: e.dead && e.why == Withdrew,
	}
	if a := t.reg.seats[i].address.Load(); a != nil {
		v.Address = *a
	}
	if e.facts != nil {
		v.Native, v.Epoch = e.facts.native, e.facts.epoch
	}
	if e.rounds > 0 || e.beatList != roundNone {
		v.LastBeat = e.lastRound
	}
	if e.state == Connected {
		v.Unheard = e.unheard()
	}
	var since clock.Instant
	if since, v.Failing = t.failingSince(e); v.Failing {
		v.FailingFor, v.Wanted = t.now.Sub(since), Wanted(e.requests, e.missedAt, t.now, t.cfg.Duration)
	}
	return true
}

// Add takes an engine into the gauges that count engines by how they stand.
func (g *Gauges) Add(v *EngineShown, duration time.Duration) {
	g.UnheardMax = max(g.UnheardMax, v.Unheard)
	if !v.Failing {
		return
	}
	g.Failing++
	g.FailingMs = max(g.FailingMs, uint64(v.FailingFor/time.Millisecond))
	switch {
	case v.FailingFor < duration:
	case v.Wanted:
		g.FailingLong++
	default:
		g.FailingUnused++
	}
}
