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
	m.leftNs = float64(m.cfg.PostBudget)
	m.posted = false
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
	if m.takeEnds(from, 0, &taken) {
		m.takeEnds(len(m.live)-1, from+1, &taken)
	}
}

// takeEnds applies the ends that m.ends tells of the places from to to. It reports false once the step has had its number
// of them; the next one goes on there. Downwards: an end moves the last transfer into its place, which has been looked at
// unless the walk began below it; then it is seen by the next step.
func (m *Machine) takeEnds(from, to int, taken *int) bool {
	for i := from; i >= to; i-- {
		st := m.ends[i]
		if st == transport.Pending {
			continue
		}
		if *taken == m.cfg.EndsStepMax {
			m.cutAt = int32(i)
			m.Counters.EndsCut++
			return false
		}
		*taken++
		m.ended(m.liveOf[i], st)
		m.ends[i] = m.ends[len(m.live)] // of the transfer that moved here
	}
	return true
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
