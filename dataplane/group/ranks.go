package group

import (
	"errors"
	"math/bits"
	"sync"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// rank is one rank as the host sees it.
type rank struct {
	carrier stream.Carrier
	n       uint32
	bit     uint64

	attached bool
	gap      bool // it needs the full state; nothing reaches it before
	again    bool // something was not told for want of room: one more full state
	full     full
	state    record.RankState
	up       bool // registered, and told
	everUp   bool
	eraUsed  uint64 // the era in which it registered last
	upIn     uint64 // the last in which it was heard to be registered
	broken   bool   // its core; or it is lost, and nobody knows that its rows are closed
	brokenAt clock.Instant
	cut      bool // the latter
	upDue    bool // EvRankUp waits
	downDue  bool // EvRankDown waits
	downGone uint8

	eraDue   bool
	drainDue bool
	pauseDue bool

	scan   bool   // what it had not ended is being counted as ended
	scanAt uint32 // next lease, then tracks

	laterN int // words of later that wait for it

	blob  blobAt
	needN int // engines whose maps it needs
	own   ownMap

	fulls, received, sent, unsent uint64
}

// busy reports that the next step has something to tell it, if it takes it.
func (r *rank) busy() bool {
	return r.scan || r.attached && (r.gap || r.again || r.full.at != fullNone || r.needN > 0 || r.laterN > 0 || r.eraDue || r.drainDue || r.own.due)
}

// hears reports that records reach the rank now.
func (r *rank) hears() bool { return r.attached && !r.gap }

// pastLease and pastTrack report that what happens to an object now is to be told as it happens: no full state is on its way
// that will name the object.
func (r *rank) pastLease(s uint32) bool {
	return r.hears() && (r.full.at == fullNone || r.full.at > fullLeases || r.full.at == fullLeases && s < r.full.next)
}

func (r *rank) pastTrack(u uint32) bool {
	return r.hears() && (r.full.at == fullNone || r.full.at > fullTracks || r.full.at == fullTracks && u < r.full.next)
}

// room gives room for a record to a rank, nil: the rank does not hear, or there is none; then its full state follows.
func (g *Group) room(r *rank, tag uint32, n int) []byte {
	if !r.hears() {
		return nil
	}
	if r.carrier.Fits(n) {
		if rec := r.carrier.Reserve(tag, n); rec != nil {
			r.sent++
			g.Counters.Sent++
			return rec
		}
	}
	if !r.again {
		g.sayRank(log.RankBehind, r)
	}
	r.again = true
	r.unsent++
	g.Counters.Unsent++
	return nil
}

// sayLease tells a set of ranks something about a lease.
func (g *Group) sayLease(h record.Handle, tag uint32, set uint64) {
	for ; set != 0; set &= set - 1 {
		r := &g.ranks[lowest(set)]
		if !r.pastLease(h.Slot()) {
			continue
		}
		if rec := g.room(r, tag, 8); rec != nil {
			record.PutHandle(rec, h)
		}
	}
}

// listen takes what a rank says, at most RecordsStepMax records.
func (g *Group) listen(r *rank, now clock.Instant) {
	if r.scan {
		g.count(r)
	}
	if g.gone&r.bit != 0 {
		return
	}
	state := r.carrier.State() // before the records: what came before the loss is still read
	for n := 0; ; n++ {
		if n == g.cfg.RecordsStepMax {
			g.Counters.ReceivedCut++
			state = stream.Attached // not before the rest is read
			break
		}
		tag, rec, ok := r.carrier.Next()
		if !ok {
			break
		}
		r.received++
		g.Counters.Received++
		if !g.hear(r, tag, rec, now) {
			g.Counters.Bad++
			g.sayRank(log.RankBad, r)
		}
	}
	r.carrier.Release()
	r.attached = state == stream.Attached
	r.gap = r.attached && r.carrier.Gap()
	switch {
	case state == stream.Lost && !r.cut:
		r.down(g)
		if r.over() {
			g.lose(r)
			break
		}
		// Its process may live, and its rows say that blocks may be read: it closes them when it sees that it is lost.
		r.cut = true
		if !r.broken {
			r.broken, r.brokenAt = true, now
		}
	case r.broken && g.dead&r.bit == 0 && now.Sub(r.brokenAt) >= g.cfg.Duration:
		// Its rows are closed. Readers that do not check them have had the time that they were promised (L12).
		g.dead |= r.bit
		r.scan, r.scanAt = true, 0
	}
	r.own.takeOver(g)
}

// hear applies a record of a rank.
func (g *Group) hear(r *rank, tag uint32, rec []byte, now clock.Instant) bool {
	switch tag {
	case record.TagEvent:
		ev, ok := record.AsRankEvent(rec)
		if !ok {
			return false
		}
		g.ev = ev
		h := record.Handle(ev.Handle)
		switch ev.Kind {
		case record.EvFreed:
			g.freed(r, h, ev.Status)
		case record.EvReadDone, record.EvReadFailed:
			g.read(r, &g.ev)
		case record.EvBlocksBack:
			g.blocksBack(r, h)
		case record.EvLeaseGone:
			g.goneOn(h)
		case record.EvAtRisk:
			g.riskOn(h, ev.Value0)
		case record.EvEngineUp, record.EvEngineDown:
			g.engineOn(r, ev.Handle, ev.Kind == record.EvEngineUp)
		case record.EvEngineDrains:
			g.engineDrains(ev.Handle)
		default:
			return false
		}
		return true
	case record.TagRetired:
		h, ok := record.AsHandle(rec)
		if ok {
			g.retire(r, h)
		}
		return ok
	case record.TagState:
		s, ok := record.AsRankState(rec)
		if ok {
			g.stateOf(r, s, now)
		}
		return ok
	case record.TagReaderHeard:
		h, ok := record.AsReaderHeard(rec)
		switch {
		case !ok || g.wires == nil:
		case h.Left != 0:
			g.wires.Left(h.Reader, h.Epoch)
		default:
			g.wires.Heard(h.Reader, h.Epoch, h.Nonce)
		}
		return ok
	case record.TagTrouble:
		t, ok := record.AsTrouble(rec)
		if ok {
			g.troubleOn(r, t)
		}
		return ok
	case record.TagBlob:
		b, piece, ok := record.AsBlob(rec)
		if ok && b.Kind == record.BlobOwn {
			r.own.piece(b, piece, g)
		}
		return ok
	}
	return false
}

// stateOf takes what a rank says about itself.
func (g *Group) stateOf(r *rank, s record.RankState, now clock.Instant) {
	before := r.state
	r.state = s
	up := s.Flags&record.RankRegistered != 0
	if up || s.Registrations != before.Registrations { // one that is over already has used its era, too
		r.everUp, r.eraUsed = true, s.Era
	}
	if up {
		r.upIn = s.Era
	}
	switch {
	case up && (!r.up || s.Registrations != before.Registrations):
		if r.up && !r.upDue { // it unregistered and registered between two of its words
			r.downDue, r.downGone = true, 0
		}
		r.up, r.upDue = true, true
		g.wake(r)
		g.sayRank(log.RankUp, r)
		g.rankNews |= r.bit
	case !up && r.up:
		r.up, r.downGone = false, 0
		g.awake &^= r.bit
		if r.downDue = r.downDue || !r.upDue; r.upDue { // nobody has heard that it was up
			r.upDue = false
		}
		g.rankNews |= r.bit
	}
	if s.Flags&record.RankPoisoned != 0 && !r.broken {
		g.sayRank(log.RankBroken, r)
		r.broken, r.brokenAt = true, now
	}
}

// over reports that nothing of a lost rank's can be read any more, and that it writes nothing.
func (r *rank) over() bool {
	return r.state.Flags&record.RankClosed != 0 || errors.Is(r.carrier.Err(), stream.ErrEnded)
}

// down says that a rank is lost.
func (r *rank) down(g *Group) {
	g.Counters.RanksLost++
	if r.state.Flags&record.RankClosed != 0 {
		g.sayRank(log.RankLeft, r)
	} else {
		g.sayRank(log.RankLost, r)
	}
	r.up, r.upDue, r.downDue, r.downGone = false, false, true, 1
	g.rankNews |= r.bit
	r.full = full{}
	g.lost |= r.bit
	g.awake &^= r.bit
	for i := range g.engines {
		g.engineLook(uint32(i))
	}
}

// sayRank says something about a rank of ours.
func (g *Group) sayRank(k log.Kind, r *rank) { g.cfg.Log.Put(k, g.now, log.Entry{A: uint64(r.n)}) }

// lose counts all that a rank has not ended as ended there: its process is gone, and its memory with it.
func (g *Group) lose(r *rank) {
	g.gone |= r.bit
	g.dead |= r.bit
	r.scan, r.scanAt = true, 0
}

// scanStepMax bounds the slots that a step looks at for a lost rank.
const scanStepMax = 32768

// count goes on with that.
func (g *Group) count(r *rank) {
	reason := uint8(record.FreedLost)
	if g.gone&r.bit == 0 && !r.cut {
		reason = record.FreedPoisoned
	}
	for range scanStepMax {
		if s := r.scanAt; s < uint32(len(g.leases)) {
			if s >= g.leasesUsed {
				r.scanAt = uint32(len(g.leases))
				continue
			}
			r.scanAt++
			if k := &g.leases[s]; k.phase == leaseHeld && k.ended&r.bit == 0 {
				k.add(r.n, reason)
				if k.ended == g.all {
					g.over(s, k)
				}
			}
			continue
		}
		u := r.scanAt - uint32(len(g.leases))
		if u >= g.tracksUsed {
			r.scan = false
			return
		}
		r.scanAt++
		if t := &g.tracks[u]; t.phase != trackFree {
			g.look(u, t)
		}
	}
}

// ownMap puts the pieces of a rank's own handshake map together. The step fills one buffer, other goroutines read the other.
type ownMap struct {
	building []byte
	head     record.Blob
	at       uint32
	due      bool // building is complete and waits for the lock

	mu   sync.Mutex
	done []byte
	n    int
}

func newOwnMap(most int) ownMap {
	return ownMap{building: make([]byte, most), done: make([]byte, most)} // pages that nobody touches until a map is that long
}

func (o *ownMap) piece(b record.Blob, piece []byte, g *Group) {
	if b.Offset == 0 {
		o.head, o.at, o.due = b, 0, false
	}
	if b.Total != o.head.Total || b.Offset != o.at || int(b.Total) > len(o.building) {
		g.Counters.MapsBroken++
		o.head, o.at = record.Blob{}, 0
		return
	}
	copy(o.building[b.Offset:], piece)
	if o.at += uint32(len(piece)); o.at == b.Total {
		o.due = true
	}
}

func (o *ownMap) takeOver(g *Group) {
	if !o.due || !o.mu.TryLock() { // in the next step
		return
	}
	o.building, o.done, o.n = o.done, o.building, int(o.at)
	o.mu.Unlock()
	o.due, o.at, o.head = false, 0, record.Blob{}
	g.Counters.MapsTaken++
}

// OwnMap gives a copy of the handshake map of rank n of ours, nil while it has none. Any goroutine.
func (g *Group) OwnMap(n int) []byte {
	if n < 0 || n >= len(g.ranks) {
		return nil
	}
	o := &g.ranks[n].own
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.n == 0 {
		return nil
	}
	return append([]byte(nil), o.done[:o.n]...)
}

// lowest gives the first rank of a set.
func lowest(set uint64) uint32 { return uint32(bits.TrailingZeros64(set)) }
