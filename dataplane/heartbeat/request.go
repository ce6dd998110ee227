package heartbeat

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// request is one local request: a tracking slot's side of the step. It also is the room for the request's events.
type request struct {
	state reqState
	pend  uint8 // events that wait, pend*
	use   uint32
	queue bool // in the list of requests with events

	remote             uint32 // none: its engine was not known
	nextUser, prevUser uint32
	user               uint64

	job      read.Job
	deadline clock.Instant
	parts    uint32 // collected
	runs     uint32 // first chunk of runs that wait
	lastRuns uint32
	runsN    uint32

	wait, age links // reads that wait: of its engine, and of all, oldest first
	eventNext uint32

	engine   uint32 // of its read
	mark     uint64 // bytes sent to the engine before its read
	conn     uint32 // the connection that it went over
	inWait   bool   // in its engine's list of waiting reads
	inOrder  bool   // in the list of all waiting reads
	status   uint8  // of the outcome
	other    bool   // of another lease than its remote's: nothing is read
	held     bool   // blocks are not back
	heldSaid bool   // the outcome says so
	attached uint64 // links to which its completion rides on its READ
	value0   uint64
	value1   uint64
	riskLeft uint64
}

type reqState uint8

const (
	reqFree       reqState = iota
	reqTracked             // heartbeats go out
	reqCollecting          // some parts of its read have come
	reqWaiting             // its read waits for its engine or for room
	reqReading             // committed
	reqEnded               // its outcome is known; the slot goes back when the events are out and the blocks are back
)

// Events that wait in a request. They leave in this order.
const (
	pendGone    = 1 << iota // lease gone
	pendRisk                // at risk
	pendOutcome             // read done or failed
	pendBack                // blocks back
)

func (q *request) ofWait() *links { return &q.wait }
func (q *request) ofAge() *links  { return &q.age }

// at gives the live request of a handle, or none.
func (t *Tracker) at(h record.Handle) uint32 {
	i := h.Slot()
	if h>>32 == 0 || int(i) >= len(t.requests) {
		return none
	}
	if q := &t.requests[i]; q.state == reqFree || q.use != h.Use() {
		return none
	}
	return i
}

// Track starts heartbeats for a request. local is the engine's own id, for traces only.
func (t *Tracker) Track(req *record.TrackReq, remote, _ []byte, now clock.Instant) {
	u := req.Track.Slot()
	switch {
	case req.Track>>32 == 0 || int(u) >= len(t.requests):
		t.counters.StaleHandles++
		return
	case t.requests[u].state == reqFree:
	case t.requests[u].use == req.Track.Use():
		t.counters.Repeats++
		return
	default: // a slot is used again only when its former use has ended here
		t.counters.StaleHandles++
		return
	}
	t.counters.Tracked++
	t.gauges.Tracked++
	t.requests[u] = request{
		state: reqTracked, use: req.Track.Use(), user: req.User, remote: none, nextUser: none, prevUser: none,
		runs: none, lastRuns: none, wait: links{none, none}, age: links{none, none}, eventNext: none,
	}
	i := t.engineOf(req.Engine)
	if i == none {
		t.counters.StaleHandles++
		t.counters.Lost++
		t.event(u, pendGone) // a read of it will be told that the engine is lost
		return
	}
	m, other := t.join(i, req, remote, now)
	r := &t.remotes.all[m]
	r.users++
	q := &t.requests[u]
	q.remote, q.other = m, other
	q.nextUser = r.firstUser
	if r.firstUser != none {
		t.requests[r.firstUser].prevUser = u
	}
	r.firstUser = u
	t.engines[i].requests++
	if r.gone || other {
		t.counters.Gone++
		t.sayGone(r)
		t.event(u, pendGone)
		return
	}
	t.wake(i, now)
}

// join finds the remote of a request, or makes it. A stock owner knows a lease by its id alone, and holds one under an id at a time: of two
// that end at other points in time one is over already or never came to be, and nobody here can tell which. So the later request is of
// another lease and is not read, while an earlier one uses the id; what is only owed to the owner gives way to it.
func (t *Tracker) join(i uint32, req *record.TrackReq, remote []byte, now clock.Instant) (m uint32, other bool) {
	v := identity{engine: i, id: remote}
	if req.Native != 0 {
		v.native, v.slot, v.gen, v.epoch, v.key = true, req.Slot, req.Generation, req.Epoch, req.Key
	}
	hash := t.remotes.hashOf(&v)
	if m := t.remotes.find(&v, hash); m != none {
		r := &t.remotes.all[m]
		other = !r.native && r.expires != clock.RemoteInstant(req.ExpiresNs)
		switch {
		case r.place == inOwed: // it was about to be told that nobody will read: one more will
			t.unowe(m)
			if other {
				r.begin(req, now)
			}
			if r.gone {
				t.setAside(m)
			} else {
				t.enlistOrEstrange(m, now)
			}
			return m, false
		case other:
			t.counters.OtherLeases++
		case r.ends != 0:
			t.counters.LateUsers++ // the owner has been told by the READ of another request: the lease is over
		}
		return m, other
	}
	m, longFull := t.newRemote(&v, hash)
	r := &t.remotes.all[m]
	r.begin(req, now)
	if longFull && !v.native {
		t.counters.LongIDsFull++
		t.cfg.Log.Put(log.RequestIDsFull, now, log.Entry{Engine: t.engines[i].id, Hash: t.engines[i].hash, Request: remote, A: uint64(len(remote))})
		r.unsendable, r.gone = true, true
		t.setAside(m)
		return m, false
	}
	t.enlistOrEstrange(m, now)
	return m, false
}

// begin takes what a request says of its lease. Of a lease that was here under the id before nothing is left.
func (m *remote) begin(req *record.TrackReq, now clock.Instant) {
	m.gone, m.byClock, m.beaten, m.unproven = m.unsendable, false, false, false
	m.arrival = clock.Instant(req.SaidNs)
	if m.arrival == 0 || now.Before(m.arrival) {
		m.arrival = now
	}
	m.expires, m.end = 0, 0
	if m.fixed = req.ExpiresNs != 0 || req.LeftNs != 0; m.fixed {
		m.takeEnd(req, now)
	}
}

// newRemote takes a remote from the pool. There is one for every tracking slot and cfg.Owed more; when all are taken the
// oldest message still owed is given up, so tracking never waits for dead engines.
func (t *Tracker) newRemote(v *identity, hash uint64) (uint32, bool) {
	if t.remotes.free.Left() == 0 {
		t.counters.OwedDropped++
		t.sayRemote(log.EndUntold, &t.remotes.all[t.owedOrder.head], 0, 0)
		t.forgetOwed(t.owedOrder.head)
	}
	return t.remotes.take(v, hash)
}

// leave takes a request out of its remote. The last one that leaves ends the tracking and has the owner told.
func (t *Tracker) leave(u uint32, now clock.Instant) {
	q := &t.requests[u]
	m := q.remote
	if m == none {
		return
	}
	q.remote = none
	r := &t.remotes.all[m]
	if q.prevUser == none {
		r.firstUser = q.nextUser
	} else {
		t.requests[q.prevUser].nextUser = q.nextUser
	}
	if q.nextUser != none {
		t.requests[q.nextUser].prevUser = q.prevUser
	}
	q.nextUser, q.prevUser = none, none
	if !r.lost {
		e := &t.engines[r.engine]
		t.parted(e, 1, Missed(q.state == reqEnded, q.status, e.trouble() != 0), now)
	}
	if r.users--; r.users == 0 {
		t.last(m, now)
	}
}

// last ends the tracking of a remote that nobody uses any more.
func (t *Tracker) last(m uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	t.displace(m)
	e := &t.engines[r.engine]
	switch {
	case r.lost, r.unsendable, // nobody to tell
		r.gone && r.native && !r.stale && !r.byClock && (len(e.links) < 2 || e.dead), // nothing to end: the one row showed it
		r.ends != 0 && (e.facts == nil || r.ends == 1<<len(e.links)-1):               // told already
		t.remotes.drop(m)
		return
	}
	t.owe(m, now)
}

// Untrack ends a request: the owner is told if it was not read; a read in flight is cancelled. Handles that have ended are
// ignored.
func (t *Tracker) Untrack(h record.Handle, now clock.Instant) {
	u := t.at(h)
	if u == none {
		t.counters.StaleHandles++
		return
	}
	t.counters.Untracked++
	q := &t.requests[u]
	switch q.state {
	case reqTracked:
		q.pend &^= pendGone | pendRisk // nobody waits for them
		t.end(u, now)
	case reqCollecting:
		t.finish(u, record.ReadCancelled, now)
	case reqWaiting:
		t.finish(u, record.ReadCancelled, now)
	case reqReading:
		t.reads.Cancel(q.job, now) // its outcome comes with the next reads.NextOutcome
	}
}

// Reject tells the owner at once that nobody will read. There is no tracking slot, and no event.
func (t *Tracker) Reject(req *record.TrackReq, remote []byte, now clock.Instant) {
	t.counters.Rejected++
	i := t.engineOf(req.Engine)
	if i == none {
		t.counters.StaleHandles++
		return
	}
	v := identity{engine: i, id: remote}
	if req.Native != 0 {
		v.native, v.slot, v.gen, v.epoch, v.key = true, req.Slot, req.Generation, req.Epoch, req.Key
	}
	hash := t.remotes.hashOf(&v)
	if m := t.remotes.find(&v, hash); m != none {
		return // another local request uses it, or it is being told already: the last one tells
	}
	if t.remotes.free.Left() == 0 && t.owedOrder.head == none {
		t.counters.OwedDropped++ // no room at all: the lease ends by itself
		t.cfg.Log.Put(log.EndUntold, now, log.Entry{Engine: t.engines[i].id, Hash: t.engines[i].hash, Request: remote})
		return
	}
	m, longFull := t.newRemote(&v, hash)
	if longFull && !v.native {
		t.counters.LongIDsFull++
		t.cfg.Log.Put(log.EndUntold, now, log.Entry{Engine: t.engines[i].id, Hash: t.engines[i].hash, Request: remote})
		t.remotes.drop(m)
		return
	}
	t.remotes.all[m].arrival = now
	t.owe(m, now)
}

// end is the end of a request without a read: nothing is reported.
func (t *Tracker) end(u uint32, now clock.Instant) {
	t.leave(u, now)
	t.requests[u].state = reqEnded
	t.retire(u)
}

// retire gives the slot back once all events are out and the blocks are back.
func (t *Tracker) retire(u uint32) {
	q := &t.requests[u]
	if q.state != reqEnded || q.pend != 0 || q.held || q.queue {
		return
	}
	use := q.use
	q.state = reqFree
	t.gauges.Tracked--
	s := &t.tracks[u]
	atomic.StoreUint64(&s.State, record.State(use+1, record.Free))
	if use+1 == record.None {
		t.counters.Retired++ // a handle of one more use would be none
		return
	}
	record.PushFree(&t.control.TrackFree, &s.Next, u)
}

// leaseGone says once, to all who share it, that a lease is over. Heartbeats for it stop.
func (t *Tracker) leaseGone(m uint32) {
	r := &t.remotes.all[m]
	if r.gone {
		return
	}
	r.gone = true
	if !r.lost {
		t.setAside(m)
	}
	for u := r.firstUser; u != none; u = t.requests[u].nextUser {
		if q := &t.requests[u]; q.state < reqReading && !q.other { // one that reads hears it from its outcome
			t.counters.Gone++
			t.sayGone(r)
			t.event(u, pendGone)
		}
	}
}
