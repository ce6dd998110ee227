package dataplane

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Put tells the host an event of this rank: the tracker's. It reports false if there is no room now.
func (l *Link) Put(ev *record.Event) bool {
	if !l.hostLost && !l.send(ev) {
		return false
	}
	l.note(ev)
	return true
}

// send writes an event; it reports false if there is no room.
func (l *Link) send(ev *record.Event) bool {
	rec := l.carrier.Reserve(record.TagEvent, record.EventLen)
	if rec == nil {
		l.Counters.ToldHeld++
		return false
	}
	ev.Rank = l.cfg.Rank
	record.PutEvent(rec, ev)
	l.Counters.Told++
	return true
}

// note keeps what was told, so that it can be told again.
func (l *Link) note(ev *record.Event) {
	i := record.Handle(ev.Handle).Slot()
	if ev.Kind == record.EvEngineUp || ev.Kind == record.EvEngineDown {
		if int(i) < len(l.engines) && l.engines[i].handle == ev.Handle {
			l.engines[i].kind, l.engines[i].value0 = ev.Kind, ev.Value0
		}
		return
	}
	if int(i) >= len(l.tracks) || l.tracks[i].use != record.Handle(ev.Handle).Use() {
		return
	}
	switch e := &l.tracks[i]; ev.Kind {
	case record.EvLeaseGone:
		e.is |= tellGone
	case record.EvReadDone, record.EvReadFailed:
		e.is |= tellOutcome
		e.status, e.flags, e.value0, e.value1 = uint8(ev.Status), ev.Flags, ev.Value0, ev.Value1
	case record.EvBlocksBack:
		e.is |= tellBack
	}
}

// end tells the host the end of a lease. Of an expectation that this rank has dropped the host wants to hear nothing.
func (l *Link) end(end *lease.End, ev *record.Event) bool {
	if end.Lapsed {
		return true
	}
	if !l.hostLost && !l.send(ev) {
		return false
	}
	k := &l.leases[end.Handle.Slot()]
	*k = leaseTold{use: end.Handle.Use(), user: end.User, blocks: end.Blocks, held: uint64(end.Held), reason: uint8(end.Reason), Links: k.Links}
	return true
}

// tell sends what is left to say in a step: tracks that retired, what the full state has asked for again, our map, our state.
func (l *Link) tell(now clock.Instant) {
	l.takeRetired()
	// Nobody takes slots here: the host does, when every rank has given them back.
	if atomic.LoadUint32(&l.mem.Control.LeaseFree) != record.None {
		record.TakeFree(&l.mem.Control.LeaseFree)
	}
	if !l.hostLost {
		l.tellAgain()
		l.tellReaders()
		l.tellTroubles(now)
		l.tellMap()
		l.tellState()
	}
	l.carrier.Publish()
}

// takeRetired learns which tracking slots the tracker has given back. A slot is tracked again only after the host was told
// so, hence each is in the list once, and the list is no longer than the table.
func (l *Link) takeRetired() {
	if atomic.LoadUint32(&l.mem.Control.TrackFree) == record.None {
		return
	}
	u := record.TakeFree(&l.mem.Control.TrackFree)
	for range l.tracks {
		if int(u) >= len(l.tracks) {
			return
		}
		if e := &l.tracks[u]; e.live {
			e.live = false
			e.is |= tellRetired
			e.due |= tellRetired
			list.Push(&l.news, l.tracks, u, (*trackTold).ofQueue)
		}
		u = atomic.LoadUint32(&l.mem.Tracks[u].Next)
	}
}

// tellAgain sends what waits in the queues, as far as there is room.
func (l *Link) tellAgain() {
	for l.again.Head != list.None {
		k := &l.leases[l.again.Head]
		l.ev = record.Event{
			Kind: record.EvFreed, Status: int32(k.reason), Handle: uint64(record.NewHandle(l.again.Head, k.use)), User: k.user,
			Value0: uint64(k.blocks), Value1: k.held,
		}
		if !l.send(&l.ev) {
			return
		}
		l.Counters.ToldAgain++
		list.Drop(&l.again, l.leases, l.again.Head, (*leaseTold).ofQueue)
	}
	for l.news.Head != list.None {
		if !l.tellTrack(l.news.Head) {
			return
		}
		list.Drop(&l.news, l.tracks, l.news.Head, (*trackTold).ofQueue)
	}
	for l.states.Head != list.None {
		k := &l.engines[l.states.Head]
		l.ev = record.Event{Kind: k.kind, Handle: k.handle, User: k.user, Value0: k.value0}
		if k.kind != 0 && !l.send(&l.ev) {
			return
		}
		l.Counters.ToldAgain++
		list.Drop(&l.states, l.engines, l.states.Head, (*engineTold).ofQueue)
	}
}

// tellTrack sends what is due of a track, in order.
func (l *Link) tellTrack(u uint32) bool {
	e := &l.tracks[u]
	h := record.NewHandle(u, e.use)
	for e.due != 0 {
		what := e.due & -e.due
		if what == tellRetired {
			rec := l.carrier.Reserve(record.TagRetired, 8)
			if rec == nil {
				l.Counters.ToldHeld++
				return false
			}
			record.PutHandle(rec, h)
			e.due &^= what
			continue
		}
		l.ev = record.Event{Handle: uint64(h), User: e.user}
		switch what {
		case tellGone:
			l.ev.Kind = record.EvLeaseGone
		case tellOutcome:
			l.ev.Kind, l.ev.Status, l.ev.Flags, l.ev.Value0, l.ev.Value1 = record.EvReadFailed, int32(e.status), e.flags, e.value0, e.value1
			if e.status == record.ReadOK {
				l.ev.Kind = record.EvReadDone
			}
		case tellBack:
			l.ev.Kind = record.EvBlocksBack
		}
		if !l.send(&l.ev) {
			return false
		}
		l.Counters.ToldAgain++
		e.due &^= what
	}
	return true
}

// stateSteps is after how many steps changed counts alone are told.
const stateSteps = 64

// tellState tells the host how this rank stands, when something that it acts on has changed; counts now and then.
func (l *Link) tellState() {
	s := &l.state
	s.Held, s.Tracked, s.Reads = uint32(l.p.Leases.Held()+l.p.Leases.Expected()), uint32(l.p.Tracker.Alive()), uint32(l.p.Reads.Open())
	s.Flags &^= record.RankRegistered | record.RankDrained
	if l.own.whole && len(l.own.data) > 0 { // the host has the map
		s.Flags |= record.RankRegistered
	}
	if l.draining && l.p.Tracker.DrainLeft() == 0 {
		s.Flags |= record.RankDrained
	}
	old := &l.saidState
	said := s.Flags != old.Flags || s.Era != old.Era || s.Incarnation != old.Incarnation || s.Registrations != old.Registrations
	steps := l.p.Counters.Steps
	counts := (s.Held != old.Held || s.Tracked != old.Tracked || s.Reads != old.Reads) && steps-l.stateAt >= stateSteps
	if !l.stateDue && !said && !counts {
		return
	}
	s.Steps = steps
	rec := l.carrier.Reserve(record.TagState, record.RankStateLen)
	if rec == nil {
		return
	}
	record.PutRankState(rec, *s)
	l.stateDue, l.stateAt, l.saidState = false, steps, *s
}

var _ interface {
	Put(*record.Event) bool
} = (*Link)(nil)
