package lease

import (
	"bytes"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// batchMax is how many ids RenewIDs overlaps.
const batchMax = 64

// RenewIDs applies the ids of one stock heartbeat of an agent: each deadline = max(deadline, now + extension) (L1). out, if not nil,
// takes an outcome per id; named is how many were Applied or Kept. Ids are looked up side by side, so that their cache misses overlap:
// among a million leases that is several times cheaper per id than one after the other.
func (t *Table) RenewIDs(ids [][]byte, agent []byte, now clock.Instant, out []Outcome) (named int) {
	if !t.cfg.StockPeers {
		t.Counters.StockIgnored += uint64(len(ids))
		for i := range out {
			out[i] = Ignored
		}
		return 0
	}
	var tags [batchMax]uint64
	var at [batchMax]int32
	p, run := t.stockParty(agent), newSlackRun(now)
	du, us := units(now.Add(t.cfg.Extension)), t.deadlineUs(now)
	for len(ids) > 0 {
		n := min(len(ids), batchMax)
		t.lookUp(ids[:n], tags[:n], at[:n])
		for i, x := range at[:n] {
			var o Outcome
			if x < 0 {
				o = t.missing(tags[i], &t.Counters.LateRenew, &t.Counters.UnknownRenew)
			} else if o = t.renewAt(int(x), &p, now, du, us, &run); o == Applied || o == Kept {
				named++
			}
			if i < len(out) {
				out[i] = o
			}
		}
		ids = ids[n:]
		out = out[min(n, len(out)):]
	}
	t.heard(&p, &run, now)
	return named
}

// lookUp writes tags and index entries of ids, -1 for those that are not there. Short loops that wait for nothing: the processor sees many of their
// misses at once. They are a function of their own since beside the rest of RenewIDs the compiler finds them no registers.
func (t *Table) lookUp(ids [][]byte, tags []uint64, at []int32) {
	tags, at = tags[:len(ids)], at[:len(ids)]
	for i, id := range ids {
		tags[i] = t.tag(id)
	}
	var touched uint64
	for i, tag := range tags {
		home := t.index.home(tag)
		touched ^= t.index.entries[home].tag
		at[i] = int32(home)
	}
	for i, home := range at {
		at[i] = int32(t.index.findFrom(int(home), tags[i]))
	}
	for _, p := range at {
		touched ^= t.mem.Rows[t.index.entries[max(p, 0)].word&slotMask].GenBeats
	}
	t.touched = touched
}

// TryID is RenewIDs for one text that may be an id: nothing is counted if it is none. It is for runs of elements that a
// reader may have split at a comma inside an id.
func (t *Table) TryID(id, agent []byte, now clock.Instant) Outcome {
	if !t.cfg.StockPeers {
		return Ignored
	}
	i := t.index.find(t.tag(id))
	if i < 0 {
		return Unknown
	}
	p, run := t.stockParty(agent), newSlackRun(now)
	o := t.renewAt(i, &p, now, units(now.Add(t.cfg.Extension)), t.deadlineUs(now), &run)
	t.heard(&p, &run, now)
	return o
}

// renewAt touches the index entry and the row, nothing else, unless the lease is cold.
func (t *Table) renewAt(i int, p *party, now clock.Instant, du, us uint64, run *slackRun) Outcome {
	e := &t.index.entries[i]
	w := e.word
	if w&coldBit != 0 {
		return t.renewCold(e, p, now, du, us, run)
	}
	if at := w >> lowBits; at == run.at { // of its own heartbeats: the grant's end lies elsewhere
		run.n++
	} else {
		if at == 0 { // only a completion has named it so far, or it was looked at
			at = t.hot[w&slotMask].until()
		}
		t.slack(run, at)
	}
	if du > w>>lowBits {
		e.word = du<<lowBits | w&lowMask
	}
	t.Counters.Renewed++
	t.beatRowUs(uint32(w&slotMask), us)
	return Applied
}

func (t *Table) renewCold(e *entry, p *party, now clock.Instant, du, us uint64, run *slackRun) Outcome {
	s := uint32(e.word & slotMask)
	k := &t.hot[s]
	run.named = true
	if k.phase() == phaseExpected {
		k.a |= namedStock
		t.attributeStock(s, k, p, now)
		e.word = max(du, e.word>>lowBits)<<lowBits | e.word&lowMask
		t.Counters.Kept++
		return Kept
	}
	t.nameStock(s, k)
	t.attributeStock(s, k, p, now)
	if k.is(isFixed) {
		t.Counters.FixedRenew++
		t.touch(s)
		return Fixed
	}
	t.slack(run, max(k.until(), e.word>>lowBits))
	e.word = max(du, e.word>>lowBits)<<lowBits | uint64(s) // no longer cold
	t.Counters.Renewed++
	t.beatRowUs(s, us)
	return Applied
}

// nameStock notes that a stock message has named a held lease: unchecked for good (L12).
func (t *Table) nameStock(s uint32, k *hot) {
	k.a |= namedStock | isUnchecked
	atomic.OrUint32(&t.mem.Slots[s].Flags, record.Unchecked)
	if k.is(isRevocable) {
		t.worth.drop(s)
		k.a &^= isRevocable
	}
}

// missing names an id that the index does not hold.
func (t *Table) missing(tag uint64, late, unknown *uint64) Outcome {
	if t.graves.has(tag) {
		*late++
		return Late
	}
	*unknown++
	return Unknown
}

// CompleteID applies a stock completion "id:n" from an agent: one of n readers has read, or never will.
// Once a native message has named the lease it ends nothing (L12).
func (t *Table) CompleteID(id []byte, agent []byte, n uint32, now clock.Instant) Outcome {
	if !t.cfg.StockPeers {
		t.Counters.StockIgnored++
		return Ignored
	}
	if n == 0 {
		t.Counters.Malformed++
		return Malformed
	}
	tag := t.tag(id)
	i := t.index.find(tag)
	if i < 0 {
		if by := t.graves.completer(tag); by != 0 && by == t.stockParty(agent).who&completerMask {
			t.Counters.LateDoneRepeated++
			return Late
		}
		return t.missing(tag, &t.Counters.LateDone, &t.Counters.UnknownDone)
	}
	s := uint32(t.index.entries[i].word & slotMask)
	if !bytes.Equal(id, t.long.id(&t.mem.Slots[s])) { // a hash may extend, only the id itself may end
		t.Counters.UnknownDone++
		return Unknown
	}
	k := &t.hot[s]
	o := Applied
	if k.phase() == phaseExpected {
		k.a |= namedStock
		t.Counters.Kept++
		o = Kept
	} else {
		t.nameStock(s, k)
		if !k.is(isFixed) {
			t.index.entries[i].word &^= coldBit
		}
	}
	p := t.stockParty(agent)
	t.attributeStock(s, k, &p, now)
	if k.is(namedNative) {
		t.Counters.StockEndRefused++
		return Refused
	}
	only := k.set() == 0
	o = t.report(s, k, reader{who: p.who, n: n, stock: true}, o, now)
	if o == Ended && only { // another reader may have read after this end: its completion counts as late, and where there were several each one's does
		t.graves.complete(tag, p.who)
	}
	return o
}

// attributeStock counts a slot that nobody has named before for a stock agent.
func (t *Table) attributeStock(s uint32, k *hot, p *party, now clock.Instant) {
	if k.account() == NobodysAccount {
		t.attribute(s, k, p, now)
	}
}
