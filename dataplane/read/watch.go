package read

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Counters only grow.
type Counters struct {
	Reads         uint64                      // committed
	Outcomes      [record.ReadLost + 1]uint64 // by record.Read*
	Bytes         uint64                      // landed and known to have landed, at the outcomes
	DataPosts     uint64                      // parts
	FencePosts    uint64
	RowPosts      uint64
	Descs         uint64 // posted in data parts
	RowTimeouts   uint64
	RowsFull      uint64 // ReadRow answered Full
	RowsBusy      uint64 // ReadRow answered Busy
	Failures      uint64 // transfers that the transport reported as failed
	LateEnds      uint64 // transfers that ended after the outcome or the row's time-out
	PostErrors    uint64 // posts refused by the transport
	FailedHere    uint64 // posts refused and transfers failed for a reason of this side
	TransportFull uint64 // posts put off: no room in the transport, or PeersMax
	ReleaseErrors uint64 // handles that the transport did not take back
	PostsCut      uint64 // steps that left parts or fences to the next one
	EndsCut       uint64 // steps that left ends, time-outs or quarantines to the next one
	Full          uint64 // reads refused: ReadsMax or RunsMax
	Invalid       uint64 // calls that answered Invalid
}

// Gauges are what stands now.
type Gauges struct {
	Reads      int // places taken, from Begin until nothing can touch them
	BlocksHeld int // reads with an outcome whose blocks are not back yet
	Pending    int // transfers polled
	Held       int // of those, the ones whose outcome or result is long out: neither error nor DONE
	Aside      int // transfers in quarantine after an error
	Abandoned  int // of Held, those of peers that were abandoned: their memory is aside until they end
	RunsFree   int // runs that can still be added, in whole pieces
}

// Gauges gives what stands now.
func (m *Machine) Gauges() Gauges {
	g := m.gauges
	g.RunsFree = m.runs.free.Left() * runsPiece
	return g
}

// Freed counts how often room for reads has come back: a Begin or AddRuns that found none finds none until it has changed.
func (m *Machine) Freed() uint64 { return m.freed }

// InFlight gives the transfers to a peer that may still write here: pending ones, and those that ended by an error and
// are in quarantine. Healing waits for the first; the agent stays loaded for both, or see Abandon. A read between two parts has none: see Lost.
func (m *Machine) InFlight(p transport.Peer) (pending, aside int) {
	if e := m.peers.find(p); e != nil {
		return int(e.pending), int(e.aside)
	}
	return 0, 0
}

// Open is the number of transfers whose memory may still be written, or of reads that have begun if that is more, as between two of their
// parts: while it is not 0 nothing may be unregistered (BUSY).
func (m *Machine) Open() int { return max(m.gauges.Pending+m.gauges.Aside, m.begun) }

// NeedsStep reports that a step soon would find something to do: parts or fences to post, or transfers that are not late.
func (m *Machine) NeedsStep() bool {
	return m.gauges.Pending > m.gauges.Held || m.lists[postList].head != none || m.lists[fenceList].head != none
}

// NextDue is when the next time-out or quarantine ends, Never if there is none.
func (m *Machine) NextDue() clock.Instant {
	due := clock.Never
	if i := m.lists[timerList].head; i != none {
		due = m.jobs[i].deadline
	}
	if x := m.rowTimer.head; x != none {
		due = min(due, m.rows[m.xfers[x].owner].posted.Add(m.cfg.RowTimeout))
	}
	if x := m.aside.head; x != none {
		due = min(due, m.xfers[x].until)
	}
	return due
}

// Close refuses new work and ends every committed read as cancelled; jobs still being built can only be aborted. It
// reports Open. Steps go on, and end what ends, until that is 0.
func (m *Machine) Close(now clock.Instant) int {
	m.tick(now)
	m.closed = true
	for i := range m.jobs {
		if m.jobs[i].state == jobRunning {
			m.report(int32(i), record.ReadCancelled)
		}
	}
	return m.Open()
}
