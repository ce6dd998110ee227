package lease

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
)

// Times are the distributions that a table keeps.
type Times struct {
	Slack     histogram.Histogram // time that a renewal found left, 0 of one between the two looks; of a stock reader by its own heartbeats
	StallGap  histogram.Histogram // gaps between steps longer than StallGap: see SayGap
	Life      histogram.Histogram // of leases, from the grant to the end
	DeathFree histogram.Histogram // from the last heartbeat of a reader that is dead to each end that this brought
}

// slackRun gathers the renewals of one message. Leases that were renewed together have one deadline, so most of them cost a comparison.
type slackRun struct {
	past  uint64 // units: now
	at    uint64 // units: the deadline of the last n
	n     uint64
	least uint64 // units
	named bool   // a lease or an expected request was named
}

func newSlackRun(now clock.Instant) slackRun {
	return slackRun{past: unitsPast(now), at: noUnits, least: noUnits}
}

// slack goes on to a renewal with another deadline than those before it.
func (t *Table) slack(run *slackRun, at uint64) {
	if run.n > 0 {
		left := run.at - min(run.at, run.past)
		run.least = min(run.least, left)
		t.traced.slack = min(t.traced.slack, time.Duration(left<<unitShift))
		t.Times.Slack.ObserveN(time.Duration(left<<unitShift), run.n)
	}
	run.at, run.n, run.named = at, 1, true
}

// until is the end that the grant and native heartbeats give a held lease, 0 once it was looked at.
func (h *hot) until() uint64 {
	if h.is(isDue | isNoted) {
		return h.beat()
	}
	return max(h.end(), h.beat())
}

// heard closes a message for the account of who sent it.
func (t *Table) heard(p *party, run *slackRun, now clock.Instant) {
	if run.n > 0 {
		t.slack(run, noUnits)
	}
	if !run.named {
		return // whoever names nothing is nobody
	}
	if p.at == NobodysAccount {
		p.at = OthersAccount
	}
	a := &t.accounts.all[p.at]
	a.used, a.LastBeat = now, now
	a.least[0] = min(a.least[0], run.least)
}
