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
		m.freshen(x)
		return true
	case Full:
		return false
	}
	m.fail(i, record.ReadUnproven, m.blamed(s.peer))
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
	n, bytes, mem := m.fill(j, s, m.descs[:share])
	m.spec = transport.ReadSpec{
		Peer: s.peer, LocalMem: transport.Mem(mem >> 1), RemoteMem: transport.Mem(mem & 1), Descs: m.descs[:n],
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
		m.fail(i, record.ReadFailed, m.blamed(s.peer))
		return n, false
	}
	s.inFlight++
	j.inFlight++
	if !j.posted {
		j.posted, j.began = true, m.now
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
