package read

import (
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/transport"
)

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
	s.arrived = m.now
	if s.fence.Native {
		s.stage = fenceDue
		m.enlist(fenceList, i)
	} else {
		s.stage = sound
		m.jobs[i].sound++
	}
	m.traceArrived(i)
}

func (m *Machine) dataFailed(t *xfer) {
	j := &m.jobs[t.owner]
	j.inFlight--
	j.aside++
	m.sourcesOf(t.owner)[t.source].inFlight--
	m.fail(t.owner, record.ReadFailed, m.blamed(t.peer))
}

func (m *Machine) fenceFailed(t *xfer) {
	j := &m.jobs[t.owner]
	j.fences--
	j.fencesAside++
	m.traceFence(t, trace.FenceUnproven)
	m.fail(t.owner, record.ReadUnproven, m.blamed(t.peer))
}

// blamed is the peer whose connection what has just failed speaks against: 0 where it was this side, or the connection stands.
func (m *Machine) blamed(p transport.Peer) transport.Peer {
	if m.fault == ofConnection {
		return p
	}
	return 0
}

// fenceEnded takes the DONE of a fence read.
func (m *Machine) fenceEnded(t *xfer) {
	i := t.owner
	j := &m.jobs[i]
	j.fences--
	s := &m.sourcesOf(i)[t.source]
	if j.state == jobRunning && !j.bad {
		m.FenceTime.Observe(m.now.Sub(s.arrived))
		if loadRow(&m.landing[m.fenceRow(i, t.source)]).Fence == s.fence.Want {
			s.stage = sound
			j.sound++
			m.traceFence(t, trace.FenceEqual)
		} else {
			m.traceFence(t, trace.FenceStale)
			m.fail(i, record.ReadStale, t.peer)
			return
		}
	}
	m.settle(i)
}

// fail makes a verdict that is not OK: the first one stands. What has not been posted never will be. peer: whose connection it speaks against; 0: none's.
func (m *Machine) fail(i int32, verdict uint8, peer transport.Peer) {
	j := &m.jobs[i]
	if j.state == jobRunning && !j.bad {
		j.bad = true
		j.verdict = verdict
		j.badPeer = peer
		j.here = peer == 0 && m.fault == ofThisSide
		m.remove(postList, i)
		m.remove(fenceList, i)
	}
	m.settle(i)
}
