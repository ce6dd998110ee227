package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ReadPart takes one part of a read. With the last one the read starts, waits for its engine, or ends at once.
func (t *Tracker) ReadPart(p *record.Read, runs []record.Run, now clock.Instant) {
	u := t.at(p.Track)
	if u == none || t.requests[u].state > reqCollecting {
		t.counters.StaleHandles++
		return
	}
	q := &t.requests[u]
	if q.state == reqTracked {
		q.state = reqCollecting
		t.gauges.Reading++
		t.counters.Reads++
	}
	switch {
	case p.Parts == 0 || p.Part != q.parts || p.Part >= p.Parts:
		t.counters.BadParts++
		t.finish(u, record.ReadFailed, now)
		return
	case !t.runs.add(q, runs):
		t.counters.RunsFull++
		t.finish(u, record.ReadFailed, now)
		return
	}
	if q.parts++; q.parts < p.Parts {
		return
	}
	q.state = reqWaiting
	q.deadline = now.Add(t.cfg.ReadTimeout)
	if t.start(u, now) {
		return
	}
	t.counters.ReadsWaited++
	t.gauges.Waiting++
	t.pushWaitOrder(u)
	t.wait(u)
}

// start gives a read to the machine, or ends it if it can never be. It reports false if the read has to wait.
func (t *Tracker) start(u uint32, now clock.Instant) bool {
	q := &t.requests[u]
	if q.runsN == 0 { // nothing to read, so nothing to prove: the owner is told, now or when it can be reached
		t.counters.ReadsEmpty++
		if q.remote != none {
			t.remotes.all[q.remote].read = true
		}
		return t.finish(u, record.ReadOK, now)
	}
	if q.remote == none {
		return t.finish(u, record.ReadLost, now)
	}
	r := &t.remotes.all[q.remote]
	e := &t.engines[r.engine]
	switch {
	case r.lost:
		t.why = said
		return t.finish(u, record.ReadLost, now)
	case r.gone && r.native:
		t.why = said
		return t.finish(u, record.ReadStale, now)
	case r.gone, q.other:
		t.why = said
		return t.finish(u, record.ReadUnproven, now)
	case e.state != Connected || e.facts.bare || r.place == inStrange || t.reach != ReachAll: // a job would have the layout of memory that is no more
		return false
	case !r.native && e.facts.native: // its owner may rely on the fence, and without slot and use there is none to read
		t.counters.Keyless++
		t.why = log.ReadKeyless
		return t.finish(u, record.ReadUnproven, now)
	case !r.native && (r.ends != 0 || !t.guarded(e, r, now)): // ends: the lease ends with the READ of another request
		t.counters.GuardRefused++
		t.why = log.ReadLate
		return t.finish(u, record.ReadUnproven, now)
	case r.native && !e.hasRow(r.slot):
		return t.finish(u, record.ReadStale, now)
	}
	return t.commit(u, r, e, now)
}

func (t *Tracker) commit(u uint32, r *remote, e *engine, now clock.Instant) bool {
	q := &t.requests[u]
	job, st := t.reads.Begin(uint64(record.NewHandle(u, q.use)), now)
	if st != read.OK {
		return false
	}
	attached, st := t.addSources(job, r, e)
	for c := q.runs; c != none && st == read.OK; c = t.runs.chunks[c].next {
		st = t.reads.AddRuns(job, t.runs.chunks[c].runs[:t.runs.chunks[c].n])
	}
	if st == read.OK {
		st = t.reads.Commit(job, now)
	}
	switch st {
	case read.OK:
	case read.Full, read.Closed:
		t.reads.Abort(job)
		if t.reads.Gauges().Reads > 0 || st == read.Closed {
			return false // room comes back
		}
		t.counters.ReadsInvalid++ // it does not fit an empty machine, and would stand in the way of all others
		t.why = log.ReadInvalid
		return t.finish(u, record.ReadFailed, now)
	default:
		t.reads.Abort(job)
		t.counters.ReadsInvalid++
		t.why = log.ReadInvalid
		return t.finish(u, record.ReadFailed, now)
	}
	t.unwait(u)
	t.runs.drop(q)
	q.state = reqReading
	q.job, q.engine, q.mark, q.conn, q.attached = job, r.engine, e.sent, e.conn, attached
	if attached != 0 {
		r.ends = attached
		t.counters.Attached++
	}
	e.open++
	e.reading++
	for k := range e.links {
		e.links[k].seen = e.links[k].seen || e.links[k].how != nil
	}
	return true
}

// hasRow reports that each rank's board has a row of the slot.
func (e *engine) hasRow(slot uint32) bool {
	for k := range e.links {
		if slot >= e.links[k].rows {
			return false
		}
	}
	return true
}

// addSources adds the ranks from which something is read: of ours each with its fence; to stock ones the completion rides on
// the READ, unless several requests share the id. It gives the links to which that is so.
func (t *Tracker) addSources(job read.Job, r *remote, e *engine) (attached uint64, st read.Status) {
	for k := range e.links {
		l := &e.links[k]
		if l.how == nil {
			continue
		}
		src := read.Source{Peer: l.peer, Owner: e.hash, Map: l.how}
		switch {
		case r.native:
			src.Fence = read.Fence{Native: true, Mem: l.mem, Device: l.device, Addr: record.RowAddr(l.board, r.slot), Want: record.FenceWord(l.base, r.gen)}
		case r.users == 1:
			var bad wire.Status
			if t.buf, bad = wire.AppendCompletion(t.buf[:0], t.remotes.idOf(r), l.readers); bad == wire.OK {
				src.Notif = t.buf
				attached |= 1 << k
			}
		}
		if st := t.reads.AddSource(job, src); st != read.OK {
			return 0, st
		}
	}
	return attached, read.OK
}

// takeOutcomes applies the ends of reads.
func (t *Tracker) takeOutcomes(now clock.Instant) {
	for {
		o, ok := t.reads.NextOutcome()
		if !ok {
			break
		}
		if u := t.at(record.Handle(o.Token)); u != none && t.requests[u].state == reqReading {
			t.outcome(u, &o, now)
		}
	}
	for {
		token, ok := t.reads.NextBack()
		if !ok {
			return
		}
		if u := t.at(record.Handle(token)); u != none && t.requests[u].held {
			q := &t.requests[u]
			q.held = false
			t.gauges.BlocksHeld--
			t.engines[q.engine].open--
			t.event(u, pendBack)
		}
	}
}

func (t *Tracker) outcome(u uint32, o *read.Outcome, now clock.Instant) {
	q := &t.requests[u]
	e := &t.engines[q.engine]
	e.reading--
	m := q.remote
	r := &t.remotes.all[m]
	status := o.Status
	if o.Here { // it says nothing of the engine
		t.why = log.ReadFailedHere
	} else {
		e.judge(status, now)
	}
	if status == record.ReadOK || status == record.ReadStale {
		e.worked(hereReads)
	}
	if status == record.ReadOK {
		if q.conn == e.conn {
			for k := range e.links {
				if e.links[k].how != nil {
					t.heard(q.engine, uint32(k), q.mark)
				}
			}
		}
		switch {
		case r.native && !o.Proven:
			status = record.ReadUnproven
		case !r.native && (r.lost || !t.guarded(e, r, now)):
			t.counters.GuardRefused++
			t.why = log.ReadLate
			status = record.ReadUnproven
		}
	}
	if q.attached != 0 && q.attached&(q.attached-1) == 0 && o.Status != record.ReadOK && (o.Status == record.ReadFailed || !o.BlocksHeld) {
		r.ends = 0 // the only READ that carried the completion never ended well: it has not left
	}
	q.held = o.BlocksHeld
	q.value0, q.value1 = o.Bytes, uint64(o.Took)
	e.bytes += o.Bytes
	if o.Posted != 0 {
		t.times.Read.Observe(o.Took)
	}
	if q.held {
		q.heldSaid = true
		t.gauges.BlocksHeld++
		t.sayRemote(log.BlocksAside, r, o.Bytes, 0)
	} else {
		e.open--
	}
	if r.lost && status != record.ReadOK {
		status, t.why = record.ReadLost, none8
	}
	r.read = r.read || status == record.ReadOK
	r.stale = r.stale || status == record.ReadStale
	others := r.users > 1
	t.finish(u, status, now)
	if others && (r.ends != 0 || r.stale) { // for all who share it
		t.leaseGone(m)
	}
	if k := e.linkOf(o.Peer); k != none && o.Status == record.ReadFailed {
		t.broken(q.engine, k, now)
	}
	if (o.Here || o.Status == record.ReadFailed && o.Peer == 0) && q.conn == e.conn { // also where what is loaded of it lacks what its map names
		t.failedHere(q.engine, hereReads, now)
	}
}

// finish makes the outcome of a read known and ends the tracking. It reports true, for its callers' sake.
func (t *Tracker) finish(u uint32, status uint8, now clock.Instant) bool {
	q := &t.requests[u]
	t.unwait(u)
	t.runs.drop(q)
	t.gauges.Reading--
	t.counters.Outcomes[status]++
	q.state, q.status = reqEnded, status
	t.traceReported(u, status)
	t.sayEnd(q)
	q.pend &^= pendGone | pendRisk // the outcome says more
	t.event(u, pendOutcome)
	t.leave(u, now)
	return true
}

// wait puts a read into its engine's list, unless its engine is not the one that the read is for.
func (t *Tracker) wait(u uint32) {
	q := &t.requests[u]
	r := &t.remotes.all[q.remote]
	if r.place == inStrange {
		return
	}
	e := &t.engines[r.engine]
	q.inWait = true
	push(&e.waiting, t.requests, u, (*request).ofWait)
	t.ready(r.engine)
}

// rewait is wait for the reads of a remote that has been strange.
func (t *Tracker) rewait(m uint32) {
	for u := t.remotes.all[m].firstUser; u != none; u = t.requests[u].nextUser {
		if q := &t.requests[u]; q.state == reqWaiting && !q.inWait {
			t.wait(u)
		}
	}
}

// leaveWaiting takes a read out of its engine's list.
func (t *Tracker) leaveWaiting(u uint32) {
	q := &t.requests[u]
	if !q.inWait {
		return
	}
	q.inWait = false
	unlink(&t.engines[t.remotes.all[q.remote].engine].waiting, t.requests, u, (*request).ofWait)
}

// unwait takes a read out of all lists of waiting ones.
func (t *Tracker) unwait(u uint32) {
	t.leaveWaiting(u)
	q := &t.requests[u]
	if !q.inOrder {
		return
	}
	q.inOrder = false
	unlink(&t.waitOrder, t.requests, u, (*request).ofAge)
	t.gauges.Waiting--
}

func (t *Tracker) pushWaitOrder(u uint32) {
	q := &t.requests[u]
	q.inOrder = true
	push(&t.waitOrder, t.requests, u, (*request).ofAge)
}

// startsStepMax bounds the waiting reads that one step starts.
const startsStepMax = 64

// stepWaiting starts reads that waited for their engine or for room, oldest first of each engine, and ends those that
// waited too long. It reports whether it has looked at any.
func (t *Tracker) stepWaiting(now clock.Instant) bool {
	tried := t.reach == ReachAll && t.readyQueue.head != none
	t.crowded = false
	for n := 0; tried && t.readyQueue.head != none && n < startsStepMax; {
		i := t.popEngine(&t.readyQueue)
		e := &t.engines[i]
		for e.waiting.head != none && n < startsStepMax && e.state == Connected {
			n++
			if !t.start(e.waiting.head, now) {
				t.ready(i)
				t.crowded, t.crowdedAt = true, t.reads.Freed()
				n = startsStepMax // no room in the machine: for the others neither
			}
		}
		t.ready(i)
	}
	for range expireStepMax { // the rest waits for the next step
		u := t.waitOrder.head
		if u == none || now.Before(t.requests[u].deadline) {
			break
		}
		t.counters.WaitTimeouts++
		t.why = log.ReadWaited
		t.finish(u, record.ReadLost, now)
	}
	return tried
}
