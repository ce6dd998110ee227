package read

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// fenceRounds is how often a step looks again at the fences that it has posted; each look spins for a part of FenceSpin.
// Several, because a spin ends at the first fence that is answered and the others are close behind.
const fenceRounds = 4

// Step runs the machine once: polls everything in flight in one crossing, advances what has ended (data DONE on a source
// posts its fence read; all sources sound is the outcome), ends quarantines, posts data parts, looks once more at what it
// has posted itself, and applies time-outs. Call NextOutcome, NextBack and NextRow until each is empty afterwards.
//
// Cost: 0 allocations; nothing in flight, due or waiting: a few comparisons, no crossing.
// Spins: at most FenceSpin in all, only in a step that has posted a fence.
func (m *Machine) Step(now clock.Instant) {
	m.tick(now)
	m.rowsLeft = m.cfg.RowsStepMax
	m.fencesLeft = m.cfg.PostsStepMax
	m.partsLeft = m.cfg.PostsStepMax
	m.descsLeft = m.cfg.DescsStepMax
	m.freshN = 0
	if len(m.live) > 0 {
		m.poll()
	}
	m.postFences()
	m.quarantineEnds()
	m.postData()
	m.lookAgain()
	m.timeouts() // last: after a pause of this process, what has arrived meanwhile counts
	m.rowTimeouts()
}

// Post posts what was committed since Step, within what is left of that step's bounds, so that a read which the same run
// of the plane has started does not wait for the next one (a pass of the engine, in inline mode).
func (m *Machine) Post(now clock.Instant) {
	m.tick(now)
	m.freshN = 0
	m.postFences()
	m.postData()
	m.lookAgain()
}

// poll takes the ends of transfers, at most EndsStepMax; where it was cut the next one goes on, so that none starves.
func (m *Machine) poll() {
	n := len(m.live)
	m.tr.PollReads(m.live, m.ends[:n], 0)
	from := n - 1
	if m.cutAt != none && int(m.cutAt) < n {
		from = int(m.cutAt)
	}
	m.cutAt = none
	taken := 0
	// Downwards: an end moves the last transfer into its place, which has been looked at unless the walk began below it;
	// then it is seen by the next step.
	for i := from; i >= 0; i-- {
		if st := m.ends[i]; st != transport.Pending {
			if taken == m.cfg.EndsStepMax {
				m.cutAt = int32(i)
				m.Counters.EndsCut++
				return
			}
			taken++
			m.ended(m.liveOf[i], st)
			last := len(m.live) // the place that moved down
			m.ends[i] = m.ends[last]
		}
	}
	for i := len(m.live) - 1; i > from; i-- {
		if st := m.ends[i]; st != transport.Pending {
			if taken == m.cfg.EndsStepMax {
				m.cutAt = int32(i)
				m.Counters.EndsCut++
				return
			}
			taken++
			m.ended(m.liveOf[i], st)
			m.ends[i] = m.ends[len(m.live)]
		}
	}
}

// dataEnded takes the DONE of a data part; t is a copy, its place is free again.
func (m *Machine) dataEnded(t *xfer) {
	i := t.owner
	j := &m.jobs[i]
	j.inFlight--
	j.done += t.bytes
	s := &m.sourcesOf(i)[t.source]
	s.inFlight--
	if j.state == jobRunning && !j.bad {
		if s.leftAll == 0 && s.inFlight == 0 {
			m.dataDone(i, s)
		}
		if m.leftToPost(i) { // it may have waited for this end
			m.enlist(postList, i)
		}
	}
	m.settle(i)
}

// leftToPost reports that a read has data parts not yet posted.
func (m *Machine) leftToPost(i int32) bool {
	srcs := m.sourcesOf(i)
	for k := range srcs {
		if srcs[k].leftAll > 0 {
			return true
		}
	}
	return false
}

// dataDone goes on from a source whose data has all landed.
func (m *Machine) dataDone(i int32, s *source) {
	if s.fence.Native {
		s.stage = fenceDue
		m.enlist(fenceList, i)
		return
	}
	s.stage = sound
	m.jobs[i].sound++
}

func (m *Machine) dataFailed(t *xfer) {
	j := &m.jobs[t.owner]
	j.inFlight--
	j.aside++
	m.sourcesOf(t.owner)[t.source].inFlight--
	m.fail(t.owner, record.ReadFailed, t.peer)
}

func (m *Machine) fenceFailed(t *xfer) {
	j := &m.jobs[t.owner]
	j.fences--
	j.fencesAside++
	m.fail(t.owner, record.ReadUnproven, t.peer)
}

// fenceEnded takes the DONE of a fence read.
func (m *Machine) fenceEnded(t *xfer) {
	i := t.owner
	j := &m.jobs[i]
	j.fences--
	s := &m.sourcesOf(i)[t.source]
	if j.state == jobRunning && !j.bad {
		if loadRow(&m.landing[m.fenceRow(i, t.source)]).Fence == s.fence.Want {
			s.stage = sound
			j.sound++
		} else {
			m.fail(i, record.ReadStale, t.peer)
			return
		}
	}
	m.settle(i)
}

// fail makes a verdict that is not OK: the first one stands. What has not been posted never will be.
func (m *Machine) fail(i int32, verdict uint8, peer transport.Peer) {
	j := &m.jobs[i]
	if j.state == jobRunning && !j.bad {
		j.bad = true
		j.verdict = verdict
		j.badPeer = peer
		m.remove(postList, i)
		m.remove(fenceList, i)
	}
	m.settle(i)
}

func (m *Machine) fenceRow(i, source int32) int {
	return m.cfg.RowsMax + int(i)*m.cfg.SourcesMax + int(source)
}

// postFences posts the fence reads that are due, at most PostsStepMax in a step.
func (m *Machine) postFences() {
	for m.lists[fenceList].head != none {
		i := m.lists[fenceList].head
		srcs := m.sourcesOf(i)
		for k := range srcs {
			s := &srcs[k]
			if s.stage != fenceDue {
				continue
			}
			if m.fencesLeft == 0 {
				m.Counters.PostsCut++
				return
			}
			m.fencesLeft--
			if !m.postFence(i, int32(k), s) {
				m.push(fenceList, i)
				return
			}
			if m.jobs[i].state != jobRunning || m.jobs[i].bad {
				break // off the list already
			}
		}
		if m.lists[fenceList].head == i {
			m.remove(fenceList, i)
		}
	}
}

// postFence posts one fence read. It reports false if the transport has no room.
func (m *Machine) postFence(i, k int32, s *source) bool {
	at := m.fenceRow(i, k)
	storeRow(&m.landing[at], ^s.fence.Want) // a DONE that brought nothing must not look like proof
	m.descs[0] = transport.Desc{
		Local: m.landingAddr + uint64(at)*record.RowLen, Remote: s.fence.Addr, Len: 8, RemoteDevice: s.fence.Device,
	}
	m.spec = transport.ReadSpec{Peer: s.peer, LocalMem: transport.DRAM, RemoteMem: s.fence.Mem, Descs: m.descs[:1]}
	x, st := m.post(xferFence, i, k, 8)
	switch st {
	case OK:
		s.stage = fencing
		m.jobs[i].fences++
		m.Counters.FencePosts++
		m.freshen(x)
		return true
	case Full:
		return false
	}
	m.fail(i, record.ReadUnproven, s.peer)
	return true
}

// postData posts data parts: at most DescsStepMax descriptors and PostsStepMax posts. Reads take turns, so that a long
// one delays a short one by one turn and not by its whole length.
func (m *Machine) postData() {
	if m.lists[postList].head == none {
		return
	}
	for {
		i := m.lists[postList].head
		if i == none {
			return
		}
		if m.descsLeft == 0 || m.partsLeft == 0 {
			m.Counters.PostsCut++
			return
		}
		m.partsLeft--
		share := m.descsLeft
		if m.lists[postList].tail != i {
			share = min(share, max(m.cfg.DescsStepMax/4, 1))
		}
		n, more := m.postPart(i, share)
		if n < 0 { // no room in the transport; another read, perhaps to another peer, tries first in the next step
			m.push(postList, i)
			return
		}
		m.descsLeft -= n
		if more {
			m.push(postList, i)
		} else {
			m.remove(postList, i)
		}
	}
}

// postPart posts one data part of a read with at most share descriptors. It reports how many it took, -1 if the transport
// has no room, and whether the read could post another one now.
func (m *Machine) postPart(i int32, share int) (n int, more bool) {
	j := &m.jobs[i]
	if int(j.inFlight) == m.cfg.PartsMax {
		return 0, false
	}
	srcs := m.sourcesOf(i)
	for range srcs {
		k := j.nextSrc
		if j.nextSrc++; j.nextSrc == j.sources {
			j.nextSrc = 0
		}
		s := &srcs[k]
		if s.leftAll == 0 {
			continue
		}
		last := s.leftAll <= uint64(share) && s.only()
		if last && len(s.notif) > 0 && s.inFlight > 0 {
			continue // the completion leaves with the last part: it must not overtake the others
		}
		return m.postSource(i, k, s, share)
	}
	return 0, false
}

// only reports that what is left of a source has one kind of memory.
func (s *source) only() bool {
	for _, n := range s.left {
		if n != 0 && n != s.leftAll {
			return false
		}
	}
	return true
}

func (m *Machine) postSource(i, k int32, s *source, share int) (int, bool) {
	j := &m.jobs[i]
	before := *s
	n, bytes, pair := m.fill(j, s, m.descs[:share])
	m.spec = transport.ReadSpec{
		Peer: s.peer, LocalMem: transport.Mem(pair >> 1), RemoteMem: transport.Mem(pair & 1), Descs: m.descs[:n],
	}
	if s.leftAll == 0 {
		m.spec.Notif = s.notif
	}
	x, st := m.post(xferData, i, k, bytes)
	switch st {
	case Full:
		*s = before
		return -1, true
	case Refused:
		m.fail(i, record.ReadFailed, s.peer)
		return n, false
	}
	s.inFlight++
	j.inFlight++
	if !j.posted {
		j.posted, j.began = true, m.now
	}
	j.deadline = m.now.Add(m.cfg.ReadTimeout)
	m.push(timerList, i)
	m.Counters.DataPosts++
	m.Counters.Descs += uint64(n)
	m.freshen(x)
	if !m.leftToPost(i) {
		m.freeRuns(j)
		return n, false
	}
	return n, true
}

// timeouts ends the reads whose last post is longer ago than ReadTimeout.
func (m *Machine) timeouts() {
	for n := 0; m.lists[timerList].head != none; n++ {
		i := m.lists[timerList].head
		j := &m.jobs[i]
		if m.now.Before(j.deadline) {
			return
		}
		if n == m.cfg.EndsStepMax {
			m.Counters.EndsCut++
			return
		}
		switch {
		case j.bad:
			m.report(i, j.verdict)
		case j.inFlight == 0 && m.fencePending(i):
			m.report(i, record.ReadUnproven) // the data is there, the proof is not
		default:
			m.report(i, record.ReadTimeout)
		}
	}
}

// fencePending reports that all data of a read is DONE and only proof is missing.
func (m *Machine) fencePending(i int32) bool {
	for k := range m.sourcesOf(i) {
		if m.sourcesOf(i)[k].stage == reading {
			return false
		}
	}
	return true
}

// freshen notes a transfer that this step has posted for the second look.
func (m *Machine) freshen(x int32) {
	if m.freshN < len(m.fresh) {
		m.fresh[m.freshN], m.freshOf[m.freshN] = m.xfers[x].handle, x
		m.freshN++
	}
}

// lookAgain polls what this step has posted: data that lands inside its post needs no second step, and a fence is
// waited for, since all else of its read is done.
func (m *Machine) lookAgain() {
	for round := 0; round < fenceRounds && m.freshN > 0; round++ {
		spin := int64(0)
		for k := 0; k < m.freshN; k++ {
			if m.xfers[m.freshOf[k]].kind == xferFence {
				spin = m.spin
				break
			}
		}
		n := m.freshN
		m.freshN = 0
		m.tr.PollReads(m.fresh[:n], m.ends[:n], spin)
		for k := 0; k < n; k++ {
			x := m.freshOf[k]
			switch st := m.ends[k]; {
			case st != transport.Pending:
				m.ended(x, st)
			case m.xfers[x].kind == xferFence: // data is looked at once: it takes its time
				m.fresh[m.freshN], m.freshOf[m.freshN] = m.fresh[k], x
				m.freshN++
			}
		}
		m.postFences()
	}
}
