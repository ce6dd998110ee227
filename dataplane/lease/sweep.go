package lease

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Sweep is a step's share of the ends that time brings: expiry with its two looks (L8), lapsed expectations, what is left
// of pressure and of engines that are gone.
//
// Bounds: SweepMax ends of each cause, SweepMax x 16 slots whose old time came up, 32,768 slots that an engine which is gone may
// have named; all counted, the rest waits. A slot that is renewed comes up about once per extension: a million leases of 30 s
// bring some 50,000 of these a second.
//
// gap is the time since the step before. arrived counts the notifications known to have arrived, waiting ones included;
// applied those applied so far. Call it after the step has applied its share. It tells how many leases ended.
func (t *Table) Sweep(now clock.Instant, gap time.Duration, arrived, applied uint64) (freed int) {
	before := t.ended
	if !t.gone.empty() {
		t.scanGone(now)
	}
	if t.wanted > 0 {
		t.takeBack(now)
	}
	past := unitsPast(now)
	if t.stalls.most != 0 && t.stalls.pace.Kept(now) {
		t.sayStall(now)
	}
	if gap > t.cfg.StallGap { // also if nothing was held before: a lease may have been granted meanwhile
		t.stalled, t.looks.calm = past, past+t.interval
	}
	ends := t.cfg.SweepMax
	t.secondLooks(now, past, arrived, applied, &ends)
	t.firstLooks(now, past, &ends)
	if ends == 0 {
		t.Counters.SweepCut++ // the rest waits for the next step: held longer is safe
	}
	if t.lingering > 0 {
		t.looks.note(past, t.settle, applied >= arrived)
	}
	return t.ended - before
}

// stalls space the lines about gaps on a machine that is busy for long; each has the longest since the one before.
type stalls struct {
	pace log.Pace
	most time.Duration // not said yet; 0: all are
}

// SayGap counts and tells a gap between two steps that is longer than is allowed. backlog is how many notifications are known of and not
// applied. Of a context that had nothing to do it is not called: an engine that is driven inline rests for as long as no request comes.
func (t *Table) SayGap(now clock.Instant, gap time.Duration, backlog uint64) {
	if gap <= t.cfg.StallGap {
		return
	}
	t.Times.StallGap.Observe(gap)
	if t.stalls.most = max(t.stalls.most, gap); t.stalls.pace.Due(now) {
		t.sayStall(now)
	}
	t.traceStall(gap, backlog)
}

func (t *Table) sayStall(now clock.Instant) {
	if t.cfg.Log.Put(log.Stall, now, log.Entry{A: uint64(t.stalls.most), B: uint64(t.cfg.StallGap)}) { // else the next line has it
		t.stalls.most = 0
	}
}

// secondLooks ends what was looked at once and not renewed since, when all that had arrived by now is applied.
func (t *Table) secondLooks(now clock.Instant, past, arrived, applied uint64, ends *int) {
	for *ends > 0 {
		s, ok := t.timed.first(t.ring(ringNoted))
		if !ok || t.hot[s].end() > applied&unitsMax {
			break
		}
		*ends--
		t.endOrSave(s, now, past, ends)
	}
	for r, wait := range [2]uint64{ringDue: t.settle, ringStalled: t.interval} {
		for *ends > 0 {
			s, ok := t.timed.first(t.ring(r))
			if !ok || past < t.hot[s].end()+wait {
				break
			}
			*ends--
			if applied >= arrived {
				t.endOrSave(s, now, past, ends)
				continue
			}
			k := &t.hot[s]
			t.timed.drop(s)
			k.a = k.a&^isDue | isNoted
			k.setEnd(arrived & unitsMax)
			t.timed.push(t.ring(ringNoted), s)
		}
	}
}

// endOrSave ends a lease whose second look is over, or puts it back if a heartbeat came between. If what that heartbeat gave has
// passed meanwhile, too, as after a stall, the lease has two looks at its new deadline, and the linger of a stock reader, as any other.
func (t *Table) endOrSave(s uint32, now clock.Instant, past uint64, ends *int) {
	k := &t.hot[s]
	at, _ := t.deadline(s, k)
	if at == 0 {
		t.end(s, k, record.FreedExpired, now)
		return
	}
	t.Counters.DueSaved++
	if at > past {
		t.hold(s, k, at)
		return
	}
	t.timed.drop(s)
	k.a &^= isDue | isNoted
	k.setEnd(at)
	t.look(s, now, past, ends)
}

// hold puts a lease back into the wheel.
func (t *Table) hold(s uint32, k *hot, at uint64) {
	t.timed.drop(s)
	k.a &^= isDue | isNoted
	t.unlinger(s, k)
	k.setEnd(at)
	t.timed.push(t.wheel.bucket(at), s)
}

// unlinger says of a lease that lingered that it was renewed.
func (t *Table) unlinger(s uint32, k *hot) {
	if !k.is(isLingering) {
		return
	}
	t.Counters.LingerHeld++
	t.unlist(s, k)
	if !k.is(isUnchecked) {
		k.a |= isRevocable
		t.worth.push(ringRevocable, s)
	}
}

// deadline gives the end of a lease, from the grant and the heartbeats of both kinds, and whether a stock reader renewed last. Of a
// lease that was looked at only what renewed it since counts: 0, nothing has.
func (t *Table) deadline(s uint32, k *hot) (at uint64, stockLast bool) {
	at = k.beat()
	if !k.is(isDue | isNoted) { // past, and its place taken by another number
		at = max(at, k.end())
	}
	if !k.is(noIndex) {
		if i := t.index.find(t.tag(t.long.id(&t.mem.Slots[s]))); i >= 0 {
			beat := t.index.entries[i].word >> lowBits
			return max(at, beat), beat != 0 && beat >= k.beat()
		}
	}
	return at, false
}

// firstLooks turns the wheel to now.
func (t *Table) firstLooks(now clock.Instant, past uint64, ends *int) {
	tick := past / t.wheel.tick
	left := t.cfg.SweepMax * examineFactor
	for {
		at, ok := t.wheel.next(tick)
		if !ok {
			t.wheel.done = max(t.wheel.done, tick)
			return
		}
		t.wheel.done = at // only forward: next starts there
		b := int(at) & (t.wheel.buckets - 1)
		for {
			s, any := t.timed.first(b)
			if !any {
				break
			}
			if left--; left < 0 {
				t.Counters.ExamineCut++
				return
			}
			t.timed.drop(s)
			t.look(s, now, past, ends)
		}
		t.wheel.empty(b)
	}
}

// look is the first look at a slot whose time has come up, if no heartbeat has moved it.
func (t *Table) look(s uint32, now clock.Instant, past uint64, ends *int) {
	k := &t.hot[s]
	if k.phase() == phaseExpected {
		if k.end() > past {
			t.timed.push(t.wheel.bucket(k.end()), s)
			return
		}
		if *ends == 0 { // in the next tick
			t.timed.push(t.wheel.bucket(past+t.wheel.tick), s)
			return
		}
		*ends--
		t.lapse(s, k, now)
		return
	}
	at, stockLast := t.deadline(s, k)
	if at > past {
		t.hold(s, k, at)
		return
	}
	if stockLast && at+t.linger > past { // L9
		if !k.is(isLingering) {
			t.unlist(s, k)
			k.a |= isLingering
			t.lingering++
			t.worth.push(ringLingering, s)
			t.Counters.Lingered++
		}
		k.setEnd(at)
		t.timed.push(t.wheel.bucket(at+t.linger), s)
		return
	}
	if !stockLast { // one of ours renewed it while it lingered: pressure takes the linger off the first look (passed)
		t.unlinger(s, k)
	}
	t.Counters.Due++
	t.forgetBeats(s, k)
	k.a |= isDue
	k.setEnd(units(now))
	if stockLast {
		at += t.linger
	}
	if at <= t.stalled { // also if the bound has put this look off past the step that the stall ended in
		t.Counters.DueStalled++
		t.timed.push(t.ring(ringStalled), s)
		return
	}
	t.timed.push(t.ring(ringDue), s)
}

// forgetBeats takes away deadlines that have passed, so that a later one is known to be of a heartbeat since.
func (t *Table) forgetBeats(s uint32, k *hot) {
	k.setBeat(0)
	if k.is(noIndex) {
		return
	}
	if i := t.index.find(t.tag(t.long.id(&t.mem.Slots[s]))); i >= 0 {
		if word := &t.index.entries[i].word; *word>>lowBits != 0 {
			k.a |= namedStock // which the deadline told so far
			*word &= lowMask
		}
	}
}

// lapse ends an expectation whose grant did not come. A grant that the host has said meanwhile wins.
func (t *Table) lapse(s uint32, k *hot, now clock.Instant) {
	slot := &t.mem.Slots[s]
	state := atomic.LoadUint64(&slot.State)
	if state&record.Mask != record.Expected ||
		!atomic.CompareAndSwapUint64(&slot.State, state, record.State(stateUse(state), record.Lapsed)) {
		k.setEnd(min(units(now.Add(t.cfg.Interval))+1, unitsMax)) // its record is on the way
		t.timed.drop(s)
		t.timed.push(t.wheel.bucket(k.end()), s)
		return
	}
	record.Raise(&t.mem.Rows[s].Fence, t.base+uint64(stateUse(state))+1)
	publishBarrier()
	t.timed.drop(s)
	t.say(log.ExpectLapsed, s, now, uint64(t.cfg.ExpectMax), 0)
	t.leave(s, k, false)
	t.expected--
	t.Counters.Lapsed++
	k.setPhase(phaseEnded)
	k.a |= hasLapsed
	t.queue(s)
}

// NextDue gives the earliest time at which Sweep may have something to do, or clock.Never. It may be early, never late.
// Ends that wait to be told are not in it: see Ending.
func (t *Table) NextDue(now clock.Instant) clock.Instant {
	if !t.gone.empty() || t.wanted > 0 && t.ripens == 0 {
		return now
	}
	if _, ok := t.timed.first(t.ring(ringNoted)); ok {
		return now
	}
	due := uint64(1<<63 - 1)
	if t.wanted > 0 {
		due = t.ripens
	}
	if at, ok := t.wheel.next(unitsMax); ok {
		due = min(due, at*t.wheel.tick)
	}
	for r, wait := range [2]uint64{ringDue: t.settle, ringStalled: t.interval} {
		if s, ok := t.timed.first(t.ring(r)); ok {
			due = min(due, t.hot[s].end()+wait)
		}
	}
	if due >= uint64(clock.Never)>>unitShift {
		return clock.Never
	}
	return max(clock.Instant(due<<unitShift), now)
}
