package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// badReadsMax is how many reads from an engine may end badly in a row before the engine counts as failing. One or two may
// be a reset; a NIC that cannot reach a GPU answers heartbeats and fails every read.
const badReadsMax = 3

// judge notes how a read from an engine ended. Only ends that say something of the way to it count.
func (e *engine) judge(status uint8, now clock.Instant) {
	switch status {
	case record.ReadOK, record.ReadStale: // the bytes came
		e.badReads = 0
	case record.ReadFailed, record.ReadTimeout:
		if e.badReads++; e.badReads == 1 {
			e.badSince = now
		}
	}
}

// missedFor is how long an engine that fails counts as wanted after the last request that ended there meanwhile: longer than alerts wait, since
// the requests themselves are told as gone, and end, soon after one lease duration.
const missedFor = 2 * time.Minute

// Wanted tells whether anybody misses an engine that fails: requests are tracked there, or one ended there while it failed, or was lost
// with it. One that was closed in order is missed by nobody, and known until its reader forgets it.
func Wanted(tracked int, missedAt, now clock.Instant) bool {
	return tracked > 0 || missedAt != 0 && now.Sub(missedAt) < missedFor
}

// parted notes that n requests have left an engine, by their own will or lost with it.
func (t *Tracker) parted(e *engine, n int, lost bool, now clock.Instant) {
	e.requests -= n
	if _, failing := t.failingSince(e); n > 0 && (lost || failing) {
		e.missedAt = now
	}
}

// failingSince is when an engine's trouble began; false: it has none that lasts. An engine that is not connected, or not heard, has
// an interval to mend it.
func (t *Tracker) failingSince(e *engine) (since clock.Instant, failing bool) {
	switch e.state {
	case Absent, Removing:
		return 0, false
	}
	since = e.downAt() // it stays while the agent of a dead engine is loaded again and again
	if off := e.offAt; off != 0 && (since == 0 || off < since) {
		since = off
	}
	if failing = since != 0 && t.now.Sub(since) >= t.interval(e); !failing {
		since = t.now
	}
	if e.badReads >= badReadsMax {
		return min(since, e.badSince), true
	}
	return since, failing
}
