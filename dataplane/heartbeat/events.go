package heartbeat

import "github.com/kvlease/kvlease/dataplane/record"

// Events takes events for the host. Put reports false if there is no room now: the event then stays in the slot of the
// request or engine that it speaks of, and is put again in the next step.
type Events interface {
	Put(ev *record.Event) bool
}

// event notes an event of a request. Its slot is the room, so nothing can be lost; an at-risk that has not left yet is
// replaced by the newer one.
func (t *Tracker) event(u uint32, what uint8) {
	q := &t.requests[u]
	q.pend |= what
	if q.queue {
		return
	}
	q.queue = true
	q.eventNext = none
	if t.eventTail == none {
		t.eventHead = u
	} else {
		t.requests[t.eventTail].eventNext = u
	}
	t.eventTail = u
	t.gauges.Events++
}

func (t *Tracker) queueEngineEvent(i uint32) {
	if t.pushEngine(&t.eventQueue, i) {
		t.gauges.Events++
	}
}

// putEvents hands out what waits, engines first, at most EventsStepMax.
func (t *Tracker) putEvents() {
	for range t.cfg.EventsStepMax { // the rest stays in its slots for the next step
		var ok bool
		switch {
		case t.eventQueue.head != none:
			ok = t.putEngine(t.eventQueue.head)
		case t.eventHead != none:
			ok = t.putRequest(t.eventHead)
		default:
			return
		}
		if !ok {
			t.counters.EventsRefused++
			return
		}
	}
}

func (t *Tracker) putEngine(i uint32) bool {
	e := &t.engines[i]
	if e.pendDown {
		t.ev = record.Event{
			Kind: record.EvEngineDown, Handle: uint64(record.NewHandle(i, e.use)), User: e.user, Value0: e.downCount,
		}
		if !t.events.Put(&t.ev) {
			return false
		}
		e.pendDown = false
	}
	if e.pendUp {
		t.ev = record.Event{Kind: record.EvEngineUp, Handle: uint64(record.NewHandle(i, e.use)), User: e.user}
		if !t.events.Put(&t.ev) {
			return false
		}
		e.pendUp = false
	}
	if e.pendDrains {
		t.ev = record.Event{Kind: record.EvEngineDrains, Handle: uint64(record.NewHandle(i, e.use)), User: e.user}
		if !t.events.Put(&t.ev) {
			return false
		}
		e.pendDrains = false
	}
	t.popEngine(&t.eventQueue)
	t.gauges.Events--
	return true
}

// putRequest hands out the next event of a request. The request leaves the list with its last one.
func (t *Tracker) putRequest(u uint32) bool {
	q := &t.requests[u]
	if q.pend != 0 {
		t.ev = record.Event{Handle: uint64(record.NewHandle(u, q.use)), User: q.user}
		what := q.pend & -q.pend
		switch what {
		case pendGone:
			t.ev.Kind = record.EvLeaseGone
		case pendRisk:
			t.ev.Kind, t.ev.Value0 = record.EvAtRisk, q.riskLeft
		case pendOutcome:
			t.ev.Kind, t.ev.Status, t.ev.Value0, t.ev.Value1 = record.EvReadFailed, int32(q.status), q.value0, q.value1
			if q.status == record.ReadOK {
				t.ev.Kind = record.EvReadDone
			}
			if q.heldSaid {
				t.ev.Flags = record.FlagBlocksHeld
			}
		case pendBack:
			t.ev.Kind = record.EvBlocksBack
		}
		if !t.events.Put(&t.ev) {
			return false
		}
		if q.pend &^= what; q.pend != 0 {
			return true
		}
	}
	t.eventHead = q.eventNext
	if t.eventHead == none {
		t.eventTail = none
	}
	q.queue = false
	t.gauges.Events--
	t.retire(u)
	return true
}
