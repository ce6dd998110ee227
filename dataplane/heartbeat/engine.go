package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// State is where an engine stands.
type State uint8

const (
	Absent    State = iota // no engine has this place
	Idle                   // no handshake yet
	Loading                // its blob waits for its turn, or for the old agent to be dropped
	Connected              //
	Broken                 // a send or a read found it unreachable; healing waits for open transfers and the back-off
	Removing               // RemoveEngine; ends when no transfer from it is open
)

var stateNames = [...]string{"absent", "idle", "loading", "connected", "broken", "removing"}

// String is the state's name in metrics.
func (s State) String() string { return stateNames[s] }

// engine is the step's own side of a remote engine: today one agent of it, the rank that this rank reads from.
type engine struct {
	use   uint32
	state State
	user  uint64

	facts  *facts // in force or to be loaded; nil: none yet
	peer   transport.Peer
	conn   uint32        // how often it was loaded: the generation of its posts
	healAt clock.Instant // no load before it
	fails  uint32        // loads, sends and reads that failed since it was last heard

	native, stock dense
	strange       list
	aside         list
	owed          [owedKinds]list
	owedN         int
	waiting       list // reads that wait for it
	requests      int  // tracked requests

	beatEnd, rowEnd cursor // of the round under way in the list of the same name
	beatList        uint8  // 0: no round; 1: native, then 2: stock
	beatCut         uint8  // the list in which the round before was cut short at beatEnd; 0: it was not
	beatAgain       bool   // the round went on where that one was cut: a whole one follows
	queued          [queueKinds]queueLink
	lastRound       clock.Instant // start of the last round
	rounds          uint32        // since it was loaded
	beatRetry       uint32
	leaving         bool // we are, and it is to be told

	breaks      uint32        // send errors and reconnects: they end the stock guard's chains
	sent, heard uint64        // bytes of heartbeats, and of those known to have been taken in
	readsSeen   uint64        // one-sided reads posted since the last round
	rowAt       clock.Instant // when a row read of it last ended well, or none had been asked for
	probing     bool
	probeSent   uint64
	open        int // reads of ours begun and not over, blocks held included

	downAt           clock.Instant // first failure since it was last heard; 0: none
	up               bool          // the host takes it for connected
	pendUp, pendDown bool
	downCount        uint64
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
	// R2: acquire; pairs with R1 in AddEngine. A place that is Absent here changes hands only in AddEngine.
	use := t.reg.seats[i].use.Load()
	if use&1 == 0 || use/2 != h.Use() {
		return none
	}
	t.adopt(i, h.Use())
	return i
}

// adopt starts the step's side of an engine that AddEngine has made.
func (t *Tracker) adopt(i, use uint32) {
	t.engines[i] = engine{
		use: use, state: Idle, user: t.reg.seats[i].now.desc.User,
		native: emptyDense(), stock: emptyDense(), strange: emptyList(), aside: emptyList(), waiting: emptyList(),
		owed:    [owedKinds]list{emptyList(), emptyList(), emptyList()},
		beatEnd: cursor{chunk: none}, rowEnd: cursor{chunk: none},
	}
	t.gauges.Idle++
}

func (t *Tracker) setState(i uint32, s State) {
	e := &t.engines[i]
	*t.stateGauge(e.state)--
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

// takeRegistry picks up what other goroutines have left.
func (t *Tracker) takeRegistry(now clock.Instant) {
	for range newsStepMax { // the rest waits for the next step: a handshake that comes a step later costs nothing
		i, n, ok, busy := t.reg.takeNews()
		if busy {
			t.counters.RegistryBusy++
		}
		if !ok {
			return
		}
		e := &t.engines[i]
		if e.state == Absent {
			t.adopt(i, t.reg.seats[i].use.Load()/2)
		}
		if n.removed {
			t.remove(i, now)
			continue
		}
		if n.given != nil {
			t.handshake(i, n.given, now)
		}
	}
}

// handshake takes new facts about an engine.
func (t *Tracker) handshake(i uint32, f *facts, now clock.Instant) {
	e := &t.engines[i]
	t.counters.Handshakes++
	if e.facts != nil && e.facts.same(f) {
		t.counters.HandshakesSame++
		if e.state == Broken { // somebody has just spoken with it: look at once
			t.loads.set(i, now)
		}
		return
	}
	if e.facts != nil {
		t.replace(i, f, now)
	}
	e.facts = f
	e.fails = 0
	e.breaks++
	e.sent, e.heard = 0, 0
	t.stopRounds(i)
	t.setState(i, Loading)
	t.loads.set(i, now)
}

// replace ends what is tracked at an engine that has come back as another one. One walk over its requests, as often as it
// restarts; strangers that were waiting for just this boot stay.
func (t *Tracker) replace(i uint32, f *facts, now clock.Instant) {
	e := &t.engines[i]
	before := e.requests
	t.loseAll(i, f.epoch, now)
	t.engineDown(i, uint64(before))
}

// loseAll reports every request of an engine as lost, except strangers of the epoch kept (0: none).
func (t *Tracker) loseAll(i uint32, kept uint64, now clock.Instant) {
	e := &t.engines[i]
	for _, d := range []*dense{&e.native, &e.stock} {
		for d.n > 0 {
			t.lose(t.pool.chunks[d.tail].remote[t.pool.chunks[d.tail].n-1], now)
		}
	}
	for e.aside.head != none {
		t.lose(e.aside.head, now)
	}
	for m := e.strange.head; m != none; {
		next := t.remotes.all[m].next
		if kept == 0 || t.remotes.all[m].epoch != kept {
			t.lose(m, now)
		}
		m = next
	}
	for k := range e.owed {
		for e.owed[k].head != none {
			t.counters.OwedLost++
			t.forgetOwed(e.owed[k].head)
		}
	}
}

// lose ends one remote without an answer of its engine.
func (t *Tracker) lose(m uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	r.lost = true
	t.remotes.unindex(m) // a later request of that name is another matter
	t.displace(m)
	t.counters.Lost += uint64(r.users)
	t.engines[r.engine].requests -= int(r.users) // its place may change hands before they are untracked
	left := r.users
	for u := r.firstUser; u != none; {
		q := &t.requests[u]
		next := q.nextUser
		switch q.state {
		case reqWaiting:
			left--
			t.finish(u, record.ReadLost, now) // the last one gives the remote back
		case reqReading:
			t.reads.End(q.job, record.ReadLost, now)
		}
		u = next
	}
	if left > 0 {
		t.leaseGone(m)
	}
}

func (t *Tracker) remove(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if e.state == Removing {
		return
	}
	if e.state == Connected {
		t.sendEnds(i, t.cfg.EndsStepMax, now) // the last chance to tell it
	}
	t.loseAll(i, 0, now)
	t.forgetLeaving(e)
	t.stopRounds(i)
	t.ends.set(i, clock.Never)
	t.setState(i, Removing)
	t.loads.set(i, now)
}

func (t *Tracker) stopRounds(i uint32) {
	e := &t.engines[i]
	e.beatList, e.beatCut, e.beatAgain = 0, 0, false
	e.rowEnd, e.beatEnd = cursor{chunk: none}, cursor{chunk: none}
	e.probing = false
	t.beats.set(i, clock.Never)
}
