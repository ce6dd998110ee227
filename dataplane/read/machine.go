// Package read is the transfer machine of a reader rank: it plans descriptors, posts reads, proves them by the fence
// and never gives memory back while a transfer may still write it.
//
// It knows nothing of heartbeats and requests: whoever drives it gives each read a token and hears of the token again.
// A read is built (Begin, AddSource, AddRuns), committed, and then has exactly one Outcome; if that says BlocksHeld,
// one NextBack follows when its local blocks can be given out again.
//
// What ends a transfer: DONE, and nothing else. After an error its memory stays aside for QuarantineErrorWait, since
// the transport below may still be trying; without error and without DONE it stays aside for ever, and that is a gauge.
package read

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

const none = int32(-1) // free.None in 32 bits with a sign

// Status is the answer of a call that changes the machine.
type Status uint8

// Only OK changes anything, unless it is said otherwise.
const (
	OK      Status = iota
	Full           // no room now: try again after a step
	Invalid        // an argument is wrong; Why says which
	Stale          // the job has ended, or is past the point where the call makes sense
	Empty          // nothing to read: no run was added
	Busy           // this peer does not answer its rows: wait until they have ended
	Refused        // the transport refused the post
	Closed         // Close was called
	Unable         // the transport cannot do what it is asked, for a reason of this side
	statuses
)

var statusNames = [statuses]string{"ok", "full", "invalid", "stale", "empty", "busy", "refused", "closed", "unable"}

func (s Status) String() string {
	if s < statuses {
		return statusNames[s]
	}
	return "unknown"
}

// Job names a read from Begin until its outcome. 0 is none.
type Job uint64

// Machine carries the reads of one rank.
//
// Threads: one; the step owns it.
// Memory: all of it comes from New; no other call touches the heap.
// Time: callers pass now, not before the now of the call before; the machine reads no clock.
// Limits: those of Config. What does not fit is refused before anything is posted.
type Machine struct {
	cfg         Config
	tr          transport.Transport
	local       Layout
	landing     []record.Row // RowsMax rows of row reads, then SourcesMax fence rows for each job
	landingAddr uint64
	now         clock.Instant
	why         string
	closed      bool

	localSum   uint64
	localLimit [GroupsMax]uint32 // ids of a group must be below it; 0: no region has the group

	jobs    []job
	freeJob free.Places
	sources []source // SourcesMax for each job
	notifs  []byte   // NotifMax for each job
	runs    runPool

	lists    [jobLists]jobList
	outcomes ring[int32]
	backs    ring[int32]

	xfers    []xfer
	freeXfer free.Places
	live     []transport.Xfer // handles of pending transfers, dense, in the order of liveOf
	liveOf   []int32
	ends     []transport.Status
	cutAt    int32 // where the last poll stopped taking ends; none if it took all
	aside    xferList
	begun    int // reads of which a part was posted and that have no outcome
	peers    peerTable

	rows     []rowSlot
	freeRow  free.Places
	rowTimer xferList
	rowOwed  int // rows pending without result
	results  ring[RowResult]
	fresh    []transport.Xfer // posted in this step, for the second look
	freshOf  []int32
	freshN   int
	descs    []transport.Desc
	spec     transport.ReadSpec
	fault    fault // of what failed last
	spin     int64 // nanoseconds of one round of the second look

	// What is left of this step's bounds.
	rowsLeft, fencesLeft, partsLeft, descsLeft int
	leftNs                                     float64 // of PostBudget; below 0: the last part took longer than it should
	posted                                     bool    // a data part
	paces                                      paces

	freed uint64 // times that room for reads came back

	// Counters only grow.
	Counters Counters
	// FenceTime is from the end of a source's data to the word of its fence: 0 where one step sees both.
	FenceTime histogram.Histogram
	gauges    Gauges
}

// ring is a bounded queue. Its users reserve before they push, so it never overflows.
type ring[T any] struct {
	items []T
	head  int
	n     int
}

func newRing[T any](n int) ring[T] { return ring[T]{items: make([]T, n)} }

func (r *ring[T]) push(v T) {
	i := r.head + r.n
	if i >= len(r.items) {
		i -= len(r.items)
	}
	r.items[i] = v
	r.n++
}

func (r *ring[T]) pop() T {
	v := r.items[r.head]
	if r.head++; r.head == len(r.items) {
		r.head = 0
	}
	r.n--
	return v
}

func (m *Machine) init() {
	c := &m.cfg
	m.jobs = make([]job, c.ReadsMax)
	m.freeJob = free.New(c.ReadsMax)
	m.sources = make([]source, c.ReadsMax*c.SourcesMax)
	m.notifs = make([]byte, c.ReadsMax*c.NotifMax)
	m.runs = newRunPool(c.RunsMax)
	for i := range m.lists {
		m.lists[i] = jobList{head: none, tail: none}
	}
	m.outcomes = newRing[int32](c.ReadsMax)
	m.backs = newRing[int32](c.ReadsMax)

	xfers := c.ReadsMax*(c.PartsMax+c.SourcesMax) + c.RowsMax
	m.xfers = make([]xfer, xfers)
	m.freeXfer = free.New(xfers)
	m.live = make([]transport.Xfer, 0, xfers)
	m.liveOf = make([]int32, 0, xfers)
	m.ends = make([]transport.Status, xfers)
	m.cutAt = none
	m.aside = xferList{none, none}
	m.peers = newPeerTable(c.PeersMax)

	m.rows = make([]rowSlot, c.RowsMax)
	m.freeRow = free.New(c.RowsMax)
	m.rowTimer = xferList{none, none}
	m.results = newRing[RowResult](c.RowsMax)
	m.rowsLeft = c.RowsStepMax

	m.fresh = make([]transport.Xfer, 2*c.PostsStepMax) // data and fences
	m.freshOf = make([]int32, 2*c.PostsStepMax)
	m.descs = make([]transport.Desc, c.DescsStepMax)
	if c.PostBudget > 0 {
		m.paces = newPaces(c.PeersMax)
	}
	spin := c.FenceSpin
	if m.tr.FastFence() {
		spin = c.FenceSpinFast
	}
	m.spin = int64(spin) / fenceRounds
}

// Why names what was wrong with the last call that answered Invalid.
func (m *Machine) Why() string { return m.why }

func (m *Machine) invalid(why string) Status {
	m.why = why
	m.Counters.Invalid++
	return Invalid
}

// tick takes the caller's time; time that goes back stands still.
func (m *Machine) tick(now clock.Instant) clock.Instant {
	if m.now.Before(now) {
		m.now = now
	}
	return m.now
}
