package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Rows are the answer to heartbeats: read one-sided, they say whether a lease stands and whether heartbeats reach it, with
// no message and no work of its owner. Each rank has its own: what one of them says of a lease holds for all.

// A row read's token: the remote (or, of a probe, the engine) in the low 32 bits, the link in the next 6, then 25 bits of the
// remote's serial (or of the number of the probe); the highest one marks a probe.
const (
	probeToken  = 1 << 63
	linkShift   = 32
	linkMask    = 1<<6 - 1
	rowSerial   = 38
	probeSerial = 1<<25 - 1
)

// stepRows goes on with the row rounds that earlier steps have begun.
func (t *Tracker) stepRows(now clock.Instant) {
	if t.reach != ReachAll {
		return
	}
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

// beginRows starts the row round of an engine.
func (e *engine) beginRows() {
	e.rowEnd, e.rowFixed, e.rowLink = e.native.start(), false, 0
	for k := range e.links {
		e.links[k].rowsOff = false
	}
}

// postRows posts row reads of an engine's round. It reports false if the round has to go on in a later step.
func (t *Tracker) postRows(i uint32, now clock.Instant) bool {
	e := &t.engines[i]
	for e.state == Connected {
		saved := e.rowEnd
		_, m, ok := t.pool.next(&e.rowEnd)
		if !ok {
			if e.rowFixed {
				return true
			}
			e.rowEnd, e.rowFixed = e.fixed.start(), true
			continue
		}
		if t.rowLooks == 0 {
			e.rowEnd = saved
			t.counters.RowsCut++
			return false
		}
		t.rowLooks--
		if e.rowFixed {
			t.aimFixed(m) // the offset may have changed
		}
		if t.remotes.all[m].native && !t.postRowsOf(i, m, now) {
			e.rowEnd = saved
			return false
		}
	}
	return true
}

// postRowsOf posts the row reads of one lease, over the links from rowLink on. It reports false if that has to go on later.
func (t *Tracker) postRowsOf(i, m uint32, now clock.Instant) bool {
	e := &t.engines[i]
	r := &t.remotes.all[m]
	from := e.rowLink
	e.rowLink = 0
	row := &r.row
	for k := uint32(0); row != nil && int(k) < len(e.links); k, row = k+1, t.remotes.nextRow(row) {
		l := &e.links[k]
		switch {
		case k < from || l.rowsOff:
			continue
		case row.open: // the one before has not ended: the owner does not answer
			t.unmoved(m, row, r.sent, now)
			continue
		case r.slot >= l.rows: // no such row: parameters of something else
			t.leaseGone(m)
			return true
		case t.rowsLeft == 0:
			e.rowLink = k
			t.counters.RowsCut++
			return false
		}
		token := uint64(r.serial)<<rowSerial | uint64(k)<<linkShift | uint64(m)
		switch st := t.reads.ReadRow(token, l.peer, record.RowAddr(l.board, r.slot), l.device, l.mem, record.RowLen, now); st {
		case read.OK:
			row.open = true
			row.rowSent = r.sent
			row.mark = e.sent
			l.seen = true
			l.ask(now)
			l.rowsOff = l.downAt != 0 // one is enough for a sign of life: it may never end
			t.rowsLeft--
			t.counters.Rows++
		case read.Full, read.Unable:
			t.counters.RowsCut++
			if st == read.Unable {
				if t.failedHere(i, hereRows, now); e.state != Connected {
					return true
				}
			}
			if now.Sub(l.rowAt) > 2*e.facts.times.interval { // it is the owner that keeps the places taken
				t.unmoved(m, row, r.sent, now)
				continue
			}
			e.rowLink = k
			return false
		case read.Refused:
			t.counters.RowsFailed++
			t.broken(i, k, now)
			return true
		default: // this rank does not answer: no more of them until it does
			t.counters.RowsFailed++
			l.rowsOff = true
		}
	}
	return true
}

// probe reads 8 bytes of a rank of which no row is read, only to learn that it has taken in what was sent before. It reports
// whether one is in flight.
func (t *Tracker) probe(i, k uint32, now clock.Instant) bool {
	e := &t.engines[i]
	l := &e.links[k]
	if l.probing || l.broken || t.reach != ReachAll {
		return l.probing
	}
	if !l.probeDue {
		l.probeDue, l.probeAt = true, now
	}
	token := probeToken | uint64(l.probes+1)<<rowSerial&^probeToken | uint64(k)<<linkShift | uint64(i)
	switch t.reads.ReadRow(token, l.peer, l.probe, l.device, l.mem, read.ProbeBytes, now) {
	case read.OK:
		l.probing = true
		l.probes++
		l.ask(now)
		l.probeSent = e.sent
		t.counters.Probes++
	case read.Refused:
		t.counters.RowsFailed++
		t.broken(i, k, now)
	case read.Unable:
		t.failedHere(i, hereRows, now)
	default: // no room now: the next round asks again
	}
	return l.probing
}

// shownHeader takes the first word of a board: version and flags. One rank that drains says it for its engine.
func (t *Tracker) shownHeader(i uint32, word uint64) {
	e := &t.engines[i]
	if uint32(word) != record.BoardVersion || word>>32&record.BoardDraining == 0 || e.drains {
		return
	}
	e.drains, e.pendDrains = true, true
	t.counters.Draining++
	t.sayEngine(log.EngineDrains, e, 0, 0)
	t.queueEngineEvent(i)
}

// takeRows applies what the row reads have shown.
func (t *Tracker) takeRows(now clock.Instant) {
	for {
		res, ok := t.reads.NextRow()
		if !ok {
			return
		}
		i, k, m := uint32(res.Token), uint32(res.Token>>linkShift)&linkMask, none
		var row *rowState
		if res.Token&probeToken == 0 {
			m = uint32(res.Token)
			r := &t.remotes.all[m]
			if r.serial != uint32(res.Token>>rowSerial) {
				t.engines[r.engine].answered(k, &res) // its tracking has ended, and its place mostly names its engine still
				continue
			}
			if row = t.remotes.rowOf(r, k); row == nil {
				continue
			}
			row.open = false
			i = r.engine
		}
		e := &t.engines[i]
		if e.state != Connected || int(k) >= len(e.links) || e.links[k].peer != res.Peer {
			continue // of a connection that is no more
		}
		l := &e.links[k]
		if m == none && res.OK && uint32(res.Token&^probeToken>>rowSerial) != l.probes&probeSerial {
			continue // from before another link broke: it knows nothing of what was sent since
		}
		if m == none {
			l.probing = false
		}
		if !res.OK {
			t.counters.RowsFailed++
			if res.Here {
				t.failedHere(i, hereRows, now)
			} else {
				t.broken(i, k, now)
			}
			continue
		}
		e.worked(hereRows)
		if m == none {
			if e.silent(l, t.stepped) {
				e.breaks++
			}
			l.probeDue = false
			t.heard(i, k, l.probeSent)
			if e.facts.native {
				t.shownHeader(i, res.Row.Fence)
			}
			continue
		}
		l.rowAt = now
		t.heard(i, k, row.mark)
		if p := t.remotes.all[m].place; p == inNative || p == inFixed {
			t.shown(m, l, row, &res, now)
		}
	}
}

// answered takes that a link has answered, though nobody waits for what it says.
func (e *engine) answered(k uint32, res *read.RowResult) {
	if res.OK && e.state == Connected && int(k) < len(e.links) && e.links[k].peer == res.Peer {
		e.links[k].askedAt = 0
	}
}

// shown takes a row of a lease that is tracked.
func (t *Tracker) shown(m uint32, l *link, row *rowState, res *read.RowResult, now clock.Instant) {
	r := &t.remotes.all[m]
	e := &t.engines[r.engine]
	if res.Row.Fence != record.FenceWord(l.base, r.gen) {
		t.leaseGone(m)
		return
	}
	if uint32(res.Row.GenBeats) != r.gen {
		return // the word stands for this use already, the count still for the one before
	}
	count := uint32(res.Row.GenBeats >> 32)
	if row.counted && count == row.count {
		row.shown = res.Posted
		t.unmoved(m, row, row.rowSent, now)
		return
	}
	if row.counted { // whoever renewed it did so after the last look that did not show it yet: no clock of the owner is needed
		t.counters.Renewals++
		row.certain = max(row.certain, row.shown.Add(e.facts.times.extension-e.facts.times.drift))
	}
	row.count, row.counted, row.shown = count, true, res.Posted
	row.moved = row.rowSent
	if row.risk {
		row.risk = false
		r.risks--
	}
}

// unmoved reports a lease at risk, once an episode, when two heartbeats have left since its row at one of the ranks last
// moved.
func (t *Tracker) unmoved(m uint32, row *rowState, sent uint32, now clock.Instant) {
	r := &t.remotes.all[m]
	if row.risk || sent-row.moved < 2 {
		return
	}
	row.risk = true
	if r.risks++; r.risks > 1 {
		return
	}
	left := uint64(max(t.certainEnd(r).Sub(now), 0))
	t.sayRemote(log.LeaseAtRisk, r, left, 0)
	for u := r.firstUser; u != none; u = t.requests[u].nextUser {
		t.counters.AtRisk++
		t.requests[u].riskLeft = left
		t.event(u, pendRisk)
	}
}

// certainEnd is the time until which a lease stands at all ranks for certain: by its last renewal or, until then, by its first
// term, which is the owner's, less the longest hand-over.
func (t *Tracker) certainEnd(r *remote) clock.Instant {
	end := clock.Never
	for row := &r.row; row != nil; row = t.remotes.nextRow(row) {
		end = min(end, row.certain)
	}
	return max(end, r.arrival.Add(t.engines[r.engine].facts.times.duration-t.cfg.HandoverMax))
}
