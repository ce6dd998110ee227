package heartbeat

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// A fixed lease ends at a point in time that its owner has named in its own clock, and nothing renews it: the second turn,
// where the engine that decoded keeps the blocks for the one that will prefill. Peers of ours are asked for their rows as
// well; of a stock owner the clock is all there is.

// fixedStepMax bounds the ends that one step looks at.
const fixedStepMax = 256

// fixedEnd is when a lease must be taken for over: its end, less what the conversion may be wrong by, less the margin. Not
// known without an offset.
func (t *Tracker) fixedEnd(r *remote) (clock.Instant, bool) {
	e := &t.engines[r.engine]
	end := r.end
	if end == 0 {
		at, bound, ok := e.offset.Local(r.expires)
		if !ok || r.expires == 0 {
			return 0, false
		}
		end = at.Add(-bound)
	}
	margin := t.own.margin
	if e.facts != nil {
		margin = e.facts.times.margin
	}
	return end.Add(-margin), true
}

// aimFixed sets the time at which a lease is over.
func (t *Tracker) aimFixed(m uint32) {
	if end, known := t.fixedEnd(&t.remotes.all[m]); known {
		t.fixed.Set(m, end)
		return
	}
	t.fixed.Set(m, clock.Never)
}

// takeEnd takes what a host says of a fixed lease's end. What is left counts from when the request was tracked: the record may
// have waited for a rank that stood still.
func (m *remote) takeEnd(req *record.TrackReq, now clock.Instant) {
	m.expires = clock.RemoteInstant(req.ExpiresNs)
	if req.LeftNs != 0 {
		from := now
		if said := clock.Instant(req.SaidNs); said > 0 && said < now {
			from = said
		}
		m.end = from.Add(time.Duration(min(req.LeftNs, 1<<62)))
	}
}

// stepFixed ends what must be over. Its owner is told all the same when nobody uses it any more: it may still hold it.
func (t *Tracker) stepFixed(now clock.Instant) {
	for range fixedStepMax { // the rest waits for the next step; its reads are refused by its end already
		m, at := t.fixed.First()
		if now.Before(at) {
			return
		}
		if end, known := t.fixedEnd(&t.remotes.all[m]); !known || now.Before(end) { // the offset has changed
			t.aimFixed(m)
			continue
		}
		t.counters.FixedOver++
		t.remotes.all[m].byClock = true
		t.leaseGone(m) // out of the list, and out of here
	}
}
