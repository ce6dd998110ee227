package heartbeat

import "github.com/kvlease/kvlease/dataplane/clock"

// The time guard of stock peers: they have no fence, so a read is started and accepted only while an unbroken chain of
// heartbeats says that the lease stands. It is a filter and not a proof: what it cannot see (a longer hand-over, a heartbeat
// lost on the way, a paused machine) is in the limits.

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
		return r.breaksSeen == e.breaks && now.Before(r.lastBeat.Add(tm.extension-tm.margin))
	}
	return now.Before(r.arrival.Add(tm.duration - t.cfg.HandoverMax - tm.margin))
}
