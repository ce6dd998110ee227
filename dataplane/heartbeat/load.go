package heartbeat

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// stepLoads loads or heals at most one link, and finishes removals.
func (t *Tracker) stepLoads(now clock.Instant) {
	for range loadsLookMax { // engines that must wait are put off; one load a step, since each may take 60 ms
		i, at := t.loads.First()
		if now.Before(at) {
			return
		}
		if t.loadOne(i, now) {
			return
		}
	}
}

// sayLong leaves word from when on a step may load or drop an agent. What a step itself finds out is not foretold: a connection that
// breaks, a request that needs a broken one.
func (t *Tracker) sayLong() {
	_, at := t.loads.First()
	if len(t.parked) > 0 {
		at = 0
	}
	word := &t.control.LongAtNs
	if atomic.LoadUint64(word) != uint64(at) {
		atomic.StoreUint64(word, uint64(at))
	}
	if t.reg.news.Load() > 0 { // whoever noted it may have said so before we said the opposite
		atomic.StoreUint64(word, 0)
	}
}

// loadsLookMax bounds the engines that a step looks at to find one that it can load.
const loadsLookMax = 8

// setLoad says when an engine is looked at next; not later than the facts that wait for their time.
func (t *Tracker) setLoad(i uint32, at clock.Instant) {
	if w := &t.engines[i].want; w.facts != nil && w.at != 0 {
		at = min(at, w.at)
	}
	t.loads.Set(i, at)
}

// loadOne does what is due for an engine. It reports true if it has called Load.
func (t *Tracker) loadOne(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	if w := &e.want; w.at != 0 && w.facts != nil && !now.Before(w.at) {
		t.become(i, now)
		return false
	}
	if t.asleep && (e.state == Broken || e.state == Loading) {
		t.setLoad(i, clock.Never)
		return false
	}
	switch e.state {
	case Idle:
		t.lookOver(i, now)
		at := clock.Never
		if e.native.n+e.stock.n > 0 {
			at = now.Add(t.interval(e))
		}
		t.setLoad(i, at)
		return false
	case Connected: // loaded after a failure, and not heard since: that may never break again
		t.setLoad(i, clock.Never)
		if down := e.downAt(); down != 0 {
			t.lookOver(i, now)
			if e.requests > 0 {
				t.setLoad(i, max(now.Add(t.interval(e)), down.Add(t.overAfter(e))))
			}
		}
		return false
	case Broken:
		t.setLoad(i, clock.Never)
		t.lookOver(i, now)
		if !t.unloadBroken(i, now) {
			t.counters.HealWaits++
			t.setLoad(i, now.Add(t.healStep(e)))
			return false
		}
		if e.dead || e.requests == 0 && e.owedN == 0 && !e.anew {
			return false // nobody needs it: the next request does
		}
		return t.loadNext(i, now)
	case Loading:
		t.setLoad(i, clock.Never)
		switch {
		case e.walk != walkNone: // its end wakes us
		case !e.want.taken:
			t.lookOver(i, now)
			return t.loadNext(i, now)
		case t.giveUpLinks(i, now):
			if t.install(i, now); e.walk == walkNone {
				return t.loadNext(i, now)
			}
		default:
			t.counters.HealWaits++
			t.setLoad(i, now.Add(t.healStep(e)))
		}
		return false
	case Removing:
		t.finishRemoval(i, now)
		return false
	}
	t.setLoad(i, clock.Never)
	return false
}

// unloadBroken drops the agents whose connection broke. It reports false while one of them has to wait.
func (t *Tracker) unloadBroken(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	done := true
	for k := range e.links {
		l := &e.links[k]
		if l.broken && l.peer != 0 && !t.unload(e, l.peer, l.brokenAt, now) {
			done = false
			continue
		}
		if l.broken {
			l.peer, l.broken = 0, false
		}
	}
	return done
}

// giveUpLinks drops the agents of a boot that is over, or sets them aside until nothing from them is open.
func (t *Tracker) giveUpLinks(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	for k := range e.links {
		l := &e.links[k]
		switch {
		case l.peer == 0:
		case t.unload(e, l.peer, e.replacedAt, now):
		case len(t.parked) < cap(t.parked):
			t.parked = append(t.parked, parked{l.peer, now})
		default:
			return false
		}
		l.peer = 0
	}
	return true
}

// loadNext loads the next link that is not. With the last one the engine is connected.
func (t *Tracker) loadNext(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	next, left := none, 0
	for k := range e.links {
		if e.links[k].peer == 0 {
			left++
			if next == none {
				next = uint32(k)
			}
		}
	}
	if next != none {
		l := &e.links[next]
		peer, err := t.tr.Load(l.blob)
		if err == transport.ErrFull { // not the peer's fault: neither a failure nor a wait that grows
			t.counters.LoadsPutOff++
			t.setLoad(i, now.Add(time.Millisecond))
			return true
		}
		t.counters.Loads++
		if e.state == Broken {
			t.counters.Heals++
		}
		if err != nil {
			t.counters.LoadsFailed++
			l.fails++
			if t.hush.At(i) == clock.Never && e.said.load.Due(now) { // else it is of the break that is not said yet
				t.cfg.Log.Put(log.LoadFailed, now, log.Entry{Engine: e.id, Hash: e.hash, A: uint64(l.fails), Text: err.Error()})
			}
			if l.downAt == 0 {
				l.downAt = now
			}
			t.engineDown(i, uint64(e.requests)) // if it was made anew; else that was told before
			e.healAt = now.Add(t.backoff(e))
			t.setLoad(i, e.healAt)
			return true
		}
		l.peer, l.broken = peer, false
		l.number = 0
		l.hello = e.facts.native
		e.conn++
		if left--; left > 0 {
			t.setLoad(i, now)
			return true
		}
	}
	t.setState(i, Connected)
	if e.downAt() == 0 { // else it is up when it is heard: a dead agent's blob loads as well as a living one's
		t.engineUp(i)
	} else {
		t.setLoad(i, max(now.Add(t.interval(e)), e.downAt().Add(t.overAfter(e))))
	}
	t.startRound(i, now.Add(1)) // the first heartbeats leave in the step after this one
	t.ends.Set(i, now)          // and before them who we are
	t.ready(i)
	return next != none
}

func (t *Tracker) finishRemoval(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if e.walk != walkNone {
		t.loads.Set(i, clock.Never) // its end wakes us
		return
	}
	for k := range e.links {
		if l := &e.links[k]; l.peer != 0 {
			if !t.unload(e, l.peer, l.brokenAt, now) {
				t.counters.HealWaits++
				t.loads.Set(i, now.Add(t.healStep(e)))
				return
			}
			l.peer = 0
		}
	}
	if e.open > 0 || e.inQueue() || !t.reg.giveBack(i) {
		t.loads.Set(i, now.Add(time.Millisecond))
		return
	}
	t.loads.Set(i, clock.Never)
	t.setState(i, Absent)
	e.facts, e.links, e.want = nil, nil, want{}
}

// unload forgets an agent: at once if no transfer from it is under way, else when it has waited HealWait since. What is open then, or in
// quarantine, may still land, so its local blocks stay aside until it has ended; the agent can be loaded again. e is the engine that it is of, nil if that has come back as another.
func (t *Tracker) unload(e *engine, p transport.Peer, since, now clock.Instant) bool {
	pending, aside := t.reads.InFlight(p)
	if pending+aside == 0 && t.tr.Drop(p) == nil {
		t.reads.Lost(p, now) // between two of their parts
		return true
	}
	if pending > 0 && now.Before(since.Add(t.cfg.HealWait)) || t.tr.Abandon(p) != nil {
		return false
	}
	t.counters.Abandons++
	if e != nil {
		t.sayEngine(log.AgentAbandoned, e, uint64(now.Sub(since)), 0)
	}
	t.reads.Abandon(p, now)
	return true
}

// ParkedMax bounds the agents of engines that came back as others while a transfer from them was open.
const ParkedMax = 64

// parked is one of them.
type parked struct {
	peer transport.Peer
	at   clock.Instant
}

// stepParked drops one of them as soon as it can be dropped.
func (t *Tracker) stepParked(now clock.Instant) {
	n := len(t.parked)
	if n == 0 {
		return
	}
	t.parkedAt = (t.parkedAt + 1) % n
	if p := t.parked[t.parkedAt]; t.unload(nil, p.peer, p.at, now) {
		t.parked[t.parkedAt] = t.parked[n-1]
		t.parked = t.parked[:n-1]
	}
}

// backoff is how long an engine is left alone after a failure: an eighth of the interval, doubling to one interval, and
// after ten failures without being heard on to a minute. So a reset is healed before the next heartbeat is due, and a dead
// engine costs a look a minute: each one leaks a descriptor inside UCX.
func (t *Tracker) backoff(e *engine) time.Duration {
	interval := e.facts.times.interval
	d := interval / 8
	fails := e.fails()
	for n := uint32(1); n < fails; n++ {
		d *= 2
		if n < 10 && d > interval {
			d = interval
		}
		if d > time.Minute {
			return max(time.Minute, interval)
		}
	}
	return d
}

// healStep is how often an engine that waits for open transfers is looked at.
func (t *Tracker) healStep(e *engine) time.Duration {
	if e.facts == nil {
		return 10 * time.Millisecond
	}
	return e.facts.times.interval / 16
}
