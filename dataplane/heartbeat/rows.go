package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Rows are the answer to heartbeats: read one-sided, they say whether a lease stands and whether heartbeats reach it, with
// no message and no work of its owner.

// probeToken marks tokens of probes; other tokens are serial << 32 | remote.
const probeToken = 1 << 63

// stepRows goes on with the row rounds that earlier steps have begun.
func (t *Tracker) stepRows(now clock.Instant) {
	t.rowsLeft = t.cfg.RowsStepMax
	t.rowLooks = 4 * t.cfg.RowsStepMax
	last := t.rowQueue.tail
	for t.rowQueue.head != none {
		i := t.popEngine(&t.rowQueue)
		if !t.postRows(i, now) {
			t.pushEngine(&t.rowQueue, i)
		}
		if i == last {
			return
		}
	}
}

// postRows posts row reads of an engine's round. It reports false if the round has to go on in a later step.
func (t *Tracker) postRows(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	for e.state == Connected {
		saved := e.rowEnd
		_, m, ok := t.pool.next(&e.rowEnd)
		if !ok {
			return true
		}
		if t.rowsLeft == 0 || t.rowLooks == 0 {
			e.rowEnd = saved
			t.counters.RowsCut++
			return false
		}
		t.rowLooks--
		r := &t.remotes.all[m]
		switch {
		case r.rowOpen: // the one before has not ended: the owner does not answer
			t.unmoved(m, r.sent, now)
			continue
		case r.slot >= e.facts.ranks[0].rows: // no such row: parameters of something else
			t.leaseGone(m)
			continue
		}
		token, f := uint64(r.serial)<<32|uint64(m), &e.facts.ranks[0]
		switch t.reads.ReadRow(token, e.peer, f.row(r.slot), f.device, f.mem, record.RowLen, now) {
		case read.OK:
			r.rowOpen = true
			r.rowSent = r.sent
			r.rowMark = e.sent
			e.readsSeen++
			t.rowsLeft--
			t.counters.Rows++
		case read.Full:
			t.counters.RowsCut++
			if now.Sub(e.rowAt) > 2*e.facts.times.interval { // it is the owner that keeps the places taken
				t.unmoved(m, r.sent, now)
				continue
			}
			e.rowEnd = saved
			return false
		case read.Refused:
			t.counters.RowsFailed++
			t.broken(i, now)
			return true
		default: // this peer does not answer: no more of them until it does
			t.counters.RowsFailed++
			return true
		}
	}
	return true
}

// row is the address of a slot's row on the peer's board.
func (f *rankFacts) row(slot uint32) uint64 {
	return f.board + record.BoardHeadLen + record.RowLen*uint64(slot)
}

// probe reads 8 bytes of a peer of which no row is read, only to learn that it has taken in what was sent before. It reports
// whether one is in flight.
func (t *Tracker) probe(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	if e.probing {
		return true
	}
	switch t.reads.ReadRow(probeToken|uint64(i), e.peer, e.facts.ranks[0].probe, e.facts.ranks[0].device, e.facts.ranks[0].mem, read.ProbeBytes, now) {
	case read.OK:
		e.probing = true
		e.probeSent = e.sent
		t.counters.Probes++
	case read.Refused:
		t.counters.RowsFailed++
		t.broken(i, now)
	default: // no room now: the next round asks again
	}
	return e.probing
}

// takeRows applies what the row reads have shown.
func (t *Tracker) takeRows(now clock.Instant) {
	for {
		res, ok := t.reads.NextRow()
		if !ok {
			return
		}
		i, m := uint32(res.Token), none
		if res.Token&probeToken == 0 {
			m = uint32(res.Token)
			r := &t.remotes.all[m]
			if r.serial != uint32(res.Token>>32) {
				continue // its tracking has ended
			}
			r.rowOpen = false
			i = r.engine
		}
		e := &t.engines[i]
		if e.peer != res.Peer || e.state != Connected {
			continue // of a connection that is no more
		}
		if m == none {
			e.probing = false
		}
		if !res.OK {
			t.counters.RowsFailed++
			t.broken(i, now)
			continue
		}
		if m == none {
			t.heard(i, e.probeSent)
			continue
		}
		e.rowAt = now
		t.heard(i, t.remotes.all[m].rowMark)
		if t.remotes.all[m].place == inNative {
			t.shown(m, &res, now)
		}
	}
}

// shown takes a row of a lease that is tracked.
func (t *Tracker) shown(m uint32, res *read.RowResult, now clock.Instant) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	if res.Row.Fence != e.facts.ranks[0].base+uint64(r.gen) {
		t.leaseGone(m)
		return
	}
	if uint32(res.Row.GenBeats) != r.gen {
		return // the word stands for this use already, the count still for the one before
	}
	count := uint32(res.Row.GenBeats >> 32)
	if r.counted && count == r.count {
		r.shown = res.Posted
		t.unmoved(m, r.rowSent, now)
		return
	}
	if r.counted { // whoever renewed it did so after the last look that did not show it yet: no clock of the owner is needed
		t.counters.Renewals++
		r.certain = max(r.certain, r.shown.Add(e.facts.times.extension-e.facts.times.drift))
	}
	r.count, r.counted, r.shown = count, true, res.Posted
	r.moved = r.rowSent
	r.atRisk = false
}

// unmoved reports a lease at risk, once an episode, when two heartbeats have left since its row last moved.
func (t *Tracker) unmoved(m, sent uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	if r.atRisk || sent-r.moved < 2 {
		return
	}
	r.atRisk = true
	left := uint64(max(t.certainEnd(r).Sub(now), 0))
	for u := r.firstUser; u != none; u = t.requests[u].nextUser {
		t.counters.AtRisk++
		t.requests[u].riskLeft = left
		t.event(u, pendRisk)
	}
}

// certainEnd is the time until which a lease stands for certain: by its last renewal or, until then, by its first term, which
// is the owner's, less the longest hand-over.
func (t *Tracker) certainEnd(r *remote) clock.Instant {
	return max(r.certain, r.arrival.Add(t.engines[r.engine].facts.times.duration-t.cfg.HandoverMax))
}
