package lease

import (
	"bytes"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

func stateUse(s uint64) uint32 { return uint32(s >> 32) }

// submitted finds the slot of a submission that opens a use (expect, grant). Not ok: o says what became of it.
//
// Within one process the host has set the state word before it wrote the record. On a rank that does not share memory with
// its host the record sets it, and may come again: the host's full state names what this rank has ended, too.
func (t *Table) submitted(h record.Handle, bit uint32) (s uint32, k *hot, o Outcome, ok bool) {
	s, use := h.Slot(), h.Use()
	if h == 0 || int(s) >= len(t.hot) || use == record.None {
		t.Counters.BadHandle++
		return 0, nil, Misfit, false
	}
	state := atomic.LoadUint64(&t.mem.Slots[s].State)
	at := stateUse(state)
	k = &t.hot[s]
	switch {
	case at > use:
		t.Counters.Again++
		return s, k, Late, false
	case at == use && (k.phase() == phaseHeld || k.phase() == phaseExpected && bit == record.Expected):
		t.Counters.Again++
		return s, k, Repeated, false
	case at == use && k.phase() == phaseEnded:
		t.Counters.Again++
		return s, k, Ended, false
	case k.phase() == phaseHeld, k.phase() == phaseEnded && !(at < use && k.is(hasLapsed)):
		t.Counters.BadHandle++ // L11: no use of a slot begins before the end of the one before was told
		return s, k, Misfit, false
	case at < use:
		switch k.phase() {
		case phaseExpected: // the word that cancelled it was lost
			t.Counters.Cancelled++
			t.drop(s, k)
		case phaseEnded: // the host has cancelled what lapsed here, and waits for no word about it
			t.Counters.Cancelled++
			t.timed.drop(s)
			t.ended--
			t.long.drop(&t.mem.Slots[s])
		}
		t.forget(k) // what was kept was for a use that never came here
		atomic.StoreUint64(&t.mem.Slots[s].State, record.State(use, bit))
	case state&record.Mask == record.Free, state&record.Mask == record.Expected && bit == record.Granted:
		atomic.StoreUint64(&t.mem.Slots[s].State, record.State(use, bit))
	}
	t.slotsUsed = max(t.slotsUsed, int(s)+1)
	return s, k, Applied, true
}

// drop takes an expectation, with what was kept for it, out of everything but its slot's state word.
func (t *Table) drop(s uint32, k *hot) {
	t.expected--
	t.timed.drop(s)
	t.leave(s, k, false)
	t.long.drop(&t.mem.Slots[s])
	t.forget(k)
}

// Expect notes that a request has started to run: messages about it that come before the grant are kept. Repeated, Late and
// Ended: this use is known already, or has ended here; Misfit: nothing changed.
func (t *Table) Expect(h record.Handle, id []byte, now clock.Instant) Outcome {
	s, k, o, ok := t.submitted(h, record.Expected)
	if !ok {
		return o
	}
	t.Counters.Expects++
	t.expected++
	end := uint64(unitsMax)
	if t.cfg.ExpectMax > 0 {
		end = units(now.Add(t.cfg.ExpectMax))
	}
	k.a = end<<lowBits | k.a&lowMask&^phaseMask | phaseExpected
	t.enter(s, k, id, now)
	t.timed.push(t.wheel.bucket(k.end()), s)
	return Applied
}

// enter stores the id of a slot and puts it into the index, or marks the slot as not indexed: then stock messages do not
// reach it and native ones do.
func (t *Table) enter(s uint32, k *hot, id []byte, now clock.Instant) {
	slot := &t.mem.Slots[s]
	k.a |= noIndex
	if !t.long.store(slot, id) {
		t.Counters.LongFull++
		t.cfg.Log.Put(log.LeaseIDsFull, now, log.Entry{Request: id, A: uint64(len(id))})
		return
	}
	tag := t.tag(id)
	if t.index.find(tag) >= 0 {
		return
	}
	if !t.index.insert(tag, coldBit|uint64(s)) {
		t.Counters.IndexFull++
		t.cfg.Log.Put(log.LeaseUnindexed, now, log.Entry{Request: id, A: uint64(len(id))})
		return
	}
	k.a &^= noIndex
}

// tag is never 0, which is an empty entry.
func (t *Table) tag(id []byte) uint64 { return max(maphash.Bytes(t.seed, id), 1) }

// Grant starts a lease. Every grant whose handle fits ends in exactly one End: a duplicate id, a closed board, a row that is
// already past this use and a grant said in an era before end it at once (Ended). Messages that were kept are applied before
// it returns.
//
// Time: TTLNs is the time left when the grant was said. It runs from now, so a grant that was on its way ends later, never
// earlier. 0 is the configured time.
//
// Said again: for a lease that is held nothing changes but that its deadline is not before the repeated one's (Repeated). Late:
// its end was told and the slot given back. Misfit: nothing changed.
func (t *Table) Grant(g *record.Grant, id []byte, now clock.Instant) Outcome {
	s, k, o, ok := t.submitted(g.Lease, record.Granted)
	if !ok {
		switch {
		case o == Repeated:
			t.again(s, k, now.Add(t.ttl(g)))
		case o == Ended && k.is(hasLapsed):
			t.lapsedBefore(s, k, g)
		}
		return o
	}
	t.Counters.Grants++
	slot, row := &t.mem.Slots[s], &t.mem.Rows[s]
	if k.phase() == phaseExpected {
		t.expected--
		t.timed.drop(s)
		if !bytes.Equal(id, t.long.id(slot)) {
			t.leave(s, k, false)
			t.long.drop(slot)
			k.a = k.a&^(namedStock|keptDone) | noIndex
			if !t.accounts.all[k.account()].Native {
				t.assign(s, k, NobodysAccount)
			}
		}
	} else {
		k.a |= noIndex
		slot.IDLen = 0
	}
	before := slot.Reason
	slot.User, slot.Blocks, slot.Reason = g.User, g.Blocks, 0
	k.key = Key(t.secret, s, g.Lease.Use())
	k.setPhase(phaseHeld)
	t.granted[s] = int64(now)
	if g.SaidNs != 0 && int64(g.SaidNs) > 0 && int64(g.SaidNs) < int64(now) {
		t.granted[s] = int64(g.SaidNs)
	}
	t.held++
	t.blocks += uint64(g.Blocks)
	t.begun(k, g.Blocks)

	fence := t.base + uint64(g.Lease.Use())
	if g.Key != 0 && g.Key != k.key { // its parameters name an era that is over
		t.Counters.OtherEra++
		t.end(s, k, record.FreedClosed, now)
		return Ended
	}
	if at := atomic.LoadUint64(&row.Fence); at == record.FenceClosed {
		// Poisoned: the host tells the end from the slot, for readers that do not check the fence one duration later (L12).
		if reason := t.closedReason(); reason != record.FreedPoisoned {
			t.end(s, k, reason, now)
		}
		return Ended
	} else if at > fence {
		t.Counters.EndedBefore++
		if before == 0 {
			before = record.FreedExpired
		}
		t.end(s, k, before, now)
		return Ended
	}
	if !t.claim(s, k, id, now) {
		t.Counters.Duplicate++
		t.cfg.Log.Put(log.DuplicateGrant, now, log.Entry{Request: id, A: uint64(slot.Blocks)})
		t.end(s, k, record.FreedDuplicate, now)
		return Ended
	}

	if g.Flags&record.GrantFixed != 0 {
		k.a |= isFixed
		k.setBeat(0)
	}
	told := now.Add(t.ttl(g))
	k.setEnd(min(units(told)+t.spread(), unitsMax))
	beats := t.name0(s, k, slot)
	put(&row.DeadlineUs, uint64(max(told, 0))/1000)
	put(&row.GenBeats, beats<<32|uint64(g.Lease.Use()))
	record.Raise(&row.Fence, fence)
	t.timed.push(t.wheel.bucket(k.end()), s)

	switch { // L6
	case k.is(keptReleased) && !k.is(isShared|isUnchecked):
		t.end(s, k, record.FreedReleased, now)
		return Ended
	case k.is(keptDone):
		t.end(s, k, record.FreedCompleted, now)
		return Ended
	}
	return Applied
}

// lapsedBefore makes the end of an expectation that waits to be told that of its lease. Only a rank has one: its host could not see
// that the expectation went with the memory.
func (t *Table) lapsedBefore(s uint32, k *hot, g *record.Grant) {
	slot := &t.mem.Slots[s]
	t.Counters.Grants++
	t.Counters.Freed[record.FreedClosed]++
	t.accounts.all[NobodysAccount].Ended[record.FreedClosed]++
	k.a &^= hasLapsed
	t.granted[s] = 0
	slot.User, slot.Blocks, slot.Reason = g.User, g.Blocks, record.FreedClosed
	atomic.StoreUint64(&slot.State, record.State(g.Lease.Use(), record.Ended))
}

// ttl is how long a grant stands from now on if nobody extends it.
func (t *Table) ttl(g *record.Grant) time.Duration {
	switch {
	case g.TTLNs != 0:
		return time.Duration(min(g.TTLNs, uint64(1)<<62))
	case g.Flags&record.GrantFixed != 0:
		return t.cfg.FixedTTL
	}
	return t.cfg.Duration
}

// again gives a held lease the deadline of its repeated grant if that is later.
func (t *Table) again(s uint32, k *hot, told clock.Instant) {
	if at := units(told); k.is(isDue | isNoted) { // the place of the grant's end holds another number
		t.Counters.DueSaved++
		t.hold(s, k, at)
	} else {
		k.setEnd(max(k.end(), at))
	}
	if us := uint64(max(told, 0)) / 1000; us > t.mem.Rows[s].DeadlineUs {
		put(&t.mem.Rows[s].DeadlineUs, us)
	}
}

// claim gives the slot the index entry of its id: a new one, its own from the expectation, or that of an expectation in
// another slot, with all that was kept there. It reports false if the id holds a lease.
func (t *Table) claim(s uint32, k *hot, id []byte, now clock.Instant) bool {
	if !k.is(noIndex) {
		return true
	}
	slot := &t.mem.Slots[s]
	i := t.index.find(t.tag(id))
	if i < 0 {
		if slot.IDLen != 0 {
			t.long.drop(slot)
		}
		t.enter(s, k, id, now)
		return true
	}
	o := uint32(t.index.entries[i].word & slotMask)
	other := &t.hot[o]
	if other.phase() != phaseExpected {
		return false
	}
	if slot.IDLen == 0 && !t.long.store(slot, id) {
		t.Counters.LongFull++
		t.cfg.Log.Put(log.LeaseIDsFull, now, log.Entry{Request: id, A: uint64(len(id))})
		return true
	}
	t.index.entries[i].word += uint64(s) - uint64(o)
	k.a = k.a&^noIndex | other.a&(namedStock|keptDone)
	other.a |= noIndex
	if a := other.account(); a != NobodysAccount && !t.accounts.all[a].Native { // who named the id; one of ours has named the slot
		t.assign(o, other, NobodysAccount)
		if k.account() == NobodysAccount {
			t.assign(s, k, a)
		}
	}
	if k.set() == 0 {
		k.setSet(other.set())
		other.setSet(0)
	}
	return true
}

// name0 settles, at the grant, who is known to hold the parameters (L12), and gives the heartbeats kept early.
func (t *Table) name0(s uint32, k *hot, slot *record.Slot) (beats uint64) {
	checked := !k.is(namedStock) && (t.cfg.AllPeersCheck || k.is(namedNative))
	if checked {
		atomic.AndUint32(&slot.Flags, ^uint32(record.Unchecked))
		k.a |= isRevocable
		t.worth.push(ringRevocable, s)
	} else {
		atomic.OrUint32(&slot.Flags, record.Unchecked)
		k.a |= isUnchecked
	}
	if k.beat() != 0 {
		beats = 1
	}
	if k.is(noIndex) {
		return beats
	}
	if i := t.index.find(t.tag(t.long.id(slot))); i >= 0 {
		e := &t.index.entries[i]
		if e.word>>lowBits != 0 {
			beats = 1
		}
		e.word &^= coldBit
		if k.is(isFixed) {
			e.word &= slotMask
		}
		if k.is(isFixed) || !k.is(namedStock) {
			e.word |= coldBit
		}
	}
	return beats
}

// spread is the grant's jitter in units: later only, so that grants of one step do not all end in one.
func (t *Table) spread() uint64 {
	t.jitter ^= t.jitter << 13
	t.jitter ^= t.jitter >> 7
	t.jitter ^= t.jitter << 17
	return (t.jitter >> 32) * t.spreadMax >> 32
}

// said finds the slot of a submission about a use that is open.
func (t *Table) said(h record.Handle) (uint32, *hot, bool) {
	s := h.Slot()
	if h == 0 || int(s) >= len(t.hot) {
		t.Counters.BadHandle++
		return 0, nil, false
	}
	use, k := stateUse(atomic.LoadUint64(&t.mem.Slots[s].State)), &t.hot[s]
	switch {
	case use < h.Use():
		t.Counters.BadHandle++
		return 0, nil, false
	case use > h.Use() || k.phase() == phaseEnded: // it has ended meanwhile
		t.Counters.Again++
		return 0, nil, false
	}
	return s, k, true
}

// Cancel says that the parameters never left: an expectation ends without a word, a lease as revoked, whoever named it.
func (t *Table) Cancel(h record.Handle, now clock.Instant) {
	s, k, ok := t.said(h)
	if !ok {
		return
	}
	switch k.phase() {
	case phaseExpected:
		t.Counters.Cancelled++
		t.drop(s, k)
		t.giveBack(s, k, h.Use())
	case phaseHeld:
		t.end(s, k, record.FreedRevoked, now)
	default:
		t.Counters.BadHandle++
	}
}

// Revoke takes a lease back: at once if every reader checks the fence, else when that turns out, else at its deadline (L12).
func (t *Table) Revoke(h record.Handle, now clock.Instant) {
	s, k, ok := t.said(h)
	if !ok {
		return
	}
	switch {
	case k.phase() == phaseExpected:
		t.Cancel(h, now)
	case k.phase() != phaseHeld:
		t.Counters.BadHandle++
	case k.is(isUnchecked):
		k.a |= revokeSaid
		t.Counters.RevokeWaits++
	default:
		t.end(s, k, record.FreedRevoked, now)
	}
}
