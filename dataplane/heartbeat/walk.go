package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// A walk looks at everything that is tracked at one engine, a part in each step.
type walk uint8

const (
	walkNone   walk = iota
	walkSettle      // new facts: what was tracked before they came is sorted by boot epoch
	walkOver        // not heard for long: what only we renewed must be over
	walkLose        // the boot in force is no more, or the engine is removed
)

// Bounds of a step's walks. A request that is lost a step later costs nothing: nothing is read for it meanwhile.
const (
	looksStepMax = 4096
	loseCost     = 16 // looks that one request's end counts as
)

// startWalk begins a walk and goes as far as this step may.
func (t *Tracker) startWalk(i uint32, w walk, now clock.Instant) {
	e := &t.engines[i]
	e.walk, e.walkStage, e.walkLeft = w, 0, e.strange.n
	e.walkEnd = e.native.start()
	if !t.goWalk(i, now) {
		t.pushEngine(&t.walkQueue, i)
	}
}

// stepWalks goes on with the walks that earlier steps have begun.
func (t *Tracker) stepWalks(now clock.Instant) {
	for t.walkQueue.head != none {
		if t.looksLeft <= 0 {
			t.counters.WalksCut++
			return
		}
		i := t.popEngine(&t.walkQueue)
		if !t.goWalk(i, now) {
			t.pushEngine(&t.walkQueue, i)
			continue
		}
		t.become(i, now) // what was said meanwhile
		t.wake(i, now)
	}
}

// goWalk goes on with a walk and reports whether it is over.
func (t *Tracker) goWalk(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	done := true
	switch e.walk {
	case walkSettle:
		done = t.settle(i, &t.looksLeft, now)
	case walkOver:
		done = t.loseOver(i, &t.looksLeft, now)
	case walkLose:
		done = t.loseAll(i, &t.looksLeft, now)
	}
	if done {
		e.walk = walkNone
	}
	return done
}

// settle sorts what was tracked before the engine was known: requests of another boot wait apart, those of this one go with
// the heartbeats.
func (t *Tracker) settle(i uint32, left *int, now clock.Instant) bool {
	e := &t.engines[i]
	for ; e.walkStage < 2; e.walkStage++ {
		for {
			if *left <= 0 {
				return false
			}
			*left--
			_, m, ok := t.pool.next(&e.walkEnd)
			if !ok {
				break
			}
			r := &t.remotes.all[m]
			if r.native && r.epoch != e.facts.epoch {
				t.displace(m)
				t.estrange(m, now)
				continue
			}
			t.takeRowStates(r, e)
		}
		e.walkEnd = e.fixed.start()
	}
	for ; e.walkLeft > 0 && e.strange.head != none; e.walkLeft-- {
		if *left <= 0 {
			return false
		}
		*left--
		m := e.strange.head
		r := &t.remotes.all[m]
		if r.native && r.epoch != e.facts.epoch {
			t.remotes.unlink(&e.strange, m)
			t.remotes.push(&e.strange, m)
			continue
		}
		t.displace(m)
		t.enlist(m)
		t.rewait(m)
	}
	return true
}

// loseOver ends what is tracked at an engine that has not been heard for so long that no lease can be left which only we
// renewed: a first term or the last extension is over, with the jitter and the looks of its owner. Else a request would be
// recomputed only when its read has timed out, or never.
func (t *Tracker) loseOver(i uint32, left *int, now clock.Instant) bool {
	e := &t.engines[i]
	down, over := e.downAt(), t.overAfter(e)
	if e.facts != nil && down == 0 {
		return true // heard again
	}
	for ; e.walkStage < 2; e.walkStage++ {
		for {
			if *left <= 0 {
				return false
			}
			*left--
			_, m, ok := t.pool.next(&e.walkEnd)
			if !ok {
				break
			}
			if r := &t.remotes.all[m]; max(r.arrival, down).Add(over) <= now {
				*left -= loseCost
				t.lose(m, Unheard, now)
			}
		}
		e.walkEnd = e.stock.start()
	}
	return true
}

// overAfter is how long a lease can stand of which nothing is heard. Without a handshake it is our own duration that counts.
func (t *Tracker) overAfter(e *engine) time.Duration {
	if e.facts == nil {
		return t.cfg.Duration + t.cfg.HandoverMax
	}
	return e.facts.times.duration * 5 / 4
}

// lookOver starts walkOver when it can find something, and says when it can next.
func (t *Tracker) lookOver(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if e.walk != walkNone || e.native.n+e.stock.n == 0 {
		return
	}
	if down := e.downAt(); e.facts != nil && (down == 0 || now.Before(down.Add(t.overAfter(e)))) {
		return
	}
	t.startWalk(i, walkOver, now)
}

// loseAll reports requests of an engine as lost. Strangers stay unless the engine is removed: they wait for another boot.
func (t *Tracker) loseAll(i uint32, left *int, now clock.Instant) bool {
	e := &t.engines[i]
	for *left > 0 {
		*left -= loseCost
		m := none
		for _, d := range [...]*dense{&e.native, &e.stock, &e.fixed} {
			if d.n > 0 {
				c := &t.pool.chunks[d.tail]
				m = c.remote[c.n-1]
				break
			}
		}
		switch {
		case m != none:
		case e.aside.head != none:
			m = e.aside.head
		case e.state == Removing && e.strange.head != none:
			m = e.strange.head
		}
		if m != none {
			t.lose(m, e.why, now)
			continue
		}
		k := 0
		for k < owedKinds && e.owed[k].head == none {
			k++
		}
		if k == owedKinds {
			return true
		}
		t.counters.OwedLost++
		t.forgetOwed(e.owed[k].head)
	}
	return false
}

// lose ends one remote without an answer of its engine.
func (t *Tracker) lose(m uint32, why Over, now clock.Instant) {
	r := &t.remotes.all[m]
	r.lost, r.why = true, why
	t.remotes.unindex(m) // a later request of that name is another matter
	t.displace(m)
	t.counters.Lost += uint64(r.users)
	t.parted(&t.engines[r.engine], int(r.users), why != Withdrew, now) // its place may change hands before they are untracked
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
