package heartbeat

import "github.com/kvlease/kvlease/dataplane/clock"

// The time guard of stock peers: they have no fence, so a read is started and accepted only while an unbroken chain of
// heartbeats says that the lease stands. It is a filter and not a proof: what it cannot see (a longer hand-over, a heartbeat
// lost on the way, a paused machine) is in the limits. Where an owner's software answers one-sided reads, a pause of its
// process shows: see silent.

// chain takes a heartbeat that goes out now.
func (t *Tracker) chain(e *engine, r *remote, now clock.Instant) {
	switch {
	case !r.beaten:
		r.beaten = true
		r.breaksSeen = e.breaks // from now on each send error and reconnect breaks the chain for good
		r.unproven = r.unproven || r.arrival.Add(e.facts.times.duration-t.cfg.HandoverMax).Before(now)
	case now.Sub(r.lastBeat) >= e.facts.times.extension-e.facts.times.margin:
		r.unproven = true
	}
	r.lastBeat = now
}

// guarded reports that a read may be started or accepted now.
func (t *Tracker) guarded(e *engine, r *remote, now clock.Instant) bool {
	tm := &e.facts.times
	switch {
	case r.fixed:
		end, known := t.fixedEnd(r)
		return known && now.Before(end)
	case r.unproven:
		return false
	case r.beaten:
		return r.breaksSeen == e.breaks && !e.waits(t.stepped) && now.Before(r.lastBeat.Add(tm.extension-tm.margin))
	}
	return now.Before(r.arrival.Add(tm.duration - t.cfg.HandoverMax - tm.margin))
}

// silent reports that a probe took so long that its owner may have been paused for longer than the leases that were beaten
// for meanwhile: when it goes on it may end them before it takes in what has arrived (S29). The last heartbeat that it has
// taken in is at most one interval older than the pause, and the probe at most one younger. stepped is the step before the
// present one, in which the probe had not ended: a pause of ours is not its owner's. A probe that failed for a reason of this side,
// or could not be posted, has shown nothing: the time goes on from there until one has ended.
func (e *engine) silent(l *link, stepped clock.Instant) bool {
	tm := &e.facts.times
	return stepped.Sub(l.probeAt) >= max(tm.extension-2*tm.interval-tm.margin, tm.margin)
}

// waits reports that such a probe is out, or due.
func (e *engine) waits(stepped clock.Instant) bool {
	for k := range e.links {
		if l := &e.links[k]; l.probeDue && e.silent(l, stepped) {
			return true
		}
	}
	return false
}
