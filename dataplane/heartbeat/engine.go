package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// State is where an engine stands.
type State uint8

const (
	Absent    State = iota // no engine has this place
	Idle                   // no handshake yet
	Loading                // its blobs wait for their turn, or for the old agents to be dropped
	Connected              // with all ranks that this one talks to
	Broken                 // a send or a read found one of them unreachable; healing waits for open transfers and the back-off
	Removing               // RemoveEngine; ends when no transfer from it is open
)

var stateNames = [...]string{"absent", "idle", "loading", "connected", "broken", "removing"}

// String is the state's name in metrics.
func (s State) String() string { return stateNames[s] }

// engine is the step's own side of a remote engine. It has a link to each of its ranks that this rank talks to; what is
// tracked is tracked at all of them.
type engine struct {
	use   uint32
	state State
	since clock.Instant // in state
	user  uint64
	hash  uint64 // wire.EngineHash of its id
	id    string

	facts *facts // in force; nil: none yet
	links []link // to the ranks of facts
	want  want   // news that wait for a walk, or for their time
	dead  bool   // EngineOver; until the next handshake nothing is tried
	why   Over   // what was tracked there last was lost
	conn  uint32 // how often a link was loaded: the generation of its posts

	healAt clock.Instant // no load before it
	here   [hereKinds]hereRun
	anew   bool // its agents are to be loaded again, also if nobody needs it

	native, stock dense // named in heartbeats
	fixed         dense // leases that no heartbeat renews
	strange       list
	aside         list
	owed          [owedKinds]list
	owedN         int
	waiting       list // reads that wait for it
	requests      int  // tracked requests

	walk      walk
	walkStage uint8
	walkEnd   cursor // of the walk in the list of that stage
	walkLeft  int    // strangers still to be looked at

	beatEnd, rowEnd cursor // of the round under way in the list of the same name
	beatList        uint8  // 0: no round; 1: native, then 2: stock
	beatCut         uint8  // the list in which the round before was cut short at beatEnd; 0: it was not
	beatAgain       bool   // the round went on where that one was cut: a whole one follows
	rowFixed        bool   // the row round is in fixed, else in native
	rowLink         uint32 // links of the remote before rowEnd that have been asked
	queued          [queueKinds]queueLink
	lastRound       clock.Instant // start of the last round
	rounds          uint32        // since it was loaded
	beatRetry       uint32
	leaving         bool // we are, and it is to be told

	breaks  uint32 // send errors and reconnects: they end the stock guard's chains
	sent    uint64 // bytes of messages to each link; where one got less it counts as more, which is the safe side
	open    int    // reads of ours begun and not over, blocks held included
	reading int    // of these, the ones without an outcome

	// For the stats page alone.
	bytes    uint64        // read
	took     time.Duration // what the last connection took
	connects uint64
	heardAt  clock.Instant // end of a one-sided read that was heard last; 0: none

	offset clock.Offset // of its host's CLOCK_MONOTONIC

	offAt    clock.Instant // since when it is not connected; 0: it is
	missedAt clock.Instant // when a request was lost, given up in trouble, or could not be read here last; 0: none was
	badReads uint32        // reads that ended badly in a row
	badSince clock.Instant // the first of them

	before     uint64        // epoch of the boot before the one in force
	replacedAt clock.Instant // when that one was given up

	up               bool // the host takes it for connected
	pendUp, pendDown bool
	drains           bool // its board says that it takes nothing new
	pendDrains       bool
	downCount        uint64

	said paces
}

// paces space the lines about an engine's trouble that goes on: each try, round or message says the same again.
type paces struct {
	load, late, dropped, send log.Pace
	lateMost                  time.Duration // of the rounds since the last line about them
}

// engineOf gives the engine of a live handle, or none.
func (t *Tracker) engineOf(handle uint64) uint32 {
	h := record.Handle(handle)
	i := h.Slot()
	if handle>>32 == 0 || int(i) >= len(t.engines) {
		return none
	}
	e := &t.engines[i]
	if e.state != Absent {
		if e.use != h.Use() || e.state == Removing {
			return none
		}
		return i
	}
	// R2: acquire; pairs with R1 in registry.begin. A place that is Absent here changes hands only there.
	use := t.reg.seats[i].use.Load()
	if use&1 == 0 || use/2 != h.Use() {
		return none
	}
	t.adopt(i, h.Use())
	return i
}

// adopt starts the step's side of an engine that AddEngine has made.
func (t *Tracker) adopt(i, use uint32) {
	t.places = max(t.places, int(i)+1)
	t.engines[i] = engine{
		use: use, user: t.reg.seats[i].now.desc.User, hash: t.reg.seats[i].now.hash, id: t.reg.seats[i].now.desc.ID,
		native: emptyDense(), stock: emptyDense(), fixed: emptyDense(),
		strange: emptyList(), aside: emptyList(), waiting: emptyList(),
		owed:    [owedKinds]list{emptyList(), emptyList(), emptyList()},
		beatEnd: cursor{chunk: none}, rowEnd: cursor{chunk: none}, walkEnd: cursor{chunk: none},
		offAt: t.now, since: t.now,
	}
	t.setState(i, Idle)
}

func (t *Tracker) setState(i uint32, s State) {
	t.mended++
	e := &t.engines[i]
	*t.stateGauge(e.state)--
	if e.state != s {
		t.traceState(e, s)
		e.since = t.now
	}
	switch {
	case s == Connected:
		if e.offAt != 0 {
			e.took, e.connects = t.now.Sub(e.offAt), e.connects+1
			e.said.load = log.Pace{}
			t.times.Connect.Observe(e.took)
			if t.hush.At(i) == clock.Never { // else behind the word of the break
				t.sayEngine(log.EngineUp, e, uint64(e.took), 0)
			}
		}
		e.offAt, e.anew = 0, false
	case e.offAt == 0:
		e.offAt = t.now
	}
	e.state = s
	*t.stateGauge(s)++
}

func (t *Tracker) stateGauge(s State) *int {
	switch s {
	case Idle:
		return &t.gauges.Idle
	case Loading:
		return &t.gauges.Loading
	case Connected:
		return &t.gauges.Connected
	case Broken:
		return &t.gauges.Broken
	}
	return &t.otherStates
}

func (t *Tracker) stopRounds(i uint32) {
	e := &t.engines[i]
	e.beatList, e.beatCut, e.beatAgain = 0, 0, false
	e.rowEnd, e.beatEnd = cursor{chunk: none}, cursor{chunk: none}
	for k := range e.links {
		e.links[k].probing, e.links[k].probeDue = false, false
	}
	t.beats.Set(i, clock.Never)
}

// interval is the time between heartbeats to an engine; our own until it has said its duration.
func (t *Tracker) interval(e *engine) time.Duration {
	if e.facts == nil {
		return t.cfg.Duration / 6
	}
	return e.facts.times.interval
}
