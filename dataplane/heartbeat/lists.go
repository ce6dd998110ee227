package heartbeat

import "github.com/kvlease/kvlease/dataplane/clock"

// Where a remote stands among its engine's lists, and the queues of engines and requests.

// enlistOrEstrange puts a remote into the heartbeats, or apart if its engine is known under another boot epoch: it may be
// of the boot before, or of one whose handshake is still to come.
func (t *Tracker) enlistOrEstrange(m uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	here := e.facts == nil || !r.native || r.epoch == e.facts.epoch
	switch {
	case e.dead && r.native && here: // of a boot that is no more
		r.gone = true
		t.setAside(m)
	case !here, e.dead, e.walk == walkLose: // what is listed now would be lost
		t.estrange(m, now)
	default:
		t.enlist(m)
	}
}

func (t *Tracker) enlist(m uint32) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	d := &e.stock
	r.place = inStock
	switch {
	case r.fixed:
		d, r.place = &e.fixed, inFixed
		t.aimFixed(m)
	case r.native:
		d, r.place = &e.native, inNative
	}
	t.takeRowStates(r, e)
	r.chunk, r.at = t.pool.add(d, beatEntry{r.slot, r.gen, r.key}, m)
}

func (t *Tracker) estrange(m uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	r.place = inStrange
	r.deadline = now.Add(t.cfg.Duration)
	for u := r.firstUser; u != none; u = t.requests[u].nextUser {
		t.leaveWaiting(u) // it must not stand in the way of reads that can start
	}
	t.remotes.push(&t.engines[r.engine].strange, m)
	t.remotes.pushAge(&t.strangeOrder, m)
}

// setAside ends the heartbeats of a remote that still has users. Its engine must find it when it goes.
func (t *Tracker) setAside(m uint32) {
	t.displace(m)
	r := &t.remotes.all[m]
	r.place = inAside
	t.remotes.push(&t.engines[r.engine].aside, m)
}

// displace takes a remote out of whatever list it is in.
func (t *Tracker) displace(m uint32) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	switch r.place {
	case inNative, inStock, inFixed:
		d := &e.stock
		switch r.place {
		case inNative:
			d = &e.native
		case inFixed:
			d = &e.fixed
			t.fixed.Set(m, clock.Never)
		}
		moved := t.pool.remove(d, r.chunk, r.at, &e.beatEnd, &e.rowEnd, &e.walkEnd)
		if moved != none {
			t.remotes.all[moved].chunk, t.remotes.all[moved].at = r.chunk, r.at
		}
	case inStrange:
		t.remotes.unlink(&e.strange, m)
		t.remotes.unlinkAge(&t.strangeOrder, m)
	case inAside:
		t.remotes.unlink(&e.aside, m)
	case inOwed:
		t.unowe(m)
	}
	r.place = nowhere
}

// engineQueue is a first-in first-out queue of engines, each in it at most once.
type engineQueue struct {
	head, tail uint32
	kind       int // which link of an engine it uses
}

// Kinds of queues.
const (
	queueRows   = iota // a row round goes on in a later step
	queueReady         // reads that wait for the engine can start
	queueEvents        // its events wait for the host
	queueWalk          // a walk over what is tracked there goes on
	queueKinds
)

// queueLink is an engine's place in a queue.
type queueLink struct {
	next uint32
	in   bool
}

func (e *engine) inQueue() bool {
	for _, l := range e.queued {
		if l.in {
			return true
		}
	}
	return false
}

func emptyQueue(kind int) engineQueue { return engineQueue{none, none, kind} }

// pushEngine reports false for an engine that is in the queue already.
func (t *Tracker) pushEngine(q *engineQueue, i uint32) bool {
	l := &t.engines[i].queued[q.kind]
	if l.in {
		return false
	}
	*l = queueLink{next: none, in: true}
	if q.tail == none {
		q.head = i
	} else {
		t.engines[q.tail].queued[q.kind].next = i
	}
	q.tail = i
	return true
}

func (t *Tracker) popEngine(q *engineQueue) uint32 {
	i := q.head
	l := &t.engines[i].queued[q.kind]
	l.in = false
	if q.head = l.next; q.head == none {
		q.tail = none
	}
	return i
}

// ready notes that reads which wait for an engine can start.
func (t *Tracker) ready(i uint32) {
	if e := &t.engines[i]; e.waiting.n > 0 && e.state == Connected && !e.facts.bare {
		t.pushEngine(&t.readyQueue, i)
	}
}
