package group

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// full is how far the full state of a rank has been told. It goes over the tables in order; what happens to an object that it
// has passed is told as it happens, of the others it tells the state when it gets there.
type full struct {
	at   fullAt
	next uint32 // engine, lease or track
	use  uint32 // of the track that is being told
	step uint8  // how much of that track is told
	run  uint32 // chunk of its next part
	inc  uint64
}

type fullAt uint8

const (
	fullNone fullAt = iota
	fullHead
	fullEngines
	fullLeases
	fullTracks
	fullEnd
)

// Parts of what a full state tells of a track.
const (
	fullTrack = iota
	fullParts
	fullUntrack
)

const (
	fullLooksMax   = 8192 // slots that a step looks at for one rank's full state
	fullRecordsMax = 1024 // records that it tells of it
	fullSpare      = 4096 // bytes that are left for what happens meanwhile
	fullRetry      = 10 * time.Millisecond
)

// speak tells a rank what is due, and publishes.
func (g *Group) speak(r *rank, now clock.Instant) {
	if !r.attached {
		return
	}
	if r.gap || r.again && r.full.at == fullNone && r.carrier.Fits(2*fullSpare) {
		if inc, ok := r.carrier.Begin(); ok {
			r.full = full{at: fullHead, inc: inc}
			r.gap, r.again = false, false
			r.eraDue, r.drainDue, r.pauseDue = g.era.Era != 0, g.draining, true
			r.fulls++
			g.Counters.FullStates++
		}
	}
	if !r.gap {
		g.tellHead(r, now)
		if r.full.at != fullNone {
			g.tellFull(r, now)
		}
		g.tellLater(r)
		if r.needN > 0 && r.hearsOf() {
			g.tellMaps(r)
		}
	}
	r.carrier.Publish()
}

// send publishes what was said outside of a step.
func (g *Group) send() {
	for i := range g.ranks {
		g.ranks[i].carrier.Publish()
	}
}

// tellHead tells what is not about one object.
func (g *Group) tellHead(r *rank, now clock.Instant) {
	g.tellEra(r)
	if r.drainDue && r.carrier.Fits(record.DrainLen) {
		if rec := g.room(r, record.TagDrain, record.DrainLen); rec != nil {
			record.PutDrain(rec, uint64(max(g.drainEnd.Sub(now), 0)))
			r.drainDue = false
		}
	}
	if r.pauseDue && r.carrier.Fits(record.PauseLen) {
		r.pauseDue = false
		if left := clock.Instant(g.pauseSaid).Sub(now); left > 0 {
			if rec := g.room(r, record.TagPause, record.PauseLen); rec != nil {
				record.PutPause(rec, uint64(left))
			}
		}
	}
	if r.full.at == fullHead && !r.eraDue && !r.drainDue && !r.pauseDue {
		r.full.at = fullEngines
	}
}

func (g *Group) tellEra(r *rank) {
	if r.eraDue && r.carrier.Fits(record.EraLen) {
		if rec := g.room(r, record.TagEra, record.EraLen); rec != nil {
			record.PutEra(rec, g.era)
			r.eraDue = false
		}
	}
}

// tellPause relays kvl_pause.
func (g *Group) tellPause(now clock.Instant) {
	until := atomic.LoadUint64(&g.mem.Control.PauseUntilNs)
	if until == g.pauseSaid {
		return
	}
	g.pauseSaid = until
	for i := range g.ranks {
		r := &g.ranks[i]
		if rec := g.room(r, record.TagPause, record.PauseLen); rec != nil {
			record.PutPause(rec, uint64(max(clock.Instant(until).Sub(now), 0)))
		}
	}
}

// fits reports that a part of the full state of n bytes has room, and what happens meanwhile besides.
func (r *rank) fits(n int) bool { return r.carrier.Fits(n + 8 + fullSpare) }

// tellFull tells the next pieces of a full state, as far as there is room.
func (g *Group) tellFull(r *rank, now clock.Instant) {
	f := &r.full
	records := 0
	for looks := 0; looks < fullLooksMax && records < fullRecordsMax; looks++ {
		n, ok := 0, true
		switch f.at {
		case fullHead:
			return
		case fullEngines:
			if f.next == uint32(len(g.engines)) {
				f.at, f.next = fullLeases, 0
				continue
			}
			n, ok = g.fullEngine(r, f.next)
		case fullLeases:
			if f.next >= g.leasesUsed {
				f.at, f.next = fullTracks, 0
				f.step = fullTrack
				continue
			}
			n, ok = g.fullLease(r, f.next, now)
		case fullTracks:
			if f.next >= g.tracksUsed {
				f.at = fullEnd
				continue
			}
			n, ok = g.fullTrack(r, f.next)
		case fullEnd:
			if !r.carrier.Fits(record.FullLen) {
				return
			}
			if rec := g.room(r, record.TagFull, record.FullLen); rec != nil {
				record.PutFull(rec, record.Full{Incarnation: f.inc, Mark: record.FullEnd})
				*f = full{}
				g.Counters.FullsDone++
			}
			return
		}
		records += n
		if !ok {
			return
		}
		f.next++
	}
}

// fullLease tells one lease slot; it gives the records told, and false if there was no room.
func (g *Group) fullLease(r *rank, s uint32, now clock.Instant) (int, bool) {
	k := &g.leases[s]
	h := record.NewHandle(s, k.use)
	switch {
	case k.phase == leaseExpected:
		id := g.idOf(s, k)
		if !r.fits(record.ExpectLen + len(id)) {
			return 0, false
		}
		g.sendExpect(r, h, id)
		return 1, true
	case k.phase == leaseLapsed || k.phase == leaseFree && k.dropped: // else a rank that missed it expects until the slot's next use
		if !r.fits(8) {
			return 0, false
		}
		if rec := g.room(r, record.TagCancel, 8); rec != nil {
			record.PutHandle(rec, h)
		}
		return 1, true
	case k.phase == leaseHeld && k.ended&r.bit == 0:
		id := g.idOf(s, k)
		if !r.fits(record.GrantLen + len(id) + 32) {
			return 0, false
		}
		// What was renewed meanwhile is told by heartbeats, whose news the rank may have missed: a whole extension is the safe side.
		left := max(k.end.Sub(now), g.cfg.Extension)
		if k.flags&record.GrantFixed != 0 {
			left = max(k.end.Sub(now), 1)
		}
		g.sendGrant(r, s, k, uint64(left), id)
		n := 1
		for _, what := range [2]struct {
			bit uint8
			tag uint32
		}{{saidCancel, record.TagCancel}, {saidRevoke, record.TagRevoke}} {
			if k.said&what.bit == 0 {
				continue
			}
			if rec := g.room(r, what.tag, 8); rec != nil {
				record.PutHandle(rec, h)
				n++
			}
		}
		return n, true
	}
	return 0, true
}

// idOf gives the id of a slot; one whose id found no room has another, which no reader names.
func (g *Group) idOf(s uint32, k *lease) []byte {
	if !k.noID {
		return g.ids.of(&g.mem.Slots[s])
	}
	copy(g.synthetic[:], "\x00kvl")
	binary.LittleEndian.PutUint64(g.synthetic[8:], uint64(record.NewHandle(s, k.use)))
	return g.synthetic[:]
}

func (g *Group) sendExpect(r *rank, h record.Handle, id []byte) {
	if rec := g.room(r, record.TagExpect, record.ExpectLen+len(id)); rec != nil {
		record.PutExpect(rec, record.Expect{Lease: h, IDLen: uint32(len(id))}, id)
	}
}

// sendGrant tells a rank a grant: the time left, never a deadline.
func (g *Group) sendGrant(r *rank, s uint32, k *lease, ttlNs uint64, id []byte) {
	rec := g.room(r, record.TagGrant, record.GrantLen+len(id))
	if rec == nil {
		return
	}
	slot := &g.mem.Slots[s]
	g.grant = record.Grant{
		Lease: record.NewHandle(s, k.use), Key: k.key, User: slot.User, TTLNs: ttlNs, SaidNs: uint64(k.granted), ReadyEvent: k.ready,
		Blocks: slot.Blocks, Tokens: k.tokens, Flags: k.flags, IDLen: uint32(len(id)),
	}
	if g.cfg.Between {
		g.grant.SaidNs = 0
	}
	record.PutGrant(rec, g.grant, id)
}

// fullTrack tells one tracked request, in several turns if its read has many parts.
func (g *Group) fullTrack(r *rank, u uint32) (n int, done bool) {
	t, f := &g.tracks[u], &r.full
	if t.phase == trackFree || t.wait != told || t.retired&r.bit != 0 {
		f.step = fullTrack
		return 0, true
	}
	if f.step != fullTrack && f.use != t.use {
		f.step = fullTrack // another use of the slot since the last turn
	}
	if f.step == fullTrack {
		if !r.fits(record.TrackLen+int(t.idLen)) || !g.sendTrack(r, t) {
			return n, false
		}
		n++
		f.step, f.use, f.run = fullParts, t.use, t.runs
	}
	if f.step == fullParts {
		if t.said&saidUntrack != 0 || t.runs == none { // an untrack says all; without runs its outcome is known
			f.run = none
		}
		for f.run != none {
			if !r.fits(record.ReadLen + record.RunsMax*record.RunLen) {
				return n, false
			}
			next := g.sendPart(r, u, t, f.run)
			if next == noRoom {
				return n, false
			}
			n++
			f.run = next
		}
		f.step = fullUntrack
	}
	if t.said&saidUntrack != 0 {
		if !r.fits(8) {
			return n, false
		}
		if rec := g.room(r, record.TagUntrack, 8); rec != nil {
			record.PutHandle(rec, record.NewHandle(u, t.use))
			n++
		}
	}
	f.step = fullTrack
	return n, true
}
