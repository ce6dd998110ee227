package sim

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

type report struct {
	engine, epoch uint64
	rank          uint32
	agent         string
	n             uint32
}

// heard takes a message that the plane takes now.
func (l *ledger) heard(agent, body []byte) {
	now := l.r.now()
	if len(body) > 0 && body[0] == wire.NativeMagic {
		l.native(body, now)
		return
	}
	if l.r.life.place.spec.StockOff {
		return
	}
	msg, st := wire.ParseStock(body)
	if st != wire.OK {
		return
	}
	switch msg.Kind {
	case wire.Heartbeat:
		ids := wire.NewIDs(msg.Body, wire.RunMax)
		any := false
		for id, _, ok := ids.Next(); ok; id, _, ok = ids.Next() {
			if e := l.byID(string(id)); e != nil {
				any = true
				e.stockBeat(l, now)
			}
		}
		if any || len(msg.ID) == 0 {
			return
		}
		fallthrough
	case wire.Completion:
		e := l.byID(string(msg.ID))
		if e == nil || msg.N == 0 {
			return
		}
		e.named = true
		l.loosen(e, now)
		if e.native { // one of ours has named it: it ends nothing (L12)
			return
		}
		e.report(report{agent: string(agent), n: uint32(msg.N)}, true)
	}
}

// byID gives the use that a stock message names: granted or expected, and not ended.
func (l *ledger) byID(id string) *entry {
	s, ok := l.ids[id]
	if !ok {
		return nil
	}
	e := &l.slots[s]
	if use, bits := l.word(s); e.id != id || use != e.use || bits != record.Granted && bits != record.Expected {
		return nil
	}
	return e
}

func (e *entry) stockBeat(l *ledger, now clock.Instant) {
	e.named = true
	l.loosen(e, now)
	if !e.fixed {
		e.beat(l, now, now.Add(l.extension()), true)
	}
}

func (e *entry) beat(l *ledger, now, until clock.Instant, stock bool) {
	if e.passed != 0 { // it may have had its first look
		e.second, e.mark = now.Add(l.settle(e)), 0
	}
	e.least, e.most = max(e.least, until), max(e.most, until)
	if until >= e.lastBeat {
		e.lastBeat, e.stock = until, stock
	}
	e.anyStock = e.anyStock || stock
	e.passed, e.looked, e.over = 0, 0, 0
}

func (l *ledger) native(body []byte, now clock.Instant) {
	h, entries, st := wire.ParseNative(body)
	if st != wire.OK || h.Kind == wire.Hello || h.Kind == wire.Leaving {
		return
	}
	for i := range int(h.Count) {
		slot, g, key := wire.Entry(entries, i)
		if int(slot) >= len(l.slots) || lease.Key(l.r.secret, slot, g) != key {
			continue
		}
		use, bits := l.word(slot)
		if use != g || bits != record.Granted && bits != record.Expected && bits != record.Free {
			continue
		}
		e := &l.slots[slot]
		if e.use != g {
			continue
		}
		who := h.Engine ^ mix64(h.Epoch)
		if e.first != 0 && e.first != who {
			e.shared = true
		}
		e.native, e.first = true, who
		l.loosen(e, now)
		switch h.Kind {
		case wire.Renew:
			if !e.fixed {
				e.beat(l, now, now.Add(l.extension()), false)
			}
		case wire.Complete:
			e.report(report{engine: h.Engine, epoch: h.Epoch, rank: h.Rank, n: uint32(h.Readers)}, false)
		case wire.Release:
			switch {
			case bits != record.Granted:
				e.kept = true
			case e.shared || e.loose != 0:
				e.first = 0 // it has no say any more
			default:
				e.fair = true
			}
		}
	}
}

// report adds a reader's report (L5).
func (e *entry) report(in report, stock bool) {
	for i := range e.reports {
		k := &e.reports[i]
		if k.engine == in.engine && k.epoch == in.epoch && k.rank == in.rank && k.agent == in.agent {
			k.n = max(k.n, in.n)
			in.n = 0
		}
	}
	if in.n != 0 {
		e.reports = append(e.reports, in)
	}
	have, want := uint32(0), uint32(0)
	for _, k := range e.reports {
		if stock && k.agent != "" || !stock && k.agent == "" && k.engine == in.engine && k.epoch == in.epoch {
			have++
			want = max(want, k.n)
		}
	}
	if have > 0 && have >= want {
		e.complete = true
	}
}

// gone is the word of a reader's death wire.
func (l *ledger) gone(engine, epoch uint64) {
	for i := range l.slots {
		e := &l.slots[i]
		if _, bits := l.word(uint32(i)); bits != record.Granted || e.first != engine^mix64(epoch) {
			continue
		}
		if e.shared || e.loose != 0 {
			e.first = 0
		} else {
			e.fair = true
		}
	}
}

// loosen follows L12's bit: set until a native message names the lease, and for good by a stock one.
func (l *ledger) loosen(e *entry, now clock.Instant) {
	switch {
	case !e.named && (e.native || l.r.life.place.spec.AllPeersCheck):
		e.loose = 0
	case e.loose == 0:
		e.loose = now
	}
}
