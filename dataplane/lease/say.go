package lease

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
)

// say says something about a lease or an expectation.
func (t *Table) say(k log.Kind, s uint32, now clock.Instant, a, b uint64) {
	if t.cfg.Log != nil {
		t.cfg.Log.Put(k, now, log.Entry{Request: t.long.id(&t.mem.Slots[s]), A: a, B: b})
	}
}

// sayExpired says of a lease that expired whether anybody had come for it, and who. Its account has not been left yet.
func (t *Table) sayExpired(s uint32, k *hot, now clock.Instant) {
	if t.cfg.Log == nil || k.is(isFixed) { // nobody has to come for a fixed one
		return
	}
	slot, held := &t.mem.Slots[s], max(now.Sub(clock.Instant(t.granted[s])), 0)
	e := log.Entry{Request: t.long.id(slot), A: uint64(held), B: uint64(slot.Blocks)}
	at := k.account()
	if at < firstAccount || t.accounts.all[at].LastBeat == 0 {
		if at == NobodysAccount && !k.is(namedStock) {
			t.cfg.Log.Put(log.LeaseUnread, now, e)
			return
		}
		e.B = uint64(held) // one of the many without an account
	} else {
		a := &t.accounts.all[at]
		e.Hash, e.B = a.Engine, uint64(max(now.Sub(a.LastBeat), time.Duration(0)))
		e.Agent = t.accounts.names[at]
	}
	t.cfg.Log.Put(log.LeaseExpired, now, e)
}
