package heartbeat

import (
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// hereKind is what may fail at an engine while its connection stands, mostly for a reason of this side. One kind says nothing of the others: rows
// land in host memory while reads of device memory fail.
type hereKind uint8

const (
	hereReads hereKind = iota
	hereRows           // and probes
	hereSends
	hereKinds
)

const (
	// hereMax is how many of a kind may fail here in a row before the connection is made anew: a device that is out of memory for a moment
	// breaks none, and what this side has of an engine that went stale does not fail for ever.
	hereMax = 4
	// hereWaitMost bounds the growing time between two of them, since reads of others over the connection end with it.
	hereWaitMost = 10 * time.Minute
)

// hereRun are failures of a kind in a row.
type hereRun struct {
	n     uint32        // since the connection was made anew last
	since clock.Instant // the first of these
	anew  uint32        // times that it was
	wait  clock.Instant // it is not again before
}

// worked ends the failures of a kind.
func (e *engine) worked(kind hereKind) { e.here[kind] = hereRun{} }

// failedHere takes that something at an engine failed for which its connection is not to blame. If it goes on the connection is made anew, at growing distance,
// as soon as no read over it is in flight, or when one could not be any more.
func (t *Tracker) failedHere(i uint32, kind hereKind, now clock.Instant) {
	e := &t.engines[i]
	h := &e.here[kind]
	if h.n++; h.n == 1 {
		h.since = now
	}
	if h.n < hereMax || now.Before(h.wait) || e.state != Connected {
		return
	}
	if e.reading > 0 && now.Before(h.since.Add(t.cfg.ReadTimeout)) {
		return // also between two parts of theirs
	}
	for k := range e.links {
		if pending, _ := t.reads.InFlight(e.links[k].peer); pending > 0 && now.Before(h.since.Add(t.cfg.ReadTimeout)) {
			return
		}
	}
	wait := e.facts.times.interval
	for n := uint32(0); n < h.anew && wait < hereWaitMost; n++ {
		wait *= 2
	}
	h.n, h.anew, h.wait = 0, h.anew+1, now.Add(min(wait, max(hereWaitMost, e.facts.times.interval)))
	t.counters.MadeAnew++
	t.makeAnew(i, now)
}

// LoadAgain has all agents that are loaded dropped and loaded again: what they were loaded with is not what is there now. Off the step, in its
// place; no read is open.
func (t *Tracker) LoadAgain(now clock.Instant) {
	for i := range uint32(t.places) {
		e := &t.engines[i]
		if e.state == Absent || e.state == Removing || e.walk != walkNone || e.want.taken { // they are given up anyway
			continue
		}
		if slices.ContainsFunc(e.links, func(l link) bool { return l.peer != 0 && !l.broken }) {
			t.makeAnew(i, now)
		}
	}
}

// makeAnew has an engine's agents dropped and loaded again, wanted by a request or not. It has not failed: nobody is told, and its trouble, if
// it turns out to have some, begins with the first load that fails.
func (t *Tracker) makeAnew(i uint32, now clock.Instant) {
	e := &t.engines[i]
	e.breaks++
	for k := range e.links {
		if l := &e.links[k]; l.peer != 0 && !l.broken {
			l.broken, l.brokenAt = true, now
		}
	}
	connected := e.state == Connected
	if t.setState(i, Broken); connected {
		e.offAt = 0
	}
	e.anew = true
	t.stopRounds(i)
	t.ends.Set(i, clock.Never)
	t.loads.Set(i, max(now, e.healAt))
}
