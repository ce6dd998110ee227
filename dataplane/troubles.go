package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// troublesStepMax bounds the engines that a step looks at.
const troublesStepMax = 64

// tellTroubles tells the host of engines that fail here, and that they no longer do. It knows by itself only of connections that break.
func (l *Link) tellTroubles(now clock.Instant) {
	places := min(l.p.Tracker.EnginePlaces(), len(l.engines))
	if mended := l.p.Tracker.Mended(); mended != l.lookedAt || l.p.Alive() > 0 {
		l.lookedAt, l.lookLeft = mended, places
	}
	l.lookLeft = min(l.lookLeft, places)
	for range min(troublesStepMax, l.lookLeft) { // the rest in the next step
		l.lookAt %= places
		if !l.tellTrouble(&l.engines[l.lookAt], now) {
			return
		}
		l.lookAt++
		l.lookLeft--
	}
}

func (l *Link) tellTrouble(k *engineTold, now clock.Instant) bool {
	if k.handle == 0 {
		return true
	}
	since := l.p.Tracker.Trouble(k.handle)
	if since == k.ailing && !k.retell {
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
	k.ailing, k.retell = since, false
	l.Counters.Told++
	return true
}
