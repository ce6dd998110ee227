package dataplane

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/submit"
)

// take applies at most most records of the host.
func (l *Link) take(most int, now clock.Instant) {
	for {
		if !l.maps.ready() { // the loader has them all: what is behind a map waits with it
			break
		}
		if most == 0 {
			if l.carrier.Pending() {
				l.in.RecordsCut++
			}
			break
		}
		tag, rec, ok := l.carrier.Next()
		if !ok {
			break
		}
		most--
		l.in.Records++
		if !l.apply(tag, rec, now) {
			l.in.RecordsBad++
		}
	}
	l.carrier.Release()
	l.look()
	if !l.hostLost && l.carrier.State() == stream.Lost && !l.carrier.Pending() {
		l.hostLost = true
	}
	if l.hostLost {
		l.lost(now)
	}
}

// apply gives a record of the host to what it is for.
func (l *Link) apply(tag uint32, rec []byte, now clock.Instant) bool {
	switch tag {
	case record.TagEngine:
		e, id, ok := record.AsEngine(rec)
		if ok {
			l.engine(e, id)
		}
		return ok
	case record.TagEngineGone:
		h, ok := record.AsEngineGone(rec)
		if i := record.Handle(h).Slot(); ok && int(i) < len(l.engines) && l.engines[i].handle == h {
			l.engines[i].handle, l.engines[i].kind = 0, 0
			_ = l.p.Tracker.RemoveEngine(h) // stale: it is gone
		}
		return ok
	case record.TagBlob:
		b, piece, ok := record.AsBlob(rec)
		if ok {
			l.piece(b, piece)
		}
		return ok
	case record.TagPause:
		left, ok := record.AsPause(rec)
		if ok {
			atomic.StoreUint64(&l.mem.Control.PauseUntilNs, uint64(now.Add(time.Duration(min(left, 1<<62)))))
		}
		return ok
	case record.TagEra:
		e, ok := record.AsEra(rec)
		if ok && (!l.eraKnown || e.Era > l.era.Era) {
			l.era, l.eraKnown = e, true
			l.state.Era = e.Era
			if l.cfg.Era != nil {
				l.cfg.Era(e)
			}
		}
		return ok
	case record.TagFull:
		f, ok := record.AsFull(rec)
		if ok {
			l.fullMark(f)
		}
		return ok
	case record.TagDrain:
		_, ok := record.AsDrain(rec)
		if ok && !l.draining {
			l.draining = true
			l.p.Leases.Drain()
			l.p.Tracker.Drain(now)
		}
		return ok
	case record.TagPoison:
		l.poison(now)
		return true
	case record.TagHostLeaves:
		l.hostLeaves = true
		return true
	case record.TagReaderDead:
		d, ok := record.AsReaderDead(rec)
		if ok {
			l.p.Leases.EngineGone(d.Reader, d.Epoch, now)
		}
		return ok
	}
	return submit.Apply((*fromHost)(l), tag, rec, now)
}

// fullMark begins or ends a full state. What was told to the host before may be lost: state and map are told again, and the
// ends of what the full state names are, as it names them.
func (l *Link) fullMark(f record.Full) {
	switch f.Mark {
	case record.FullStart:
		l.full, l.stateDue = f.Incarnation, true
		l.own.at, l.own.done = 0, false
	case record.FullEnd:
		if f.Incarnation == l.full {
			l.Counters.FullStates++
			l.state.Incarnation = f.Incarnation
			l.forgetEngines()
		}
		l.full = 0
	}
}

// forgetEngines removes the engines that the full state did not name. Leases and requests that it did not name are none: the host
// keeps each until it has heard its end from here; an expectation gives way to the next use of its slot.
func (l *Link) forgetEngines() {
	for i := range l.engines {
		if k := &l.engines[i]; k.handle != 0 && k.named != l.full {
			_ = l.p.Tracker.RemoveEngine(k.handle)
			k.handle, k.kind = 0, 0
		}
	}
}

// poison closes every row for ever: the host is broken, and will tell the ends itself.
func (l *Link) poison(now clock.Instant) {
	ctl := l.mem.Control
	if atomic.LoadUint32(&ctl.Poisoned) != 0 {
		return
	}
	l.p.Leases.FenceAll()
	ctl.PoisonNs = uint64(now)
	atomic.StoreUint32(&ctl.Poisoned, 1)
	if l.p.out.notify != nil {
		l.p.out.notify()
	}
	l.Poisoned()
}

// engine takes a remote engine under the host's handle.
func (l *Link) engine(e record.Engine, id []byte) {
	i := record.Handle(e.Engine).Slot()
	if e.Engine>>32 == 0 || int(i) >= len(l.engines) {
		l.Counters.Misfits++
		return
	}
	k := &l.engines[i]
	k.named = l.full
	switch {
	case k.handle == e.Engine: // of a full state: where it stands may have been lost
		k.retell, l.troubles.left = true, len(l.engines)
		if k.kind != 0 {
			list.Push(&l.states, l.engines, i, (*engineTold).ofQueue)
		}
		return
	case k.handle > e.Engine: // the handles of a place grow
		l.Counters.Repeated++
		return
	case k.handle != 0:
		_ = l.p.Tracker.RemoveEngine(k.handle)
	}
	k.handle, k.user, k.kind, k.trouble, k.retell = e.Engine, e.User, 0, 0, false
	if err := l.p.Tracker.AddEngineAt(e.Engine, heartbeat.EngineDesc{ID: string(id), TP: e.TP, PP: e.PP, User: e.User}); err != nil {
		l.Counters.EnginesBad++
	}
}

// fromHost is a link as the sink of the submission records among the host's.
type fromHost Link

// slotAt gives the use and the bits of a lease slot's state word; false: the handle names no slot.
func (l *fromHost) slotAt(h record.Handle) (use, bits uint32, ok bool) {
	if h>>32 == 0 || int(h.Slot()) >= len(l.mem.Slots) || h.Use() == record.None {
		l.Counters.Misfits++
		return 0, 0, false
	}
	state := atomic.LoadUint64(&l.mem.Slots[h.Slot()].State)
	return uint32(state >> 32), uint32(state) & record.Mask, true
}

// giveWay ends an expectation that a newer use of its slot has overtaken: its cancel was lost.
func (l *fromHost) giveWay(slot, use, bits, newer uint32, now clock.Instant) {
	if bits == record.Expected && use < newer {
		l.Counters.OlderUses++
		l.p.Leases.Cancel(record.NewHandle(slot, use), now)
	}
}

func (l *fromHost) Expect(e *record.Expect, id []byte, now clock.Instant) {
	h := e.Lease
	use, bits, ok := l.slotAt(h)
	switch {
	case !ok:
		return
	case use > h.Use() || use == h.Use() && bits != record.Free:
		l.Counters.Repeated++
		return
	}
	l.giveWay(h.Slot(), use, bits, h.Use(), now)
	l.p.Leases.Expect(h, l.id[:copy(l.id[:], id)], now)
}

func (l *fromHost) Grant(g *record.Grant, id []byte, now clock.Instant) {
	l.g = *g
	h := l.g.Lease
	use, bits, ok := l.slotAt(h)
	switch {
	case !ok:
		return
	case !l.eraKnown:
		l.Counters.NoEra++
		return
	case use > h.Use():
		l.endAgain(&l.g)
		return
	case use == h.Use() && (bits == record.Granted || bits == record.Ended):
		l.Counters.Repeated++
		return
	}
	l.giveWay(h.Slot(), use, bits, h.Use(), now)
	l.p.drained(l.g.SaidNs, now)
	if l.p.Leases.Grant(&l.g, l.id[:copy(l.id[:], id)], now) == lease.Misfit {
		l.Counters.Misfits++
	}
}

// endAgain answers a grant that has ended here already.
func (l *fromHost) endAgain(g *record.Grant) {
	slot := g.Lease.Slot()
	k := &l.leases[slot]
	if k.reason == 0 || k.use < g.Lease.Use() { // it ended without a word: memory was unregistered before the grant came
		*k = leaseTold{use: g.Lease.Use(), user: g.User, blocks: g.Blocks, reason: record.FreedClosed, Links: k.Links}
	}
	if k.use == g.Lease.Use() {
		list.Push(&l.again, l.leases, slot, (*leaseTold).ofQueue)
	}
}

// open reports that a handle names the expectation or the lease that its slot holds.
func open(use, bits uint32, h record.Handle) bool {
	return use == h.Use() && (bits == record.Expected || bits == record.Granted)
}

func (l *fromHost) Cancel(h record.Handle, now clock.Instant) {
	use, bits, ok := l.slotAt(h)
	if !ok {
		return
	}
	l.giveWay(h.Slot(), use, bits, h.Use(), now) // a full state names the last use of a slot only
	if open(use, bits, h) {
		l.p.Leases.Cancel(h, now)
	}
}

func (l *fromHost) Revoke(h record.Handle, now clock.Instant) {
	if use, bits, ok := l.slotAt(h); ok && open(use, bits, h) {
		l.p.Leases.Revoke(h, now)
	}
}

func (l *fromHost) Pressure(blocks uint32, now clock.Instant) { l.p.Leases.Pressure(blocks, now) }

func (l *fromHost) trackAt(h record.Handle) *trackTold {
	if h>>32 == 0 || int(h.Slot()) >= len(l.tracks) || h.Use() == record.None {
		l.Counters.Misfits++
		return nil
	}
	return &l.tracks[h.Slot()]
}

func (l *fromHost) Track(t *record.TrackReq, remote, local []byte, now clock.Instant) {
	l.t = *t
	h := l.t.Track
	e := l.trackAt(h)
	switch {
	case e == nil:
		return
	case (e.live || e.is != 0) && e.use == h.Use():
		l.Counters.Repeated++
		if e.due |= e.is; e.due != 0 {
			list.Push(&l.news, l.tracks, h.Slot(), (*trackTold).ofQueue)
		}
		return
	case e.live || e.is != 0 && e.use > h.Use():
		l.Counters.Misfits++ // an old one, or a slot whose former use has not ended here (L11)
		return
	}
	*e = trackTold{use: h.Use(), user: l.t.User, live: true, Links: e.Links}
	atomic.StoreUint64(&l.mem.Tracks[h.Slot()].State, record.State(h.Use(), record.Tracked))
	l.t.RemoteLen, l.t.LocalLen = uint16(len(remote)), uint16(len(local))
	l.p.drained(l.t.SaidNs, now)
	l.p.Tracker.Track(&l.t, l.id[:copy(l.id[:], remote)], l.id2[:copy(l.id2[:], local)], now)
}

func (l *fromHost) Untrack(h record.Handle, now clock.Instant) {
	if e := l.trackAt(h); e != nil && e.live && e.use == h.Use() {
		l.p.Tracker.Untrack(h, now)
	}
}

func (l *fromHost) Reject(t *record.TrackReq, remote []byte, now clock.Instant) {
	l.t = *t
	l.t.RemoteLen, l.t.LocalLen = uint16(len(remote)), 0
	l.p.Tracker.Reject(&l.t, l.id[:copy(l.id[:], remote)], now)
}

// ReadPart takes the parts of a read in order; a full state repeats them from the first.
func (l *fromHost) ReadPart(r *record.Read, runs []record.Run, now clock.Instant) {
	l.r = *r
	e := l.trackAt(l.r.Track)
	switch {
	case e == nil || !e.live || e.use != l.r.Track.Use():
		return
	case l.r.Part < e.parts:
		l.Counters.Repeated++
		return
	case l.r.Part > e.parts: // one is missing: the full state brings it
		return
	}
	e.parts++
	n := copy(l.runs[:], runs)
	l.r.N = uint32(n)
	l.p.Tracker.ReadPart(&l.r, l.runs[:n], now)
}
