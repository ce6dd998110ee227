package heartbeat

import (
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
