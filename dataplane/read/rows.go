package read

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// ProbeBytes is the length of a read whose content is of no use: that it ended is the news.
const ProbeBytes = 8

// rowsKept: the last eighth of the places is for peers with no row open, one each, so that those which do not answer never
// take all.
const rowsKept = 8

// RowResult is the end of a row read.
type RowResult struct {
	Token  uint64
	Row    record.Row    // as read; only Fence for a read of 8 bytes. Zero if not OK
	Posted clock.Instant // when the read was posted
	Peer   transport.Peer
	OK     bool // false: error or time-out
	Here   bool // the error is of this side: it says nothing of the peer
}

type rowSlot struct {
	token  uint64
	posted clock.Instant
	xfer   int32
	late   bool // the result was given by time-out; the transport may still write the row
}

// ReadRow posts a read of one row (or of its first bytes: a multiple of 8, at most record.RowLen) at once. NextRow gives its result, exactly one.
//
// Full: RowsStepMax of this step, RowsPeer of this peer or RowsMax are used up; the last eighth of RowsMax is for peers with none open. Busy: a row read to this peer timed out
// and is still open, so more of them would only take the room of other peers. Refused: the transport reports the peer
// unreachable; Unable: it cannot do what it is asked for a reason of this side. In all four nothing was posted.
//
// Preconditions: the row lies in memory that the peer has registered.
func (m *Machine) ReadRow(token uint64, peer transport.Peer, addr uint64, device uint32, mem transport.Mem, length uint32, now clock.Instant) Status {
	m.tick(now)
	switch {
	case m.closed:
		return Closed
	case peer == 0 || length == 0 || length > record.RowLen || length&7 != 0 || mem > transport.VRAM:
		return m.invalid("row read: peer, length or kind of memory")
	}
	n := m.freeRow.Left()
	if m.rowsLeft == 0 || n == 0 || m.rowOwed+m.results.n == len(m.results.items) {
		m.Counters.RowsFull++
		return Full
	}
	if p := m.peers.find(peer); p != nil {
		if p.late > 0 {
			m.Counters.RowsBusy++
			return Busy
		}
		if int(p.rows) >= m.cfg.RowsPeer || p.rows > 0 && n <= m.cfg.RowsMax/rowsKept {
			m.Counters.RowsFull++
			return Full
		}
	}
	i := int32(m.freeRow.Take())
	storeRow(&m.landing[i], 0)
	m.descs[0] = transport.Desc{
		Local: m.landingAddr + uint64(i)*record.RowLen, Remote: addr, Len: uint64(length), RemoteDevice: device,
	}
	m.spec = transport.ReadSpec{Peer: peer, LocalMem: transport.DRAM, RemoteMem: mem, Descs: m.descs[:1]}
	x, st := m.post(xferRow, i, 0, uint64(length))
	if st != OK {
		m.freeRow.Give(uint32(i))
		if m.fault == ofThisSide { // the peer is as it was: later, perhaps
			return Unable
		}
		return st
	}
	m.rows[i] = rowSlot{token: token, posted: m.now, xfer: x}
	m.peers.find(peer).rows++
	m.pushXfer(&m.rowTimer, x)
	m.rowsLeft--
	m.rowOwed++
	m.Counters.RowPosts++
	return OK
}

// NextRow gives the next result of a row read.
func (m *Machine) NextRow() (RowResult, bool) {
	if m.results.n == 0 {
		return RowResult{}, false
	}
	return m.results.pop(), true
}

func (m *Machine) rowResult(i int32, r RowResult) {
	s := &m.rows[i]
	r.Token, r.Posted = s.token, s.posted
	if r.OK {
		r.Row = loadRow(&m.landing[i])
	}
	m.rowOwed--
	m.results.push(r)
}

// rowDone ends a row read whose bytes have landed. The caller frees the transfer.
func (m *Machine) rowDone(i int32) {
	s := &m.rows[i]
	t := &m.xfers[s.xfer]
	p := m.peers.find(t.peer)
	p.rows--
	if s.late {
		p.late--
	} else {
		m.removeXfer(&m.rowTimer, s.xfer)
		m.rowResult(i, RowResult{Peer: t.peer, OK: true})
	}
	m.rows[i] = rowSlot{}
	m.freeRow.Give(uint32(i))
}

// rowFailed takes the error of a row read; setAside was called before, so its transfer is in no timer any more.
func (m *Machine) rowFailed(i int32) {
	s := &m.rows[i]
	peer := m.xfers[s.xfer].peer
	if s.late {
		s.late = false
		m.peers.find(peer).late--
		return
	}
	m.rowResult(i, RowResult{Peer: peer, Here: m.fault == ofThisSide})
}

// rowTimeouts gives the result of rows that were not answered in time. Their places stay taken.
func (m *Machine) rowTimeouts() {
	for n := 0; m.rowTimer.head != none; n++ {
		x := m.rowTimer.head
		t := &m.xfers[x]
		s := &m.rows[t.owner]
		if m.now.Before(s.posted.Add(m.cfg.RowTimeout)) {
			return
		}
		if n == m.cfg.EndsStepMax {
			m.Counters.EndsCut++
			return
		}
		m.rowLate(x)
		m.Counters.RowTimeouts++
	}
}

// rowLate gives the result of a row read that may still be answered.
func (m *Machine) rowLate(x int32) {
	t := &m.xfers[x]
	m.removeXfer(&m.rowTimer, x)
	m.rowResult(t.owner, RowResult{Peer: t.peer})
	m.rows[t.owner].late = true
	m.peers.find(t.peer).late++
	m.gauges.Held++
}
