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

// missedFor is how long an engine counts as wanted after one lease duration since the last request that its trouble ended: longer than alerts
// wait. The duration is what trouble has to last before it counts, and all its requests may have ended in its first moment.
const missedFor = 2 * time.Minute

// Wanted tells whether anybody misses an engine that fails: requests are tracked there, or one was given up there in its trouble, could not
// be read, or was lost with it. One that has withdrawn, asleep or closed, took what was there along on purpose: it is missed by who names it
// afterwards, and known until its reader forgets it.
func Wanted(tracked int, missedAt, now clock.Instant, duration time.Duration) bool {
	return tracked > 0 || missedAt != 0 && now.Sub(missedAt) < duration+missedFor
}

// Missed tells whether the end of a request says that its engine is missed: it could not be read for the way there, or it was given up, or
// lost, after the engine's trouble had begun. Trouble that ends soon is asked about by nobody. status is its read's; read: it had one.
func Missed(read bool, status uint8, trouble bool) bool {
	if read {
		switch status {
		case record.ReadOK, record.ReadStale: // the bytes came
			return false
		case record.ReadFailed, record.ReadTimeout, record.ReadLost: // often the first sign of trouble
			return true
		}
	}
	return trouble
}

// parted notes that n requests have left an engine.
func (t *Tracker) parted(e *engine, n int, missed bool, now clock.Instant) {
	if e.requests -= n; n > 0 && missed {
		e.missedAt = now
	}
}

// trouble is when an engine's trouble began: it is not connected, has failed since it was heard, or is silent. 0: it has none.
func (e *engine) trouble() clock.Instant {
	since := clock.Instant(0)
	for _, at := range [...]clock.Instant{e.downAt(), e.offAt, e.silentSince()} { // downAt stays while a dead agent is loaded again and again
		if at != 0 && (since == 0 || at < since) {
			since = at
		}
	}
	return since
}

// Trouble is since when an engine fails, as its failing gauges count it; 0: it does not, or is not known. Stepping thread.
func (t *Tracker) Trouble(engine uint64) clock.Instant {
	i := t.engineOf(engine)
	if i == none {
		return 0
	}
	since, failing := t.failingSince(&t.engines[i])
	if !failing {
		return 0
	}
	return since
}

// Mended grows when an engine may be out of its trouble, with requests or without. Stepping thread.
func (t *Tracker) Mended() uint64 { return t.mended }

// failingSince is when an engine's trouble began; false: it has none that lasts. An engine that is not connected, or not heard, has
// an interval to mend it. While we sleep none has: it is we who reach nobody.
func (t *Tracker) failingSince(e *engine) (since clock.Instant, failing bool) {
	if t.asleep || e.state == Absent || e.state == Removing {
		return 0, false
	}
	since = e.trouble()
	if failing = since != 0 && t.now.Sub(since) >= t.interval(e); !failing {
		since = t.now
	}
	if e.badReads >= badReadsMax {
		return min(since, e.badSince), true
	}
	return since, failing
}
