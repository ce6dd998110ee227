package sim

import (
	"slices"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// What must happen, beside what may not: an end that somebody may ask for comes when it was asked for, what had arrived is applied
// before a lease expires, and readers without a fence have their time when a core breaks.

// atEnd notes the end of a lease, once.
func (l *ledger) atEnd(e *entry, now clock.Instant) {
	if e.ended != 0 {
		return
	}
	e.ended = now
	e.missed = e.passed != 0 && slices.ContainsFunc(l.r.tap.left, func(m tapped) bool {
		return m.at < e.passed.Add(settleWait-unit) && l.extends(m.body, e)
	})
}

// extends reports that a message that has not been applied would have extended a lease.
func (l *ledger) extends(body []byte, e *entry) bool {
	if e.fixed {
		return false
	}
	if h, entries, st := wire.ParseNative(body); st == wire.OK {
		for i := range int(h.Count) {
			slot, g, key := wire.Entry(entries, i)
			if h.Kind == wire.Renew && int(slot) < len(l.slots) && (&l.slots[slot] == e || &l.past[slot] == e) && g == e.use && lease.Key(l.r.secret, slot, g) == key {
				return true
			}
		}
		return false
	}
	msg, st := wire.ParseStock(body)
	if st != wire.OK || msg.Kind != wire.Heartbeat || l.r.life.place.spec.StockOff || e.id == "" {
		return false
	}
	ids := wire.NewIDs(msg.Body, wire.RunMax)
	for id, _, ok := ids.Next(); ok; id, _, ok = ids.Next() {
		if string(id) == e.id {
			return true
		}
	}
	return false
}

// asWanted is called behind each step with a lease that is held: what its engine or its last reader wanted, and may have, is carried
// out in the step that hears of it. How long a carrier takes to a rank is not known here.
func (l *ledger) asWanted(s uint32, e *entry) {
	if l.r.life.host != nil {
		return
	}
	g := l.r.life.app.leases[record.NewHandle(s, e.use)]
	if g == nil || !(e.fair || g.cancel || g.revoke && e.loose == 0) {
		e.wanted = 0
		return
	}
	if e.wanted++; e.wanted == 3 {
		l.broke("L12", e, "it was released (%v), cancelled (%v) or revoked (%v), nobody reads who does not check the fence, and it is held", e.fair, g.cancel, g.revoke)
	}
}

// brokenFreed holds the end of a lease of a broken core against the time that readers without a fence have (L12).
func (l *ledger) brokenFreed(g *grant) {
	at := l.r.brokeAt // of its own, or when it heard that its host's core is broken: a reader may have renewed until then
	s := g.handle.Slot()
	e := &l.slots[s]
	if h := l.r.life.host; h != nil {
		if !l.r.mapped { // nobody has known where its rows are: it joined a host that was broken already
			at = 0
		}
		if h.poisoned {
			at = max(at, h.brokeAt)
		}
	} else if e.use != g.handle.Use() || e.ended != 0 || e.loose == 0 || e.state != record.Granted {
		return
	}
	if at == 0 {
		return
	}
	if waited := l.w.now.Sub(at); waited < l.r.life.place.lease()*99/100 {
		l.broke("L12", e, "told as ended %v after its core broke, and somebody may read who does not check the fence", waited)
	}
}
