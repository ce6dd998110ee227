package lease

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// End is the end of a lease or of an expectation that lapsed. It waits in its slot until the plane has room to tell it.
type End struct {
	Handle record.Handle
	User   uint64
	Blocks uint32
	Reason uint16        // record.Freed*; 0 if lapsed
	Lapsed bool          // an expectation without a grant: record.EvExpectLapsed
	Held   time.Duration // since the grant
}

// end ends a lease once (L3). L10: the row first, then the barrier, then the state word that publishes the end.
func (t *Table) end(s uint32, k *hot, reason uint16, now clock.Instant) {
	slot := &t.mem.Slots[s]
	use := stateUse(atomic.LoadUint64(&slot.State))
	record.Raise(&t.mem.Rows[s].Fence, t.base+uint64(use)+1)
	publishBarrier()

	t.timed.drop(s)
	t.unlist(s, k)
	if reason == record.FreedExpired {
		t.sayExpired(s, k, now)
	}
	left := t.leave(s, k, true)
	if reason == record.FreedExpired {
		t.Counters.ReadersCut += uint64(left)
	}
	t.Counters.Freed[reason&7]++
	t.over(s, k, use, reason, now)
	t.held--
	t.blocks -= uint64(slot.Blocks)
	t.granted[s] = max(int64(now)-t.granted[s], 0)
	slot.Reason = reason
	t.traceEnd(s, use, reason)
	k.setPhase(phaseEnded)
	atomic.StoreUint64(&slot.State, record.State(use, record.Ended))
	t.queue(s)
}

func (t *Table) queue(s uint32) {
	t.timed.push(t.ring(ringEnded), s)
	t.ended++
	t.Counters.EndsOpen = max(t.Counters.EndsOpen, uint64(t.ended))
}

// ring gives a ring of t.timed that is no bucket.
func (t *Table) ring(r int) int { return t.wheel.buckets + r }

// leave takes a slot's id out of the index and gives its readers back; it tells how many there were.
func (t *Table) leave(s uint32, k *hot, freed bool) (readersLeft int) {
	if !k.is(noIndex) {
		tag := t.tag(t.long.id(&t.mem.Slots[s]))
		if i := t.index.find(tag); i >= 0 {
			t.index.remove(i)
		}
		if freed {
			t.graves.add(tag)
		}
	}
	readersLeft = t.readers.drop(k.set())
	k.setSet(0)
	return readersLeft
}

// unlist takes a slot off the lists for pressure.
func (t *Table) unlist(s uint32, k *hot) {
	if k.is(isLingering) {
		t.lingering--
	}
	if k.is(isLingering | isRevocable) {
		t.worth.drop(s)
		k.a &^= isLingering | isRevocable
	}
}

// forget clears what a slot has kept for its use.
func (t *Table) forget(k *hot) {
	t.readers.drop(k.set())
	if a := k.account(); a != NobodysAccount {
		t.accounts.all[a].early-- // no lease: those are counted until they end
	}
	*k = hot{}
}

// giveBack makes the slot free for its next use.
func (t *Table) giveBack(s uint32, k *hot, use uint32) {
	slot := &t.mem.Slots[s]
	record.Raise(&t.mem.Rows[s].Fence, t.base+uint64(use)+1) // for a cancelled expectation; ends have done it
	t.long.drop(slot)
	t.forget(k)
	atomic.StoreUint32(&slot.Flags, 0)
	atomic.StoreUint64(&slot.State, record.State(use+1, record.Free))
	if use+1 == record.None {
		t.Counters.Retired++ // a handle of one more use would be none
		k.setPhase(phaseEnded)
		return
	}
	record.PushFree(&t.mem.Control.LeaseFree, &slot.Next, s)
}

// NextEnd gives the oldest end not told yet.
func (t *Table) NextEnd() (End, bool) {
	s, ok := t.timed.first(t.ring(ringEnded))
	if !ok {
		return End{}, false
	}
	slot, k := &t.mem.Slots[s], &t.hot[s]
	e := End{Handle: record.NewHandle(s, stateUse(atomic.LoadUint64(&slot.State))), User: slot.User, Blocks: slot.Blocks,
		Reason: slot.Reason, Lapsed: k.is(hasLapsed), Held: time.Duration(t.granted[s])}
	if e.Lapsed {
		e.User, e.Blocks, e.Reason, e.Held = 0, 0, 0, 0
	}
	return e, true
}

// PopEnd says that the end of NextEnd has been told: its slot goes back to the host for the next use (L11: the host of
// several ranks takes it only when all have said so).
func (t *Table) PopEnd() {
	s, ok := t.timed.first(t.ring(ringEnded))
	if !ok {
		return
	}
	t.timed.drop(s)
	t.ended--
	t.giveBack(s, &t.hot[s], stateUse(atomic.LoadUint64(&t.mem.Slots[s].State)))
}

// FenceAll closes every row for ever. Leases stay until EndSome or their deadlines; grants end at once.
func (t *Table) FenceAll() {
	t.closed = true
	for {
		old := atomic.LoadUint32(&t.mem.Header.Flags)
		if atomic.CompareAndSwapUint32(&t.mem.Header.Flags, old, old|record.BoardClosed) {
			break
		}
	}
	for i := range t.mem.Rows {
		record.Raise(&t.mem.Rows[i].Fence, record.FenceClosed)
	}
	publishBarrier()
}

// EndAll is EndSome over every slot. What is left then are expectations whose grant is on its way to us: it ends when it
// arrives, since the board is closed.
func (t *Table) EndAll(reason uint16, now clock.Instant) {
	for range t.slotsUsed/scanMax + 1 {
		if t.EndSome(reason, now) == 0 {
			return
		}
	}
}

func (t *Table) closedReason() uint16 {
	if atomic.LoadUint32(&t.mem.Control.Poisoned) != 0 || !t.closed {
		return record.FreedPoisoned // kvl_fence_all, by the host or by a core that broke
	}
	return record.FreedClosed
}

// EndSome ends every lease with reason and drops every expectation, whoever named it: the memory is about to go. Call
// FenceAll first. It looks at a bounded number of slots and tells how many leases and expectations are left.
func (t *Table) EndSome(reason uint16, now clock.Instant) (left int) {
	for range scanMax {
		if t.held+t.expected == 0 {
			break
		}
		if t.endCursor >= t.slotsUsed {
			t.endCursor = 0
		}
		s := uint32(t.endCursor)
		t.endCursor++
		switch k := &t.hot[s]; k.phase() {
		case phaseHeld:
			t.end(s, k, reason, now)
		case phaseExpected:
			t.lapse(s, k, now)
		}
	}
	return t.held + t.expected
}
