// Package clock holds the words for time. Nothing in it reads a clock: the caller of a step does.
package clock

import "time"

// Instant is a point in time of this host: nanoseconds of CLOCK_BOOTTIME, so that a suspend counts.
type Instant int64

// Never is later than every Instant that a step sees.
const Never Instant = 1<<63 - 1

// Add gives the Instant d later, or Never if that does not fit.
func (t Instant) Add(d time.Duration) Instant {
	s := t + Instant(d)
	if d > 0 && s < t {
		return Never
	}
	return s
}

// Sub gives the span from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Before reports t < u.
func (t Instant) Before(u Instant) bool { return t < u }

// RemoteInstant is a point in time of a peer: its CLOCK_MONOTONIC, as vLLM's perf_counter is.
type RemoteInstant int64
