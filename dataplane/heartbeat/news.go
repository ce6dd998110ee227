package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
)

// What other goroutines say of an engine changes it here. A change that ends what is tracked there is a walk of several
// steps; what is said meanwhile waits in want.

// want is what an engine is to become.
type want struct {
	facts   *facts
	taken   bool          // they are to be installed: what was tracked under the ones before is lost
	at      clock.Instant // facts are not taken before it
	dead    bool
	why     Over // of dead
	removed bool
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
			use := t.reg.seats[i].use.Load()
			if use&1 == 0 {
				continue
			}
			t.adopt(i, use/2)
		}
		if n.offsetNew {
			e.offset = n.offset
		}
		e.want.removed = e.want.removed || n.removed
		if n.dead {
			e.want = want{dead: true, why: n.why, removed: e.want.removed}
		}
		if n.given != nil {
			t.counters.Handshakes++
			e.want = want{facts: n.given, removed: e.want.removed}
		}
		t.become(i, now)
	}
}

// become does what is wanted of an engine, as far as it can be done now.
func (t *Tracker) become(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if e.walk == walkLose || e.state == Removing {
		return // when the walk is over
	}
	switch w := &e.want; {
	case w.removed:
		t.remove(i, now)
	case w.dead:
		w.dead = false
		t.die(i, w.why, now)
	case w.facts != nil && !w.taken:
		t.handshake(i, w.facts, now)
	}
}

// handshake takes new facts about an engine.
func (t *Tracker) handshake(i uint32, f *facts, now clock.Instant) {
	e := &t.engines[i]
	switch {
	case e.facts == nil:
	case e.facts.same(f):
		t.counters.HandshakesSame++
		e.want.facts = nil
		for k := range f.ranks { // what is read into may have changed
			e.facts.ranks[k].how = f.ranks[k].how
		}
		e.facts.bare = f.bare
		t.ready(i)
		if e.dead { // it lives after all
			e.dead = false
			t.startWalk(i, walkSettle, now)
		}
		if e.state == Broken { // somebody has just spoken with it: look at once
			t.loads.Set(i, now)
		}
		return
	case f.native && f.epoch == e.before && now.Before(e.replacedAt.Add(e.facts.times.duration)):
		// Two processes claim one id, or an old answer came late. Each change costs all that is tracked there: one a duration.
		if e.want.at == 0 {
			t.counters.Flaps++
			t.sayEngine(log.EngineTwice, e, 0, 0)
			e.want.at = e.replacedAt.Add(e.facts.times.duration)
		}
		t.loads.Set(i, min(e.want.at, t.loads.At(i)))
		return
	default:
		if e.requests > 0 || !e.dead || e.why != Withdrew { // else it was to be expected, and nobody loses anything
			t.sayEngine(log.EngineReplaced, e, uint64(e.requests), 0)
		}
		t.hush.Set(i, clock.Never)
		t.engineDown(i, uint64(e.requests))
		e.before, e.replacedAt, e.why = e.facts.epoch, now, Replaced
		t.startWalk(i, walkLose, now)
	}
	e.want.at, e.want.taken = 0, true
	e.breaks++
	e.dead = false
	t.stopRounds(i)
	t.ends.Set(i, clock.Never)
	t.setState(i, Loading)
	t.loads.Set(i, now)
}

// install puts the wanted facts in force. The peers of those before are dropped, and what was tracked under them is lost.
func (t *Tracker) install(i uint32, now clock.Instant) {
	e := &t.engines[i]
	e.facts, e.links = e.want.facts, e.want.facts.links
	e.drains, e.pendDrains = false, false
	e.badReads, e.here = 0, [hereKinds]hereRun{}
	e.said = paces{} // what is wrong with this boot is news
	e.want = want{}
	e.sent = 0
	t.startWalk(i, walkSettle, now)
}

// die takes the word of others that the engine of the facts in force is no more.
func (t *Tracker) die(i uint32, why Over, now clock.Instant) {
	e := &t.engines[i]
	if e.why = why; why == Withdrew { // what was lost was lost by its sleep or its close, not by trouble
		e.missedAt = 0
	}
	switch {
	case e.facts == nil: // dead before it was loaded, or another engine answers at its address: nobody will say more of what waits
		if e.state == Loading {
			t.setState(i, Idle)
			t.loads.Set(i, clock.Never)
			t.wake(i, now)
		}
		t.startWalk(i, walkLose, now)
		return
	case e.dead:
		return
	}
	switch why {
	case Died:
		t.counters.EnginesDead++
	case Withdrew:
		t.counters.EnginesWithdrawn++
	default:
		t.counters.EnginesUnusable++
	}
	t.hush.Set(i, clock.Never) // this word says more
	t.sayOver(e)
	t.engineDown(i, uint64(e.requests))
	t.forgetLeaving(e)
	t.stopRounds(i)
	t.ends.Set(i, clock.Never)
	for k := range e.links {
		e.links[k].broken = true
		e.links[k].brokenAt = now
	}
	e.dead = true
	e.breaks++
	if e.state != Broken {
		t.setState(i, Broken)
	}
	t.startWalk(i, walkLose, now)
	t.loads.Set(i, now) // its agents are dropped
}

func (t *Tracker) remove(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if e.state == Connected {
		t.sendEnds(i, t.cfg.EndsStepMax, now) // the last chance to tell it
	}
	t.forgetLeaving(e)
	t.stopRounds(i)
	t.ends.Set(i, clock.Never)
	for k := range e.links {
		e.links[k].brokenAt = now
	}
	t.hush.Set(i, clock.Never)
	e.why = Removed
	t.setState(i, Removing)
	t.startWalk(i, walkLose, now)
	t.loads.Set(i, now)
}
