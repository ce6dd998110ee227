package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// stepLoads loads or heals at most one engine, and finishes removals.
func (t *Tracker) stepLoads(now clock.Instant) {
	for range loadsLookMax { // engines that must wait are put off; one load a step, since each may take 60 ms
		i, at := t.loads.first()
		if now.Before(at) {
			return
		}
		if t.loadOne(i, now) {
			return
		}
	}
}

// loadsLookMax bounds the engines that a step looks at to find one that it can load.
const loadsLookMax = 8

// loadOne does what is due for an engine. It reports true if it has called Load.
func (t *Tracker) loadOne(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	if e.state == Broken || e.state == Loading {
		t.loseUnreachable(i, now)
	}
	switch {
	case e.peer == 0:
	case t.dropPeer(e.peer):
		e.peer = 0
	case e.state == Loading && len(t.parked) < cap(t.parked):
		t.parked = append(t.parked, e.peer) // another agent takes its place; this one is dropped when nothing is open
		e.peer = 0
	default:
		t.counters.HealWaits++
		t.loads.set(i, now.Add(t.healStep(e)))
		return false
	}
	if e.state == Removing {
		if e.open > 0 || e.inQueue() || !t.reg.giveBack(i) {
			t.loads.set(i, now.Add(time.Millisecond))
			return false
		}
		t.loads.set(i, clock.Never)
		t.setState(i, Absent)
		return false
	}
	if e.state == Broken && e.requests == 0 && e.owedN == 0 {
		t.loads.set(i, clock.Never) // nobody needs it: the next request does
		return false
	}
	t.counters.Loads++
	if e.conn > 0 && e.state == Broken {
		t.counters.Heals++
	}
	peer, err := t.tr.Load(e.facts.ranks[0].blob)
	if err != nil {
		t.counters.LoadsFailed++
		e.fails++
		if e.downAt == 0 {
			e.downAt = now
		}
		e.healAt = now.Add(t.backoff(e))
		t.loads.set(i, e.healAt)
		return true
	}
	e.peer = peer
	e.conn++
	t.loads.set(i, clock.Never)
	t.setState(i, Connected)
	if e.fails == 0 { // else it is up when it is heard: a dead agent's blob loads as well as a living one's
		t.engineUp(i)
	}
	t.settle(i, now)
	t.startRound(i, now.Add(1)) // the first heartbeats leave in the step after this one
	if e.owedN > 0 || e.leaving {
		t.ends.set(i, now)
	}
	t.ready(i)
	return true
}

// dropPeer forgets an agent, but never under a transfer, which would go on landing; those in quarantine count, too. To give
// up a peer that keeps one open past heal_wait (reads.Abandon) needs a Drop that the transport does not refuse, and comes
// with healing under load.
func (t *Tracker) dropPeer(p transport.Peer) bool {
	pending, aside := t.reads.InFlight(p)
	return pending+aside == 0 && t.tr.Drop(p) == nil
}

// ParkedMax bounds the agents of engines that came back as others while a transfer from them was open.
const ParkedMax = 64

// stepParked drops one of them as soon as it can be dropped.
func (t *Tracker) stepParked() {
	n := len(t.parked)
	if n == 0 {
		return
	}
	t.parkedAt = (t.parkedAt + 1) % n
	if t.dropPeer(t.parked[t.parkedAt]) {
		t.parked[t.parkedAt] = t.parked[n-1]
		t.parked = t.parked[:n-1]
	}
}

// settle sorts what was tracked before the engine was known: requests of another boot wait apart.
func (t *Tracker) settle(i uint32, now clock.Instant) {
	e := &t.engines[i]
	end := e.native.start()
	for {
		_, m, ok := t.pool.next(&end)
		if !ok {
			break
		}
		if t.remotes.all[m].epoch != e.facts.epoch {
			t.displaceAt(m, &end)
			t.estrange(m, now)
		}
	}
	for m := e.strange.head; m != none; {
		next := t.remotes.all[m].next
		if t.remotes.all[m].epoch == e.facts.epoch {
			t.displace(m)
			t.enlist(m)
			t.rewait(m)
		}
		m = next
	}
}

// broken says that a peer could not be reached. The first one starts healing; what follows changes nothing.
func (t *Tracker) broken(i uint32, now clock.Instant) {
	e := &t.engines[i]
	e.breaks++
	t.counters.Disconnects++
	if e.state != Connected {
		return
	}
	e.fails++
	if e.downAt == 0 {
		e.downAt = now
	}
	t.setState(i, Broken)
	t.engineDown(i, uint64(e.requests))
	t.forgetLeaving(e) // who cannot be reached needs no good-bye
	t.stopRounds(i)
	t.ends.set(i, clock.Never)
	e.healAt = now.Add(t.backoff(e))
	t.loads.set(i, e.healAt)
}

// loseUnreachable ends what is tracked at an engine that has not been heard for so long that no lease can be left which only
// we renewed: a first term or the last extension is over, with the jitter and the looks of its owner. Else a request
// would be recomputed only when its read has timed out, or never.
func (t *Tracker) loseUnreachable(i uint32, now clock.Instant) {
	e := &t.engines[i]
	over := e.facts.times.duration * 5 / 4
	if e.downAt == 0 || now.Before(e.downAt.Add(over)) {
		return
	}
	for _, d := range [...]*dense{&e.native, &e.stock} {
		for end := d.start(); ; {
			_, m, ok := t.pool.next(&end)
			if !ok {
				break
			}
			if r := &t.remotes.all[m]; max(r.arrival, e.downAt).Add(over) <= now {
				t.displaceAt(m, &end)
				t.lose(m, now)
			}
		}
	}
}

// backoff is how long an engine is left alone after a failure: an eighth of the interval, doubling to one interval, and
// after ten failures without being heard on to a minute. So a reset is healed before the next heartbeat is due, and a dead
// engine costs a look a minute.
func (t *Tracker) backoff(e *engine) time.Duration {
	interval := e.facts.times.interval
	d := interval / 8
	for n := uint32(1); n < e.fails; n++ {
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

// heard takes the end of a one-sided read: everything that was sent before it was posted, up to mark, has been taken in.
func (t *Tracker) heard(i uint32, mark uint64) {
	e := &t.engines[i]
	if e.state != Connected {
		return // of a connection that is no more
	}
	e.heard = max(e.heard, min(mark, e.sent))
	e.fails = 0
	t.engineUp(i)
}

func (t *Tracker) engineUp(i uint32) {
	e := &t.engines[i]
	e.downAt = 0
	if e.up {
		return
	}
	e.up = true
	e.pendUp = true // after a down that has not left yet
	t.queueEngineEvent(i)
}

func (t *Tracker) engineDown(i uint32, touched uint64) {
	e := &t.engines[i]
	if !e.up {
		return
	}
	e.up = false
	e.pendUp, e.pendDown, e.downCount = false, true, touched
	t.queueEngineEvent(i)
}
