package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// What is owed to an engine: a completion for what was read, a release for what never will be. It stays in the remote until
// it is sent; if the engine cannot be reached, until ReadTimeout, when any lease has long ended by itself.
const (
	owedComplete = iota // native
	owedRelease         // native
	owedStock           // a bare completion says both
	owedKinds
)

func (m *remote) owedKind() int {
	switch {
	case !m.native:
		return owedStock
	case m.read:
		return owedComplete
	}
	return owedRelease
}

func (t *Tracker) owe(m uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	r.place = inOwed
	r.deadline = now.Add(t.cfg.ReadTimeout)
	t.remotes.push(&e.owed[r.owedKind()], m)
	e.owedN++
	t.remotes.pushAge(&t.owedOrder, m)
	t.gauges.Owed++
	switch e.state {
	case Connected:
		if t.ends.At(r.engine) == clock.Never { // else it is due already, or backs off
			t.ends.Set(r.engine, now)
		}
	case Broken:
		t.wake(r.engine, now)
	}
}

// unowe takes a remote back from the owed ones.
func (t *Tracker) unowe(m uint32) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	t.remotes.unlink(&e.owed[r.owedKind()], m)
	e.owedN--
	t.remotes.unlinkAge(&t.owedOrder, m)
	t.gauges.Owed--
	r.place = nowhere
}

func (t *Tracker) forgetOwed(m uint32) {
	t.unowe(m)
	t.remotes.drop(m)
}

// stepEnds tells engines what has ended: one message an engine and kind for all that ended in the step.
func (t *Tracker) stepEnds(now clock.Instant) {
	budget := t.cfg.EndsStepMax
	for {
		i, at := t.ends.First()
		if now.Before(at) {
			return
		}
		if budget <= 0 {
			t.counters.EndsCut++ // the rest waits for the next step: a lease that ends a step later costs nothing
			return
		}
		budget = t.sendEnds(i, budget, now)
	}
}

// sendEnds sends what is owed to one engine with at most budget messages and reports what is left of it.
func (t *Tracker) sendEnds(i uint32, budget int, now clock.Instant) int {
	e := &t.engines[i]
	if e.state != Connected {
		t.ends.Set(i, clock.Never)
		return budget
	}
	budget, ok := t.sayHello(i, budget, now)
	if !ok {
		return budget
	}
	for k := range e.owed {
		for e.owed[k].n > 0 {
			if budget <= 0 {
				t.ends.Set(i, now)
				return 0
			}
			budget -= len(e.links)
			if !t.sendOwed(i, k, now) {
				return budget
			}
		}
	}
	if e.leaving {
		if budget <= 0 {
			t.ends.Set(i, now)
			return 0
		}
		budget -= len(e.links)
		t.buf = wire.AppendHeader(t.buf[:0], t.header(wire.Leaving))
		if t.sendAll(i, 0, now) {
			t.ends.Set(i, now.Add(t.healStep(e)))
			return budget
		}
		if e.state != Connected {
			return budget
		}
		t.forgetLeaving(e)
		t.counters.Leavings++
	}
	t.ends.Set(i, clock.Never)
	return budget
}

// header starts a native message. It is the tracker's own: a local one would be moved to the heap.
func (t *Tracker) header(kind wire.Kind) *wire.Header {
	t.head = wire.Header{Kind: kind, Engine: t.cfg.Self.EngineHash, Epoch: t.cfg.Self.Epoch, Rank: t.cfg.Self.Rank}
	return &t.head
}

// sayHello tells who we are over the links that were loaded: before their first heartbeat, and with the nonce that our death
// wire shows. It reports what is left of the budget, and false if a link had no room or broke.
func (t *Tracker) sayHello(i uint32, budget int, now clock.Instant) (int, bool) {
	e := &t.engines[i]
	for k := range e.links {
		l := &e.links[k]
		if !l.hello {
			continue
		}
		budget--
		t.buf = wire.AppendHello(t.buf[:0], t.header(wire.Hello), &e.facts.hello)
		if !t.sendTo(i, uint32(k), 0, now) {
			t.ends.Set(i, now.Add(t.healStep(e))) // Never, if it broke
			if e.state != Connected {
				t.ends.Set(i, clock.Never)
			}
			return budget, false
		}
		l.hello = false
		e.sent += uint64(len(t.buf)) + NotifOverhead
		t.counters.Hellos++
	}
	return budget, true
}

func (t *Tracker) forgetLeaving(e *engine) {
	if e.leaving {
		e.leaving = false
		t.leavings--
	}
}

// sendOwed sends one message of a kind. What it named is over if it was sent to all ranks; else it stays, and false is
// reported.
func (t *Tracker) sendOwed(i uint32, kind int, now clock.Instant) bool {
	if kind == owedStock {
		return t.sendStockEnd(i, now)
	}
	e := &t.engines[i]
	l := &e.owed[kind]
	n := 0
	h := t.header(wire.Release)
	if kind == owedComplete {
		h.Kind = wire.Complete
	}
	t.buf = wire.AppendHeader(t.buf[:0], h)
	for m := l.head; m != none && len(t.buf)+wire.EntryLen <= t.cfg.BatchBytesMax; m = t.remotes.all[m].next {
		r := &t.remotes.all[m]
		t.buf = wire.AppendEntry(t.buf, r.slot, r.gen, r.key)
		n++
	}
	h.Count = uint32(n)
	e.sent += uint64(len(t.buf)) + NotifOverhead
	sent := true
	for k := range e.links {
		if kind == owedComplete {
			h.Readers = e.links[k].readers
		}
		wire.AppendHeader(t.buf[:0], h) // in place
		sent = t.sendTo(i, uint32(k), 0, now) && sent
	}
	if !sent { // the ranks that have got it take it a second time: a report counts once
		t.endFailed(i, now)
		return false
	}
	t.counters.EndBatches += uint64(len(e.links))
	for range n {
		t.told(l.head)
	}
	return true
}

// sendStockEnd sends the oldest completion in the stock format. A stock owner counts what it gets, so no rank gets one twice.
func (t *Tracker) sendStockEnd(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	m := e.owed[owedStock].head
	r := &t.remotes.all[m]
	sent := true
	for k := range e.links {
		if r.ends&(1<<k) != 0 {
			continue
		}
		var st wire.Status
		t.buf, st = wire.AppendCompletion(t.buf[:0], t.remotes.idOf(r), e.links[k].readers)
		if st != wire.OK {
			t.counters.BadIDs++ // nothing can be said about it: the lease ends by itself
			t.sayRemote(log.IDUnsendable, r, uint64(len(t.remotes.idOf(r))), 0)
			t.forgetOwed(m)
			return true
		}
		if !t.sendTo(i, uint32(k), 0, now) {
			sent = false
			continue
		}
		r.ends |= 1 << k
		t.counters.EndBatches++
	}
	e.sent += uint64(len(t.buf)) + NotifOverhead
	if !sent {
		t.endFailed(i, now)
		return false
	}
	t.told(m)
	return true
}

// told ends a remote whose owner knows.
func (t *Tracker) told(m uint32) {
	if t.remotes.all[m].read {
		t.counters.Completes++
	} else {
		t.counters.Releases++
	}
	t.forgetOwed(m)
}

// endFailed says when an end that a link did not take is sent again.
func (t *Tracker) endFailed(i uint32, now clock.Instant) {
	if e := &t.engines[i]; e.state == Connected {
		t.ends.Set(i, now.Add(t.healStep(e)))
	}
}

// expireOwed gives up messages that have waited too long.
func (t *Tracker) expireOwed(now clock.Instant) {
	for range expireStepMax { // the rest waits for the next step
		m := t.owedOrder.head
		if m == none || now.Before(t.remotes.all[m].deadline) {
			return
		}
		t.counters.OwedLate++
		t.sayRemote(log.EndUntold, &t.remotes.all[m], uint64(t.cfg.ReadTimeout), 0)
		t.forgetOwed(m)
	}
}

// expireStrange ends requests whose engine has not come back under their boot epoch while the lease can stand.
func (t *Tracker) expireStrange(now clock.Instant) {
	for range expireStepMax {
		m := t.strangeOrder.head
		if m == none || now.Before(t.remotes.all[m].deadline) {
			return
		}
		t.lose(m, Replaced, now)
	}
}

// expireStepMax bounds what one step gives up of each kind.
const expireStepMax = 256
