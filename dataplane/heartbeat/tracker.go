// Package heartbeat is the reader's side of a plane: the engines it reads from, the requests it tracks there, their
// heartbeats, what the owner's rows answer, and the reads.
package heartbeat

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/due"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Tracker holds the remote engines and tracked requests of one rank.
//
// Threads: one, the step's; what hands in news of engines (registry.go) may be called by any.
// Memory: all from New. Step and the submissions touch no heap.
// Time: callers pass now, which never goes back; the tracker reads no clock.
// Limit: cfg.Tracks requests, cfg.Engines engines. What a peer does changes only counters, states and events.
type Tracker struct {
	cfg     Config
	tr      transport.Transport
	reads   *read.Machine
	tracks  []record.Track
	control *record.Control
	events  Events

	reg      *registry
	engines  []engine
	requests []request
	remotes  remotes
	pool     chunkPool
	runs     runPool

	beats due.Heap // next round
	loads due.Heap // next load, healing or removal
	hush  due.Heap // when it is said that a connection broke, unless a word of its engine's end comes before
	ends  due.Heap // next message about what has ended
	fixed due.Heap // by remote: when a fixed lease must be taken for over

	rowQueue             engineQueue
	readyQueue           engineQueue
	eventQueue           engineQueue
	crowded              bool   // a read that could start has found no room
	crowdedAt            uint64 // read.Machine.Freed then
	waitOrder            list
	owedOrder            list
	strangeOrder         list
	eventHead, eventTail uint32 // requests
	rowsLeft, rowLooks   int
	looksLeft            int // of the walks of this step
	leavings             int
	walkQueue            engineQueue
	parked               []parked // agents that wait to be dropped
	parkedAt             int
	draining             bool
	muted                bool
	asleep               bool
	reach                Reach
	own                  times         // ours, for engines that have not said theirs
	stepped              clock.Instant // of the step before
	now                  clock.Instant // of the step that runs, or ran last

	buf  []byte       // the message under construction
	head wire.Header  // its header
	why  log.Kind     // why the read that is about to be ended is, if its status does not say it
	ev   record.Event // the event under construction: a local one would be moved to the heap

	places      int    // of engines, used so far
	mended      uint64 // grows when an engine may be out of its trouble
	counters    Counters
	times       Times
	gauges      Gauges
	otherStates int
}

// New makes a tracker over the tracking slots and the control page that it shares with the host. The machine is stepped by
// the tracker; nobody else takes its outcomes.
func New(
	cfg Config, tr transport.Transport, reads *read.Machine, tracks []record.Track, control *record.Control, events Events,
) (*Tracker, error) {
	if cfg.Tracks == 0 {
		cfg.Tracks = len(tracks)
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	if cfg.Tracks > len(tracks) {
		return nil, fmt.Errorf("heartbeat: %d tracking slots configured, %d given", cfg.Tracks, len(tracks))
	}
	n := cfg.Tracks + cfg.Owed
	return &Tracker{
		own: cfg.stockTimes(),
		cfg: cfg, tr: tr, reads: reads, tracks: tracks, control: control, events: events,
		reg:      newRegistry(cfg.Engines, cfg.Links, &control.LongAtNs),
		engines:  make([]engine, cfg.Engines),
		requests: make([]request, cfg.Tracks),
		remotes:  newRemotes(n, cfg.LongIDs, cfg.RowStates, cfg.Seed),
		// a chunk for every 32 remotes, and three partly filled ones for every engine that has any
		pool:  newChunkPool((n+chunkLen-1)/chunkLen + 3*min(cfg.Engines, n)),
		runs:  newRunPool(cfg.RunsMax),
		beats: due.New(cfg.Engines), loads: due.New(cfg.Engines), hush: due.New(cfg.Engines), ends: due.New(cfg.Engines), fixed: due.New(n),
		rowQueue: emptyQueue(queueRows), readyQueue: emptyQueue(queueReady), waitOrder: emptyList(),
		owedOrder: emptyList(), strangeOrder: emptyList(),
		eventHead: none, eventTail: none, eventQueue: emptyQueue(queueEvents), walkQueue: emptyQueue(queueWalk),
		parked: make([]parked, 0, ParkedMax),
		buf:    make([]byte, 0, cfg.BatchBytesMax),
	}, nil
}

// Begin tells the time of a step before it takes records and messages: what they begin is as old as this step, not as the one before.
func (t *Tracker) Begin(now clock.Instant) { t.now = now }

// Step runs once over everything of the reader's side. now is not before the now of the call before.
func (t *Tracker) Step(now clock.Instant) {
	t.now = now
	t.looksLeft = looksStepMax
	t.reads.Step(now)
	t.takeOutcomes(now)
	t.takeRows(now)
	t.takeRegistry(now)
	t.stepWalks(now)
	t.stepFixed(now)
	if t.stepWaiting(now) { // what this step could start does not wait for the next one
		t.reads.Post(now)
		t.takeOutcomes(now)
	}
	t.expireOwed(now)
	t.expireStrange(now)
	if t.reach != ReachNothing {
		t.stepEnds(now)  // what has ended in this step, in as few messages as there are engines
		t.stepRows(now)  // rows before heartbeats
		t.stepBeats(now) //
		t.stepParked(now)
		t.stepLoads(now) // last: a load may take 60 ms
	}
	t.sayBreaks(now)
	t.sayLong()
	t.putEvents()
	t.stepped = now
}

// Mute stops heartbeats while the engine's forward loop is not heard of: a hung engine must not keep another one's
// blocks. Everything else goes on.
func (t *Tracker) Mute(mute bool) { t.muted = mute }

// Alive counts what would need further steps: tracked requests, messages still owed, engines to be loaded unless there is no agent.
func (t *Tracker) Alive() int {
	n := t.gauges.Tracked + t.gauges.Owed + t.leavings
	if !t.asleep {
		n += t.gauges.Loading
	}
	return n
}

// NextDue is when a step has something to do without anything new arriving, reads in flight aside (read.Machine.NeedsStep);
// clock.Never: nothing is tracked.
func (t *Tracker) NextDue(now clock.Instant) clock.Instant {
	if t.gauges.Events > 0 || t.rowQueue.head != none && t.reach == ReachAll || t.walkQueue.head != none || t.reg.news.Load() > 0 ||
		t.readyQueue.head != none && t.reach == ReachAll && !(t.crowded && t.crowdedAt == t.reads.Freed()) { // else they wait for the end of another read
		return now
	}
	_, due := t.fixed.First()
	_, hush := t.hush.First()
	if due = min(due, hush, t.reads.NextDue()); t.reach != ReachNothing {
		due = min(due, t.nextCall())
	}
	if u := t.waitOrder.head; u != none {
		due = min(due, t.requests[u].deadline)
	}
	for _, m := range [...]uint32{t.owedOrder.head, t.strangeOrder.head} {
		if m != none {
			due = min(due, t.remotes.all[m].deadline)
		}
	}
	return due
}

// Drain tells every owner what will never be read, ends the tracking of it, and has native peers told that we leave.
// Reads in flight go on. It reports the requests given up. The messages leave with the next steps: DrainLeft says how many
// are left.
func (t *Tracker) Drain(now clock.Instant) int {
	n := 0
	for u := range t.requests {
		q := &t.requests[u]
		switch q.state {
		case reqTracked:
			if q.remote != none {
				n++
				t.giveUp(uint32(u), now)
			}
		case reqCollecting, reqWaiting: // the rest of its parts may never come
			n++
			t.finish(uint32(u), record.ReadLost, now)
		}
	}
	if t.draining {
		return n
	}
	t.draining = true
	for i := range t.engines {
		if e := &t.engines[i]; e.state == Connected && e.facts.native {
			e.leaving = true
			t.leavings++
			t.ends.Set(uint32(i), now)
		}
	}
	return n
}

// giveUp ends the tracking of a request that is not read, and says so unless that was said when its lease was over.
func (t *Tracker) giveUp(u uint32, now clock.Instant) {
	q := &t.requests[u]
	told := q.other || t.remotes.all[q.remote].gone
	t.leave(u, now)
	if !told {
		t.counters.Gone++
		t.event(u, pendGone)
	}
}

// DrainLeft counts what has still to happen after Drain: messages to send, reads in flight, blocks held.
func (t *Tracker) DrainLeft() int {
	return t.gauges.Owed + t.leavings + t.gauges.Reading + t.gauges.BlocksHeld
}

// Counters gives a copy. Stepping thread.
func (t *Tracker) Counters() Counters { return t.counters }

// CountersAt gives where they lie.
func (t *Tracker) CountersAt() *Counters { return &t.counters }

// TimesAt gives where the distributions lie. Stepping thread.
func (t *Tracker) TimesAt() *Times { return &t.times }

// Gauges gives what there is now. Stepping thread; it walks the engines once.
func (t *Tracker) Gauges() Gauges {
	g := t.Counted()
	var v EngineShown
	for i := range t.places {
		if t.ShowEngine(i, &v) {
			g.Add(&v, t.cfg.Duration)
		}
	}
	return g
}

// Tracked is the number of tracking slots in use.
func (t *Tracker) Tracked() int { return t.gauges.Tracked }

// Counted is Gauges without those for which the engines are walked: UnheardMax and Failing*.
func (t *Tracker) Counted() Gauges {
	g := t.gauges
	g.Remotes = t.remotes.free.Used()
	g.LongIDsFree = t.remotes.longFree.Left()
	g.Parked = len(t.parked)
	return g
}
