package log

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Distances between lines about one trouble that goes on.
const (
	paceFirst = every            // after the first line
	paceMost  = 10 * time.Minute // each one is twice the one before, up to this
	paceQuiet = 2 * time.Minute  // what was not there for so long is news: longer than anybody waits before he tries again
)

// Pace spaces the lines about one trouble that goes on, or comes again and again, and of which the next one would say nothing new: the first
// is due at once, another one 10 s later, then 20, and so on up to 10 minutes. The zero value is trouble that has not been yet.
//
// Threads: one.
// Memory: none.
type Pace struct {
	seen, next clock.Instant
	wait       time.Duration
}

// Due is asked when the trouble has come, and reports that it is to be said now. What is not, who asks keeps for the next line, or drops.
func (p *Pace) Due(now clock.Instant) bool {
	if p.wait == 0 || p.quiet(now) {
		*p = Pace{next: now}
	}
	p.seen = now
	return now >= p.next && p.say(now)
}

// Kept is asked about what Due has kept, when nothing more has come, and reports that it is to be said now: its distance is over, or the
// trouble is. It is no trouble by itself: what comes after two minutes of quiet is news, whatever was said meanwhile.
func (p *Pace) Kept(now clock.Instant) bool {
	return (now >= p.next || p.quiet(now)) && p.say(now)
}

// Look is Due where the trouble has come since who asks looked last, else Kept.
func (p *Pace) Look(came bool, now clock.Instant) bool {
	if came {
		return p.Due(now)
	}
	return p.Kept(now)
}

func (p *Pace) quiet(now clock.Instant) bool { return now.Sub(p.seen) > paceQuiet }

func (p *Pace) say(now clock.Instant) bool {
	p.wait = min(max(2*p.wait, paceFirst), paceMost)
	p.next = now.Add(p.wait)
	return true
}
