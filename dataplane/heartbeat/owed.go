package heartbeat

import (
	"errors"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
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
		if t.ends.where[r.engine] < 0 { // else it is due already, or backs off
			t.ends.set(r.engine, now)
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
		i, at := t.ends.first()
		if now.Before(at) {
			return
		}
		if budget == 0 {
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
		t.ends.set(i, clock.Never)
		return budget
	}
	for k := range e.owed {
		for e.owed[k].n > 0 {
			if budget == 0 {
				t.ends.set(i, now)
				return 0
			}
			budget--
			if !t.sendOwed(i, k, now) {
				return budget
			}
		}
	}
	if e.leaving {
		if budget == 0 {
			t.ends.set(i, now)
			return 0
		}
		budget--
		t.buf = wire.AppendHeader(t.buf[:0], &wire.Header{
			Kind: wire.Leaving, Engine: t.cfg.Self.EngineHash, Epoch: t.cfg.Self.Epoch, Rank: t.cfg.Self.Rank,
		})
		if !t.send(i, now) {
			return budget
		}
		t.forgetLeaving(e)
		t.counters.Leavings++
	}
	t.ends.set(i, clock.Never)
	return budget
}

func (t *Tracker) forgetLeaving(e *engine) {
	if e.leaving {
		e.leaving = false
		t.leavings--
	}
}

// sendOwed sends one message of a kind. What it named is over if it was sent; else it stays, and false is reported.
func (t *Tracker) sendOwed(i uint32, kind int, now clock.Instant) bool {
	e := &t.engines[i]
	l := &e.owed[kind]
	n := 0
	switch kind {
	case owedStock:
		r := &t.remotes.all[l.head]
		var st wire.Status
		t.buf, st = wire.AppendCompletion(t.buf[:0], t.remotes.idOf(r), e.facts.ranks[0].readers)
		if st != wire.OK {
			t.counters.BadIDs++ // nothing can be said about it: the lease ends by itself
			t.forgetOwed(l.head)
			return true
		}
		n = 1
	default:
		h := wire.Header{Kind: wire.Release, Engine: t.cfg.Self.EngineHash, Epoch: t.cfg.Self.Epoch, Rank: t.cfg.Self.Rank}
		if kind == owedComplete {
			h.Kind, h.Readers = wire.Complete, e.facts.ranks[0].readers
		}
		t.buf = wire.AppendHeader(t.buf[:0], &h)
		for m := l.head; m != none && len(t.buf)+wire.EntryLen <= t.cfg.BatchBytesMax; m = t.remotes.all[m].next {
			r := &t.remotes.all[m]
			t.buf = wire.AppendEntry(t.buf, r.slot, r.gen, r.key)
			n++
		}
		wire.SetCount(t.buf, uint32(n))
	}
	if !t.send(i, now) {
		return false
	}
	t.counters.EndBatches++
	for range n {
		m := l.head
		if t.remotes.all[m].read {
			t.counters.Completes++
		} else {
			t.counters.Releases++
		}
		t.forgetOwed(m)
	}
	return true
}

// send sends t.buf as an end. On failure it says when to try again.
func (t *Tracker) send(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	err := t.tr.Send(e.peer, t.buf)
	if err == nil {
		e.sent += uint64(len(t.buf)) + NotifOverhead
		return true
	}
	t.counters.SendFailed++
	if errors.Is(err, transport.ErrFull) {
		e.breaks++
		t.ends.set(i, now.Add(t.healStep(e)))
		return false
	}
	t.broken(i, now)
	return false
}

// expireOwed gives up messages that have waited too long.
func (t *Tracker) expireOwed(now clock.Instant) {
	for range expireStepMax { // the rest waits for the next step
		m := t.owedOrder.head
		if m == none || now.Before(t.remotes.all[m].deadline) {
			return
		}
		t.counters.OwedLate++
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
		t.lose(m, now)
	}
}

// expireStepMax bounds what one step gives up of each kind.
const expireStepMax = 256
