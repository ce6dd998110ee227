package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// troubles is the walk over the engines that looks for trouble to tell.
type troubles struct {
	at     int    // next engine
	left   int    // engines until all have been looked at since one may have come into trouble, or out of it
	mended uint64 // heartbeat.Tracker.Mended when that was
}

// troublesStepMax bounds the engines that a step looks at.
const troublesStepMax = 64

// tellTroubles tells the host of engines that fail here, and that they no longer do. It knows by itself only of connections that break.
func (l *Link) tellTroubles(now clock.Instant) {
	w, places := &l.troubles, min(l.p.Tracker.EnginePlaces(), len(l.engines))
	if mended := l.p.Tracker.Mended(); mended != w.mended || l.p.Alive() > 0 {
		w.mended, w.left = mended, places
	}
	w.left = min(w.left, places)
	for range min(troublesStepMax, w.left) { // the rest in the next step
		w.at %= places
		if !l.tellTrouble(&l.engines[w.at], now) {
			return
		}
		w.at++
		w.left--
	}
}

// tellTrouble tells of one engine what has changed since it was told last. It reports false if the stream has no room.
func (l *Link) tellTrouble(k *engineTold, now clock.Instant) bool {
	if k.handle == 0 {
		return true
	}
	since := l.p.Tracker.Trouble(k.handle)
	if since == k.trouble && !k.retell {
		return true
	}
	rec := l.carrier.Reserve(record.TagTrouble, record.TroubleLen)
	if rec == nil {
		l.Counters.ToldHeld++
		return false
	}
	t := record.Trouble{Engine: k.handle}
	if since != 0 {
		t.ForNs = uint64(max(now.Sub(since), 1))
	}
	record.PutTrouble(rec, t)
	k.trouble, k.retell = since, false
	l.Counters.Told++
	return true
}
