package clock

import "time"

// Sample is one round trip to a peer that answered with its own time: the stamp was taken between Sent and Received.
type Sample struct {
	Sent, Received Instant
	Stamp          RemoteInstant
}

// Offset converts a peer's points in time to ours, with a bound on the error. The zero value knows nothing.
//
// The bound is half the round trip of the sample in use, and what two clocks drift apart between that sample and the
// point that is converted. A peer that was suspended shows as a sample that cannot be true together with the one in use
// (Jumped). A jump of our own clocks is the caller's to see (Jump) and to answer with Void.
type Offset struct {
	known bool
	at    Instant       // middle of the sample in use
	ahead int64         // ours minus theirs at that time, ns
	half  time.Duration // half its round trip
}

const (
	// driftPart is the share of a span by which two clocks may come apart in it: 200 ppm, twice what a clock that is kept
	// by NTP may be off, and a little more for the square of it.
	driftPart = 4999
	// stampErr is what a stamp loses on its way through a float64 of seconds.
	stampErr = time.Microsecond
	// roundTripMax is the longest round trip that says anything.
	roundTripMax = 10 * time.Second
	// instantMax is later than any honest clock (73 years after boot), and so early that sums of two stay within 64 bits.
	instantMax = 1 << 61
)

// Ahead gives our time minus theirs at the sample in use; false: nothing is known.
func (o *Offset) Ahead() (time.Duration, bool) { return time.Duration(o.ahead), o.known }

// Verdict is what a sample did to an Offset.
type Verdict uint8

const (
	Worse  Verdict = iota // the sample in use bounds the error more tightly, or this one is of no use
	Better                // this sample is in use now
	Jumped                // the two cannot both be true: this one is in use, and what the other converted is void
)

// Observe takes a sample if it gives a smaller error than the one in use has grown to by then.
func (o *Offset) Observe(s Sample) Verdict {
	if s.Sent < 0 || s.Stamp < 0 || s.Stamp > instantMax || s.Received > instantMax ||
		s.Received < s.Sent || s.Received.Sub(s.Sent) > roundTripMax {
		return Worse
	}
	half := (s.Received.Sub(s.Sent) + 1) / 2
	at := s.Sent.Add(half)
	fresh := Offset{known: true, at: at, ahead: int64(at) - int64(s.Stamp), half: half}
	grown, least := o.ErrorAt(at), fresh.ErrorAt(at)
	switch {
	case !o.known:
		*o = fresh
		return Better
	case time.Duration(fresh.ahead-o.ahead).Abs() > grown+least:
		*o = fresh
		return Jumped
	case least < grown:
		*o = fresh
		return Better
	}
	return Worse
}

// Void forgets the sample: the clocks of this host jumped against each other, or the peer is another process now.
func (o *Offset) Void() { *o = Offset{} }

// Known reports whether there is a sample to convert with.
func (o *Offset) Known() bool { return o.known }

// ErrorAt is the bound on the error of a conversion to about at, in either direction.
func (o *Offset) ErrorAt(at Instant) time.Duration {
	return o.half + stampErr + (at.Sub(o.at).Abs()+o.half)/driftPart + 1
}

// Local converts: the peer's t is within bound of at. ok is false without a sample or for a t that no clock shows.
// A deadline has certainly not passed before at - bound and certainly has after at + bound.
func (o *Offset) Local(t RemoteInstant) (at Instant, bound time.Duration, ok bool) {
	if !o.known || t < 0 || t > instantMax {
		return 0, 0, false
	}
	at = Instant(int64(t) + o.ahead)
	return at, o.ErrorAt(at), true
}
