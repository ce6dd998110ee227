package read

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Outcome is the one end of a committed read.
type Outcome struct {
	Token      uint64
	Status     uint8          // record.Read*
	Proven     bool           // ReadOK, and every source's fence was equal
	BlocksHeld bool           // a transfer may still write the local blocks: NextBack follows
	Peer       transport.Peer // the first source that was bad; 0: none was, or not its connection, or the caller ended the read
	Here       bool           // ReadFailed or ReadUnproven, and for a reason of this side
	Bytes      uint64         // landed and known to have landed
	Posted     clock.Instant  // when the first part was posted; 0: none was
	Took       time.Duration  // from then to the outcome
}

// report makes the outcome known. It cannot be taken back: what ends later only frees memory.
func (m *Machine) report(i int32, verdict uint8) {
	j := &m.jobs[i]
	j.state = jobReported
	j.verdict = verdict
	j.held = j.inFlight+j.aside > 0
	j.landed = j.done
	if j.posted {
		m.begun--
		j.took = m.now.Sub(j.began)
	}
	for l := range j.links {
		m.remove(l, i)
	}
	m.freeRuns(j)
	m.outcomes.push(i)
	m.Counters.Outcomes[verdict]++
	m.Counters.Bytes += j.done
	m.gauges.Held += int(j.inFlight + j.fences)
	if j.held {
		m.gauges.BlocksHeld++
	}
}

// settle does what a change of a job's transfers allows: the outcome, the end of the hold, the end of the job.
func (m *Machine) settle(i int32) {
	j := &m.jobs[i]
	switch j.state {
	case jobRunning:
		switch {
		case j.bad && j.inFlight == 0:
			m.report(i, j.verdict)
		case !j.bad && j.sound == j.sources:
			m.report(i, record.ReadOK)
		}
	case jobReported:
		if j.held && !j.back && j.inFlight+j.aside == 0 {
			j.back = true
			m.gauges.BlocksHeld--
			m.backs.push(i)
		}
		m.freeIfOver(i)
	}
}

// freeIfOver frees a read that has told all it has to tell and that no transfer can touch any more.
func (m *Machine) freeIfOver(i int32) {
	j := &m.jobs[i]
	if j.state == jobReported && j.told && (!j.held || j.backTold) && j.inFlight+j.aside+j.fences+j.fencesAside == 0 {
		m.free(i)
	}
}

func (m *Machine) free(i int32) {
	m.jobs[i].state = jobFree
	srcs := m.sourcesOf(i)
	for k := range srcs {
		srcs[k].how = nil
	}
	m.freeJob.Give(uint32(i))
	m.freed++
	m.gauges.Reads--
}

func (m *Machine) freeRuns(j *job) {
	for g := range j.groups {
		if j.groups[g].head != none {
			m.runs.give(j.groups[g].head)
			m.freed++
			j.groups[g].head, j.groups[g].tail = none, none
		}
	}
}

// NextOutcome gives the next outcome.
func (m *Machine) NextOutcome() (Outcome, bool) {
	if m.outcomes.n == 0 {
		return Outcome{}, false
	}
	i := m.outcomes.pop()
	j := &m.jobs[i]
	o := Outcome{
		Token: j.token, Status: j.verdict, BlocksHeld: j.held, Peer: j.badPeer, Bytes: j.landed, Posted: j.began, Took: j.took,
		Here: j.here && (j.verdict == record.ReadFailed || j.verdict == record.ReadUnproven), // and not ended by the caller meanwhile
	}
	if o.Status == record.ReadOK {
		o.Proven = true
		srcs := m.sourcesOf(i)
		for k := range srcs {
			o.Proven = o.Proven && srcs[k].fence.Native
		}
	}
	j.told = true
	m.freeIfOver(i)
	return o, true
}

// NextBack gives the token of a read whose outcome said BlocksHeld and whose local blocks can be given out again. It
// never comes before NextOutcome has handed out that outcome.
func (m *Machine) NextBack() (token uint64, ok bool) {
	if m.backs.n == 0 {
		return 0, false
	}
	i := m.backs.items[m.backs.head]
	j := &m.jobs[i]
	if !j.told {
		return 0, false
	}
	m.backs.pop()
	j.backTold = true
	token = j.token
	m.freeIfOver(i)
	return token, true
}
