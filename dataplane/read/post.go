package read

import (
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

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
		m.leftNs -= fenceNs
		m.freshen(x)
		return true
	case Full:
		return false
	}
	m.fail(i, record.ReadUnproven, m.blamed(s.peer))
	return true
}

// postData posts data parts: at most DescsStepMax descriptors and PostsStepMax posts, for about PostBudget. Reads take turns, so
// that a long one delays a short one by one turn and not by its whole length.
func (m *Machine) postData() {
	if m.lists[postList].head == none {
		return
	}
	for {
		i := m.lists[postList].head
		if i == none {
			return
		}
		if m.descsLeft == 0 || m.partsLeft == 0 || m.spent() {
			m.Counters.PostsCut++
			return
		}
		m.partsLeft--
		n, more := m.postPart(i, m.lists[postList].tail != i)
		if n < 0 { // no room in the transport; another read, perhaps to another peer, tries first in the next step
			m.push(postList, i)
			return
		}
		m.descsLeft -= n
		switch {
		case !more:
			m.remove(postList, i)
		case n > 0: // who had no room in this step is the first of the next one, which posts something of it whatever it costs
			m.push(postList, i)
		}
	}
}

// postPart posts one data part of a read, others telling that there are further reads to post. It reports how many descriptors it
// took, -1 if the transport has no room, and whether the read could post another one now.
func (m *Machine) postPart(i int32, others bool) (n int, more bool) {
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
		before := *s
		n, bytes := m.nextPart(j, s, others)
		if n == 0 { // what is left of the step is too little for any of it
			j.nextSrc = k
			m.leftNs = 0
			return 0, true
		}
		if s.leftAll == 0 && len(s.notif) > 0 && s.inFlight > 0 {
			*s = before
			continue // the completion leaves with the last part: it must not overtake the others
		}
		return m.postSource(i, k, s, &before, n, bytes)
	}
	return 0, false
}

// nextPart makes the spec of a source's next part. Beside others a list that does not fit takes a quarter of the step at most.
func (m *Machine) nextPart(j *job, s *source, others bool) (n int, bytes uint64) {
	before := *s
	descs := m.descs[:m.descsLeft]
	if others {
		descs = descs[:min(m.descsLeft, max(m.cfg.DescsStepMax/4, 1))]
	}
	n, bytes, mem := m.fill(j, s, descs, m.allowanceFor(s.peer, m.leftNs))
	if quarter := float64(m.cfg.PostBudget) / 4; others && s.leftAll > 0 && m.leftNs > quarter {
		most := *s
		*s = before
		if k, b, of := m.fill(j, s, descs, m.allowanceFor(s.peer, quarter)); k > 0 {
			n, bytes, mem = k, b, of
		} else {
			*s = most
		}
	}
	m.spec = transport.ReadSpec{
		Peer: s.peer, LocalMem: transport.Mem(mem >> 1), RemoteMem: transport.Mem(mem & 1), Descs: descs[:n],
	}
	if s.leftAll == 0 {
		m.spec.Notif = s.notif
	}
	m.spec.Timed = m.timed(&m.spec, bytes)
	return n, bytes
}

// postSource posts the part of m.spec, which has taken a source on from before.
func (m *Machine) postSource(i, k int32, s, before *source, n int, bytes uint64) (int, bool) {
	j := &m.jobs[i]
	x, st := m.post(xferData, i, k, bytes)
	switch st {
	case Full:
		*s = *before
		return -1, true
	case Refused:
		if m.fault != ofConnection { // its list was made for nothing; whoever is unreachable is not asked again
			m.spec.Timed = false // what it took is no pace
			m.charge(&m.spec, bytes)
		}
		m.fail(i, record.ReadFailed, m.blamed(s.peer))
		return n, false
	}
	m.charge(&m.spec, bytes)
	s.inFlight++
	j.inFlight++
	if !j.posted {
		j.posted, j.began = true, m.now
		m.begun++
		m.tracePosted(i)
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
