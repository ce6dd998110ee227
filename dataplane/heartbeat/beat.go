package heartbeat

import (
	"errors"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// A round is one heartbeat for everything tracked at an engine. It starts when the engine's own timer is up, reads the rows
// first (one unread notification may hold up one-sided reads behind it), and is cut into messages and, at BatchesStepMax,
// into steps.
const (
	roundNone = iota
	roundNative
	roundStock
)

// startRound sets the first round after a load.
func (t *Tracker) startRound(i uint32, at clock.Instant) {
	e := &t.engines[i]
	e.rounds = 0
	for k := range e.links {
		e.links[k].rowAt = at
	}
	t.beats.Set(i, at)
}

// wake sees to it that something happens at an engine that had nothing to do: it has a new request, or a message to send.
func (t *Tracker) wake(i uint32, now clock.Instant) {
	e := &t.engines[i]
	switch e.state {
	case Idle:
		if t.loads.At(i) == clock.Never && e.native.n+e.stock.n > 0 {
			t.loads.Set(i, now.Add(t.overAfter(e)))
		}
	case Connected:
		if t.beats.At(i) == clock.Never {
			at := now
			if e.rounds > 0 {
				at = max(now, e.lastRound.Add(e.facts.times.interval))
			}
			t.beats.Set(i, at)
		}
		if t.loads.At(i) == clock.Never && e.downAt() != 0 {
			t.setLoad(i, now.Add(t.overAfter(e)))
		}
	case Broken:
		if t.loads.At(i) == clock.Never && !e.dead {
			t.setLoad(i, max(now, e.healAt))
		}
	case Loading, Removing:
		if t.loads.At(i) == clock.Never {
			t.loads.Set(i, now)
		}
	}
}

func (t *Tracker) stepBeats(now clock.Instant) {
	if t.muted {
		return
	}
	budget := t.cfg.BatchesStepMax
	for {
		i, at := t.beats.First()
		if now.Before(at) {
			return
		}
		if budget <= 0 {
			t.counters.BeatsCut++ // the rest leaves in the next steps: an interval has room for many
			return
		}
		budget = t.round(i, budget, now)
	}
}

// round starts or goes on with the round of one engine and reports what is left of the budget.
func (t *Tracker) round(i uint32, budget int, now clock.Instant) int {
	e := &t.engines[i]
	if e.state != Connected {
		t.beats.Set(i, clock.Never)
		return budget
	}
	if e.beatList == roundNone {
		if e.native.n+e.stock.n+e.fixed.n == 0 {
			t.beats.Set(i, clock.Never) // wake starts it again
			if (!e.up || e.silentSince() != 0) && !t.awaitLife(i, now) && e.state == Connected {
				t.beats.Set(i, now.Add(t.healStep(e)))
			}
			return budget
		}
		late := now.Sub(t.beats.At(i))
		t.times.BeatLate.Observe(late)
		t.sayLate(e, late, now)
		t.beginRound(i, now)
		if e.state != Connected { // a row read found it unreachable
			return budget
		}
	}
	for budget > 0 {
		if e.unheard() >= t.cfg.UnheardBytesMax { // heartbeats may be dropped: the next one says the same
			t.counters.BeatsDropped++
			if e.said.dropped.Due(now) {
				t.sayEngine(log.HeartbeatsDropped, e, e.unheard(), 0)
			}
			cut := e.beatList
			t.endRound(i, now)
			e.beatCut = cut // the next round goes on here: those behind it must have their turn
			return budget
		}
		saved := e.beatEnd
		n := t.buildBeat(e, now)
		if n == 0 {
			switch {
			case e.beatList == roundNative:
				e.beatList, e.beatEnd = roundStock, e.stock.start()
			case e.beatAgain:
				e.beatList, e.beatEnd, e.beatAgain = roundNative, e.native.start(), false
			default:
				t.endRound(i, now)
				return budget
			}
			continue
		}
		budget -= len(e.links) // the last message of a step goes to all links
		t.counters.BeatBatches += uint64(len(e.links))
		t.counters.BeatBytes += uint64(len(e.links) * len(t.buf))
		t.counters.Beats += uint64(n)
		if full := t.sendAll(i, n, now); e.state != Connected {
			return budget
		} else if full {
			if e.beatEnd = saved; e.beatList == roundStock {
				e.beatEnd = e.stock.start() // what cannot be sent was set aside, and saved's chunk may have gone with it
			}
			t.beatFull(i, now)
			return budget
		}
		e.beatRetry = 0
	}
	t.beats.Set(i, now) // first again in the next step
	return 0
}

// sayLate says how late rounds have begun: the latest one since the line before.
func (t *Tracker) sayLate(e *engine, late time.Duration, now clock.Instant) {
	if late <= t.interval(e) {
		return
	}
	if e.said.lateMost = max(e.said.lateMost, late); e.said.late.Due(now) {
		t.sayEngine(log.HeartbeatsLate, e, uint64(e.said.lateMost), uint64(t.interval(e)))
		e.said.lateMost = 0
	}
}

// NotifOverhead is what a queued notification costs its sender beside its bytes (measured: 4.8 KB a message in all).
const NotifOverhead = 4096

func (t *Tracker) beginRound(i uint32, now clock.Instant) {
	e := &t.engines[i]
	if now.Sub(e.lastRound) > 2*e.facts.times.interval {
		for k := range e.links {
			l := &e.links[k]
			l.rowAt, l.probeDue = now, l.probing // nothing was asked meanwhile
		}
	}
	e.lastRound = now
	if e.beatAgain = e.beatCut != roundNone; e.beatAgain {
		e.beatList = e.beatCut
	} else {
		e.beatList, e.beatEnd = roundNative, e.native.start()
	}
	e.beatCut = roundNone
	if t.reach != ReachAll {
		for k := range e.links {
			e.links[k].rowAt, e.links[k].askedAt = now, 0 // nothing can be asked
		}
		return
	}
	rows := e.facts.native && e.native.n+e.fixed.n > 0
	if e.native.n+e.fixed.n > 0 {
		if !e.queued[queueRows].in || e.rowEnd.chunk == none { // else the round before is still under way
			e.beginRows()
		}
		if !t.postRows(i, now) {
			t.pushEngine(&t.rowQueue, i)
		}
	}
	for k := range e.links {
		// Of a board the header is looked at in every second round, whatever else was read: it says whether its owner drains. A stock
		// owner is probed in each: the guard knows by nothing else that it has taken in what was sent (silent), and reads may come so
		// often that one was posted in every round, while none of them ends.
		seen := e.facts.native && e.rounds%2 != 0 && (rows || e.links[k].seen)
		e.links[k].seen = false
		if !seen && e.state == Connected {
			t.probe(i, uint32(k), now)
		}
	}
}

// awaitLife asks for a sign of life of the links that were loaded after a failure or answer nothing, though nothing is tracked. It
// reports whether all have been asked.
func (t *Tracker) awaitLife(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	all := true
	for k := range e.links {
		if e.state == Connected && (e.links[k].downAt != 0 || e.links[k].askedAt != 0) {
			all = t.probe(i, uint32(k), now) && all
		}
	}
	return all
}

// sendAll sends t.buf, in which so many requests have their heartbeats, over all links of an engine. full: one of them had no
// room. One that is unreachable breaks the engine.
func (t *Tracker) sendAll(i uint32, beats int, now clock.Instant) (full bool) {
	e := &t.engines[i]
	e.sent += uint64(len(t.buf)) + NotifOverhead
	for k := range e.links {
		if !t.sendTo(i, uint32(k), beats, now) && !e.links[k].broken {
			full = true
		}
	}
	return full
}

// sendTo sends t.buf over one link. On failure that link is broken, or does not take it now.
func (t *Tracker) sendTo(i, k uint32, beats int, now clock.Instant) bool {
	e := &t.engines[i]
	l := &e.links[k]
	if l.broken {
		return false
	}
	native := t.buf[0] == wire.NativeMagic
	if native {
		wire.SetNumber(t.buf, l.number)
	}
	if beats > 0 {
		t.tracePosted(e, l, native, beats)
	}
	err := t.tr.Send(l.peer, t.buf)
	if err == nil {
		switch {
		case native:
			l.number++
		case beats > 0:
			l.stock++
		}
		e.worked(hereSends)
		return true
	}
	t.counters.SendFailed++
	if e.said.send.Due(now) {
		t.sayEngine(log.SendFailed, e, uint64(len(t.buf)), 0)
	}
	if errors.Is(err, transport.ErrPeer) {
		t.broken(i, k, now)
		return false
	}
	e.breaks++ // no room, or a reason of this side, which says nothing of the peer
	if !errors.Is(err, transport.ErrFull) {
		t.failedHere(i, hereSends, now)
	}
	return false
}

// endRound sets the time of the next round: one interval after this one began, so that rounds keep their phase. The second
// one after a load comes up to an eighth earlier, which spreads engines that were loaded together.
func (t *Tracker) endRound(i uint32, now clock.Instant) {
	e := &t.engines[i]
	interval := e.facts.times.interval
	e.beatList = roundNone
	next := e.lastRound.Add(interval)
	if e.rounds == 0 {
		next = next.Add(-time.Duration(t.spread(i) % uint64(interval/8+1)))
	}
	e.rounds++
	if !now.Before(next) { // a step came late: no second round in a row
		next = now.Add(interval / 2)
	}
	t.beats.Set(i, next)
}

// spread is a number of its own for each engine and seed.
func (t *Tracker) spread(i uint32) uint64 {
	x := t.cfg.Seed + uint64(i)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// buildBeat makes the next message of the round in t.buf and reports how many requests it names; 0: the list is through.
func (t *Tracker) buildBeat(e *engine, now clock.Instant) int {
	t.buf = t.buf[:0]
	n := 0
	if e.beatList == roundNative {
		t.buf = wire.AppendHeader(t.buf, &wire.Header{
			Kind: wire.Renew, Engine: t.cfg.Self.EngineHash, Epoch: t.cfg.Self.Epoch, Rank: t.cfg.Self.Rank,
		})
		for len(t.buf)+wire.EntryLen <= t.cfg.BatchBytesMax {
			b, m, ok := t.pool.next(&e.beatEnd)
			if !ok {
				break
			}
			t.buf = wire.AppendEntry(t.buf, b.slot, b.generation, b.key)
			t.remotes.all[m].sent++
			n++
		}
		wire.SetCount(t.buf, uint32(n))
		return n
	}
	for {
		saved := e.beatEnd
		_, m, ok := t.pool.next(&e.beatEnd)
		if !ok {
			return n
		}
		r := &t.remotes.all[m]
		var st wire.Status
		t.buf, st = wire.AppendHeartbeatID(t.buf, t.cfg.BatchBytesMax, t.remotes.idOf(r))
		switch st {
		case wire.OK:
			t.chain(e, r, now)
			n++
		case wire.Full:
			e.beatEnd = saved
			return n
		default:
			t.counters.BadIDs++ // it can be read only as long as its first term lasts
			t.sayRemote(log.IDUnsendable, r, uint64(len(t.remotes.idOf(r))), 0)
			t.setAside(m)
		}
	}
}

// beatFull goes on with a round after a moment, within the interval: a link had no room. What the others have got of the
// message they get again.
func (t *Tracker) beatFull(i uint32, now clock.Instant) {
	e := &t.engines[i]
	interval := e.facts.times.interval
	wait := min(interval/16<<min(e.beatRetry, 8), interval/2)
	e.beatRetry++
	t.beats.Set(i, now.Add(wait))
}
