package read

import (
	"errors"
	"slices"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

type xferKind uint8

const (
	xferFree xferKind = iota
	xferData
	xferFence
	xferRow
)

// xfer is a transfer from its post until nothing can be written by it any more.
type xfer struct {
	handle transport.Xfer
	bytes  uint64
	until  clock.Instant // aside: the end of its quarantine
	peer   transport.Peer
	owner  int32 // the job, or the row's place
	live   int32 // place in Machine.live; none once aside
	links  link
	source int32 // index within the job
	kind   xferKind

	abandoned bool // and still pending
}

// fault is what a failure speaks against.
type fault uint8

const (
	ofConnection fault = iota // to the peer
	ofPeer                    // it does not have what its map names; the connection stands
	ofThisSide                // its memory, its device, or what it asked the transport
)

// faultOf is that of a post that was refused.
func faultOf(err error) fault {
	switch {
	case errors.Is(err, transport.ErrRange): // which is an ErrInvalid
		return ofPeer
	case errors.Is(err, transport.ErrPeer):
		return ofConnection
	}
	return ofThisSide
}

// post starts a read of m.spec for owner. Full: the transport or the peer table has no room now. Refused: m.fault says what for.
func (m *Machine) post(kind xferKind, owner, src int32, bytes uint64) (int32, Status) {
	m.fault = ofConnection
	p := m.peers.get(m.spec.Peer)
	if p == nil {
		m.Counters.TransportFull++
		return none, Full
	}
	h, err := m.tr.PostRead(&m.spec)
	if err != nil {
		m.peers.tidy(m.spec.Peer)
		if err == transport.ErrFull {
			m.Counters.TransportFull++
			return none, Full
		}
		m.Counters.PostErrors++
		if m.fault = faultOf(err); m.fault == ofThisSide {
			m.Counters.FailedHere++
		}
		return none, Refused
	}
	x := int32(m.freeXfer.Take()) // there is one for all that may be open
	m.xfers[x] = xfer{
		handle: h, bytes: bytes, peer: m.spec.Peer, owner: owner, source: src, kind: kind,
		live: int32(len(m.live)), links: link{off, off},
	}
	m.live = append(m.live, h)
	m.liveOf = append(m.liveOf, x)
	p.pending++
	m.gauges.Pending++
	return x, OK
}

// unlive takes a transfer out of what is polled.
func (m *Machine) unlive(x int32) {
	at, last := m.xfers[x].live, len(m.live)-1
	m.live[at], m.liveOf[at] = m.live[last], m.liveOf[last]
	m.xfers[m.liveOf[at]].live = at
	m.live, m.liveOf = m.live[:last], m.liveOf[:last]
	m.xfers[x].live = none
	m.gauges.Pending--
}

// setAside keeps the handle and all memory of a transfer that has not ended by DONE, until then.
func (m *Machine) setAside(x int32, until clock.Instant) {
	m.unlive(x)
	t := &m.xfers[x]
	if t.kind == xferRow {
		m.removeXfer(&m.rowTimer, x) // if its result is still owed
	}
	p := m.peers.find(t.peer)
	p.pending--
	p.aside++
	t.until = until
	m.pushXfer(&m.aside, x)
	m.gauges.Aside++
}

// freeXferOf gives a transfer's place back: nothing can be written by it any more.
func (m *Machine) freeXferOf(x int32) {
	t := &m.xfers[x]
	p := t.peer
	*t = xfer{live: none, links: link{off, off}}
	m.freeXfer.Give(uint32(x))
	m.peers.tidy(p)
}

// ended takes the end of a pending transfer that the transport reports.
func (m *Machine) ended(x int32, st transport.Status) {
	t := &m.xfers[x]
	if m.late(t) {
		m.gauges.Held--
		m.Counters.LateEnds++
	}
	if t.abandoned {
		t.abandoned = false
		m.gauges.Abandoned--
	}
	if st != transport.Done {
		m.Counters.Failures++
		if m.fault = ofConnection; st == transport.FailedHere {
			m.fault = ofThisSide
			m.Counters.FailedHere++
		}
		m.failed(x)
		return
	}
	m.unlive(x)
	m.peers.find(t.peer).pending--
	if m.tr.Release(t.handle) != nil {
		m.Counters.ReleaseErrors++
	}
	end := *t
	switch t.kind {
	case xferRow: // before the place is free: the entry of the peer counts rows
		m.rowDone(t.owner)
		m.freeXferOf(x)
	case xferData:
		m.freeXferOf(x)
		m.dataEnded(&end)
	case xferFence:
		m.freeXferOf(x)
		m.fenceEnded(&end)
	}
}

// late says that the outcome of the row read or read that a transfer belongs to has been reported already.
func (m *Machine) late(t *xfer) bool {
	if t.kind == xferRow {
		return m.rows[t.owner].late
	}
	return m.jobs[t.owner].state == jobReported
}

// failed sets a transfer aside and tells whom it belongs to. m.fault says what for.
func (m *Machine) failed(x int32) {
	m.setAside(x, m.now.Add(m.cfg.QuarantineErrorWait))
	switch t := &m.xfers[x]; t.kind {
	case xferData:
		m.dataFailed(t)
	case xferFence:
		m.fenceFailed(t)
	case xferRow:
		m.rowFailed(t.owner)
	}
}

// quarantineEnds gives back what was set aside after an error and has waited long enough.
func (m *Machine) quarantineEnds() {
	for n := 0; m.aside.head != none && !m.now.Before(m.xfers[m.aside.head].until); n++ {
		if n == m.cfg.EndsStepMax {
			m.Counters.EndsCut++ // the rest waits for the next step; held longer is safe
			return
		}
		x := m.aside.head
		t := &m.xfers[x]
		m.removeXfer(&m.aside, x)
		if m.tr.Release(t.handle) != nil { // the transport takes its error back: hold, and ask again
			m.Counters.ReleaseErrors++
			t.until = m.now.Add(m.cfg.QuarantineErrorWait)
			m.pushXfer(&m.aside, x)
			continue
		}
		m.gauges.Aside--
		p := m.peers.find(t.peer)
		p.aside--
		end := *t
		if t.kind == xferRow {
			p.rows--
			m.freeRow.Give(uint32(t.owner))
			m.rows[t.owner] = rowSlot{}
		}
		m.freeXferOf(x)
		switch end.kind {
		case xferData:
			m.jobs[end.owner].aside--
			m.settle(end.owner)
		case xferFence:
			m.jobs[end.owner].fencesAside--
			m.settle(end.owner)
		}
	}
}

// Abandon is for healing a peer that has transfers open past heal_wait, beside transport.Abandon: reads from it that are not
// reported end as ReadFailed now (ReadUnproven if all their data is there), row reads as failed. The transfers go on: DONE
// frees their memory, an error starts its quarantine, and without either it stays aside for the life of the process.
// It reports their number. Off the usual path: it looks at every transfer.
func (m *Machine) Abandon(p transport.Peer, now clock.Instant) int {
	m.tick(now)
	n := 0
	for x := range m.xfers {
		t := &m.xfers[x]
		if t.kind == xferFree || t.peer != p || t.live == none || t.abandoned {
			continue
		}
		n++
		t.abandoned = true
		m.gauges.Abandoned++
		if m.late(t) {
			continue
		}
		if t.kind == xferRow {
			m.rowLate(int32(x))
			continue
		}
		j := &m.jobs[t.owner]
		if !j.bad {
			j.bad, j.badPeer, j.verdict = true, t.peer, record.ReadFailed
			if t.kind == xferFence && j.inFlight == 0 {
				j.verdict = record.ReadUnproven
			}
		}
		m.report(t.owner, j.verdict)
	}
	m.Lost(p, now)
	return n
}

// Lost ends the reads that have parts or fences to post to a peer that is forgotten, and no transfer to it that would tell: ReadFailed, or ReadUnproven
// if all their data is there. What they have in flight to others is waited for. Off the usual path: it looks at every read.
func (m *Machine) Lost(p transport.Peer, now clock.Instant) {
	m.tick(now)
	for i := range m.jobs {
		j := &m.jobs[i]
		if j.state != jobRunning || j.bad {
			continue
		}
		srcs := m.sourcesOf(int32(i))
		if !slices.ContainsFunc(srcs, func(s source) bool { return s.peer == p && (s.leftAll > 0 || s.stage == fenceDue) }) {
			continue
		}
		verdict := uint8(record.ReadFailed)
		if !slices.ContainsFunc(srcs, func(s source) bool { return s.leftAll > 0 || s.inFlight > 0 }) {
			verdict = record.ReadUnproven
		}
		m.fail(int32(i), verdict, p)
	}
}
