package lease

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Entry names a lease in a native message. The key alone proves slot and generation.
type Entry struct {
	Slot, Generation uint32
	Key              uint64
}

// Reader is a rank of one boot of one D engine.
type Reader struct {
	Engine, Epoch uint64
	Rank          uint32
}

// who folds an engine and its epoch into one keyed word, never 0.
func (t *Table) who(r Reader) uint64 {
	hi, lo := bits.Mul64(r.Engine^t.secret[0]^0x9e3779b97f4a7c15, r.Epoch^t.secret[1]^0xd1b54a32d192ed03)
	return max(hi^lo, 1)
}

// Renew applies one entry of a native heartbeat.
func (t *Table) Renew(e Entry, r Reader, now clock.Instant) Outcome {
	es, out := [1]Entry{e}, [1]Outcome{}
	t.RenewEntries(es[:], r, now, out[:])
	return out[0]
}

// RenewEntries applies the entries of one native heartbeat: each deadline = max(deadline, now + extension) (L1). out, if not nil, takes
// an outcome per entry. Like RenewIDs it overlaps the cache misses of the entries.
func (t *Table) RenewEntries(es []Entry, r Reader, now clock.Instant, out []Outcome) {
	p, run := t.nativeParty(r), newSlackRun(now)
	du, us := units(now.Add(t.cfg.Extension)), t.deadlineUs(now)
	for len(es) > 0 {
		n := min(len(es), batchMax)
		var touched uint64
		for _, e := range es[:n] {
			if s := uint64(e.Slot); s < uint64(len(t.hot)) && s < uint64(len(t.mem.Rows)) {
				touched ^= t.hot[s].key ^ t.mem.Rows[s].GenBeats // starts the misses, waits for nothing
			}
		}
		t.touched = touched
		for i, e := range es[:n] {
			o := Unknown
			if uint64(e.Slot) >= uint64(len(t.hot)) {
				t.Counters.UnknownRenew++
			} else if k := &t.hot[e.Slot]; k.warm(e.Key, p.who) && t.useOf(e.Slot) == e.Generation {
				if at := k.until(); at == run.at {
					run.n++
				} else {
					t.slack(&run, at)
				}
				k.setBeat(max(k.beat(), du))
				t.Counters.RenewedNative++
				t.beatRowUs(e.Slot, us)
				o = Applied
			} else {
				o = t.renewCool(e, k, &p, now, &run)
			}
			if i < len(out) {
				out[i] = o
			}
		}
		es = es[n:]
		out = out[min(n, len(out)):]
	}
	t.heard(&p, &run, now)
}

// warm says that a heartbeat has nothing to do but to extend.
func (h *hot) warm(key, who uint64) bool {
	return h.key == key && h.who == who && h.a&(phaseMask|namedNative|isFixed) == phaseHeld|namedNative
}

func (t *Table) renewCool(e Entry, k *hot, p *party, now clock.Instant, run *slackRun) Outcome {
	switch o := t.open(e, k); o {
	case Applied:
		run.named = true
		if t.name(e.Slot, k, p, now) {
			return Ended
		}
		if k.is(isFixed) {
			t.Counters.FixedRenew++
			t.touch(e.Slot)
			return Fixed
		}
		t.slack(run, k.until())
		k.setBeat(max(k.beat(), units(now.Add(t.cfg.Extension))))
		t.Counters.RenewedNative++
		t.beatRow(e.Slot, now)
		return Applied
	case Kept:
		run.named = true
		t.nameEarly(e.Slot, k, p, now)
		k.setBeat(max(k.beat(), units(now.Add(t.cfg.Extension))))
		return Kept
	default:
		return count(o, &t.Counters.LateRenew, &t.Counters.UnknownRenew)
	}
}

// Complete applies one entry of a native completion: reader r of n has read everything.
func (t *Table) Complete(e Entry, r Reader, n uint16, now clock.Instant) Outcome {
	if n == 0 {
		t.Counters.Malformed++
		return Malformed
	}
	if uint64(e.Slot) >= uint64(len(t.hot)) {
		t.Counters.UnknownDone++
		return Unknown
	}
	k := &t.hot[e.Slot]
	p := t.nativeParty(r)
	o := t.open(e, k)
	switch o {
	case Applied:
		if t.name(e.Slot, k, &p, now) {
			return Ended
		}
	case Kept:
		t.nameEarly(e.Slot, k, &p, now)
	default:
		return count(o, &t.Counters.LateDoneNative, &t.Counters.UnknownDone)
	}
	return t.report(e.Slot, k, reader{who: p.who, rank: r.Rank, n: uint32(n)}, o, now)
}

// report adds a reader's report and ends the lease, or marks its grant as done, when the set is complete.
func (t *Table) report(s uint32, k *hot, in reader, o Outcome, now clock.Instant) Outcome {
	if k.is(keptDone) { // complete before its grant: as good as ended
		t.Counters.Repeated++
		return Repeated
	}
	head, complete, added := t.readers.add(k.set(), in)
	k.setSet(head)
	switch {
	case complete && o == Kept:
		k.a |= keptDone
		return Kept
	case complete:
		t.end(s, k, record.FreedCompleted, now)
		return Ended
	case added == Full:
		t.Counters.ReadersFull++
		return Full
	case added == Repeated:
		t.Counters.Repeated++
		return Repeated
	}
	return o
}

// Release applies one entry of a native release: this reader never will read.
func (t *Table) Release(e Entry, r Reader, now clock.Instant) Outcome {
	if uint64(e.Slot) >= uint64(len(t.hot)) {
		t.Counters.UnknownRelease++
		return Unknown
	}
	k := &t.hot[e.Slot]
	p := t.nativeParty(r)
	switch o := t.open(e, k); o {
	case Applied:
		if t.name(e.Slot, k, &p, now) {
			return Ended
		}
		if k.is(isShared | isUnchecked) {
			t.Counters.ReleaseRefused++
			k.who = 0
			return Refused
		}
		t.end(e.Slot, k, record.FreedReleased, now)
		return Ended
	case Kept:
		t.nameEarly(e.Slot, k, &p, now)
		k.a |= keptReleased
		return Kept
	default:
		return count(o, &t.Counters.LateRelease, &t.Counters.UnknownRelease)
	}
}

// useOf is the use that a slot's row shows, from the cache line that an extension writes anyway. A key belongs to one use,
// so an entry with the right key and another generation comes from nobody that speaks the protocol.
func (t *Table) useOf(s uint32) uint32 { return uint32(t.mem.Rows[s].GenBeats) }

// open tells what an entry names: a held lease (Applied), the slot's use that is not granted yet (Kept), or why neither.
func (t *Table) open(e Entry, k *hot) Outcome {
	if k.phase() == phaseHeld && k.key == e.Key && t.useOf(e.Slot) == e.Generation {
		return Applied
	}
	if Key(t.secret, e.Slot, e.Generation) != e.Key {
		t.Counters.BadKey++
		return BadKey
	}
	use := stateUse(atomic.LoadUint64(&t.mem.Slots[e.Slot].State))
	switch {
	case e.Generation < use, e.Generation == use && k.phase() == phaseEnded:
		return Late
	case e.Generation == use && k.phase() != phaseHeld:
		t.Counters.Kept++
		return Kept
	}
	return Unknown
}

func count(o Outcome, late, unknown *uint64) Outcome {
	switch o {
	case Late:
		*late++
	case Unknown:
		*unknown++
	}
	return o
}

// nameEarly notes who named a use before its grant (L12).
func (t *Table) nameEarly(s uint32, k *hot, p *party, now clock.Instant) {
	if k.who != 0 && k.who != p.who {
		k.a |= isShared
	}
	k.who = p.who
	k.a |= namedNative
	t.attribute(s, k, p, now)
}

// name notes who named a held lease (L12). The first native message clears unchecked, unless a stock one was there
// before it; that lets a revoke through that waited for it, and then name reports that the lease ended.
func (t *Table) name(s uint32, k *hot, p *party, now clock.Instant) (ended bool) {
	first := !k.is(namedNative)
	t.nameEarly(s, k, p, now)
	if !first || !k.is(isUnchecked) || k.is(namedStock) {
		return false
	}
	k.a &^= isUnchecked
	atomic.AndUint32(&t.mem.Slots[s].Flags, ^uint32(record.Unchecked))
	if k.is(revokeSaid) {
		t.end(s, k, record.FreedRevoked, now)
		return true
	}
	if !k.is(isLingering) {
		k.a |= isRevocable
		t.worth.push(ringRevocable, s)
	}
	return false
}
