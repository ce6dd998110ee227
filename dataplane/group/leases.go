package group

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// lease is what the host keeps of a slot's use: what a rank must be told again, and what the ranks have said. Id, user and
// blocks stand in the slot.
type lease struct {
	ended    uint64 // ranks that have ended it
	reasons  uint64 // as record.Event has them
	key      uint64
	ready    uint64
	tag      uint64        // in the index of ids; 0: not in it
	end      clock.Instant // held: the grant's; expected: when it lapses
	granted  clock.Instant
	use      uint32
	tokens   uint32
	flags    uint32
	phase    leasePhase
	said     uint8 // said*
	grave    uint8 // the gravest reason so far
	noID     bool  // its id found no room, or is another lease's
	dup      bool  // the latter: it is cancelled on every rank
	dropped  bool  // free: its last use was an expectation that came to nothing. A rank may have missed that
	inExpect list.Links
	inEnds   list.Links
}

type leasePhase uint8

const (
	leaseFree leasePhase = iota
	leaseExpected
	leaseHeld
	leaseLapsed // its event waits
	leaseEnded  // by every rank; its event waits
)

// What the host has said about a lease or a request.
const (
	saidCancel  = 1 << iota // leases: cancel
	saidRevoke              // leases: revoke
	saidRead                // requests: read
	saidUntrack             // requests: untrack, by the host or because one bad rank made the request bad
)

func (k *lease) ofExpect() *list.Links { return &k.inExpect }
func (k *lease) ofEnds() *list.Links   { return &k.inEnds }

// gravity orders the reasons of an end: what the engine is told is the gravest of its ranks'. From all is well to something
// is broken.
var gravity = [...]uint8{
	record.FreedCompleted: 1, record.FreedReleased: 2, record.FreedRevoked: 3, record.FreedDuplicate: 4,
	record.FreedExpired: 5, record.FreedClosed: 6, record.FreedLost: 7, record.FreedPoisoned: 8,
}

// said is the group as the sink of the producers' records.
type said Group

func (x *said) group() *Group { return (*Group)(x) }

// slotAt gives the slot that a record opens a use of, or names; false: it does not fit.
func (g *Group) slotAt(h record.Handle) (uint32, *lease, bool) {
	s := h.Slot()
	if h>>32 == 0 || int(s) >= len(g.leases) || uint32(atomic.LoadUint64(&g.mem.Slots[s].State)>>32) != h.Use() {
		g.Counters.BadHandle++
		return 0, nil, false
	}
	return s, &g.leases[s], true
}

func (x *said) Expect(e *record.Expect, id []byte, now clock.Instant) {
	g := x.group()
	s, k, ok := g.slotAt(e.Lease)
	if !ok || k.phase != leaseFree {
		g.Counters.BadHandle++
		return
	}
	*k = lease{use: e.Lease.Use(), phase: leaseExpected, end: now.Add(g.cfg.ExpectMax)}
	g.leasesUsed = max(g.leasesUsed, s+1)
	g.expected++
	g.Counters.Expects++
	k.noID = !g.ids.store(&g.mem.Slots[s], id)
	g.countLong(k.noID, id)
	list.Push(&g.expects, g.leases, s, (*lease).ofExpect)
	for i := range g.ranks {
		if r := &g.ranks[i]; r.pastLease(s) {
			g.sendExpect(r, e.Lease, id)
		}
	}
}

func (g *Group) countLong(full bool, id []byte) {
	if full {
		g.Counters.LongIDsFull++
		g.cfg.Log.Put(log.LeaseIDsFull, g.now, log.Entry{Request: id, A: uint64(len(id))})
	}
}

func (x *said) Grant(in *record.Grant, id []byte, now clock.Instant) {
	x.group().drained(clock.Instant(in.SaidNs), now)
	g := x.group()
	s, k, ok := g.slotAt(in.Lease)
	if !ok || k.phase > leaseExpected {
		g.Counters.BadHandle++
		return
	}
	slot := &g.mem.Slots[s]
	if k.phase == leaseExpected {
		g.expected--
		list.Drop(&g.expects, g.leases, s, (*lease).ofExpect)
		g.ids.clear(slot)
	}
	ttl := g.cfg.Duration
	switch {
	case in.TTLNs != 0:
		ttl = time.Duration(min(in.TTLNs, 1<<62))
	case in.Flags&record.GrantFixed != 0:
		ttl = g.cfg.FixedTTL
	}
	*k = lease{
		use: in.Lease.Use(), phase: leaseHeld, end: now.Add(ttl), granted: now, key: in.Key, ready: in.ReadyEvent, tokens: in.Tokens,
		flags: in.Flags, ended: g.dead,
	}
	if at := clock.Instant(in.SaidNs); at > 0 && at < now {
		k.granted = at
	}
	g.leasesUsed = max(g.leasesUsed, s+1)
	g.held++
	g.blocks += uint64(in.Blocks)
	g.Counters.Grants++
	slot.User, slot.Blocks, slot.Reason = in.User, in.Blocks, 0
	for d := g.dead; d != 0; d &= d - 1 {
		k.add(uint32(bits.TrailingZeros64(d)), record.FreedLost)
	}
	if tag := g.names.hash(id); g.names.find(tag) != none {
		// Its parameters are out, and every rank's row says that it may be read, as of each slot that waits for its next grant: it is
		// over when every rank has raised its row (L10). No rank hears its id, which another lease has.
		g.Counters.Duplicates++
		g.cfg.Log.Put(log.DuplicateGrant, now, log.Entry{Request: id, A: uint64(in.Blocks)})
		k.dup, k.noID, k.said = true, true, saidCancel
		id = g.idOf(s, k)
	} else {
		k.tag = tag
		g.names.put(tag, s)
		k.noID = !g.ids.store(slot, id)
		g.countLong(k.noID, id)
	}
	if g.dead == g.all {
		g.over(s, k)
		return
	}
	for i := range g.ranks {
		if r := &g.ranks[i]; k.ended&r.bit == 0 && r.pastLease(s) {
			g.sendGrant(r, s, k, in.TTLNs, id)
		}
	}
	if k.dup {
		g.sayLease(in.Lease, record.TagCancel, g.all&^k.ended)
	}
}

func (x *said) Cancel(h record.Handle, now clock.Instant) {
	g := x.group()
	s, k, ok := g.slotAt(h)
	switch {
	case !ok:
	case k.phase == leaseExpected:
		g.Counters.Cancelled++
		g.expected--
		list.Drop(&g.expects, g.leases, s, (*lease).ofExpect)
		g.sayLease(h, record.TagCancel, g.all)
		g.giveBack(s, k) // no parameters are out: no rank need answer
	case k.phase == leaseHeld:
		k.said |= saidCancel
		g.sayLease(h, record.TagCancel, g.all&^k.ended)
	}
}

func (x *said) Revoke(h record.Handle, now clock.Instant) {
	g := x.group()
	_, k, ok := g.slotAt(h)
	switch {
	case !ok:
	case k.phase == leaseExpected:
		x.Cancel(h, now)
	case k.phase == leaseHeld:
		k.said |= saidRevoke
		g.sayLease(h, record.TagRevoke, g.all&^k.ended)
	}
}

// Pressure is decided by the first rank that lives: the ranks' orders of worth may differ.
func (x *said) Pressure(blocks uint32, _ clock.Instant) { x.pressure = max(x.pressure, blocks) }

func (g *Group) tellPressure() {
	for i := range g.ranks {
		r := &g.ranks[i]
		if g.pressure == 0 || g.dead&r.bit != 0 || !r.attached {
			continue
		}
		if rec := g.room(r, record.TagPressure, 8); rec != nil {
			binary.LittleEndian.PutUint64(rec, uint64(g.pressure))
			g.pressure = 0
		}
		return // with the full state's room it is told
	}
	g.pressure = 0 // nobody is there who holds anything
}

// add notes a rank's end of a lease.
func (k *lease) add(n uint32, reason uint8) {
	bit := uint64(1) << n
	k.ended |= bit
	if n < 16 {
		k.reasons = k.reasons&^(0xF<<(4*n)) | uint64(reason&0xF)<<(4*n)
	}
	if gravity[reason] > gravity[k.grave] {
		k.grave = reason
	}
}

// freed takes a rank's end of a lease.
func (g *Group) freed(r *rank, h record.Handle, reason int32) {
	s := h.Slot()
	if h>>32 == 0 || int(s) >= len(g.leases) || reason < record.FreedCompleted || int(reason) >= len(gravity) {
		g.Counters.Misfits++
		g.sayRank(log.RankBad, r)
		return
	}
	k := &g.leases[s]
	if k.phase != leaseHeld || k.use != h.Use() || k.ended&r.bit != 0 {
		g.Counters.Repeated++
		return
	}
	if k.dup && reason == record.FreedRevoked {
		reason = record.FreedDuplicate
	}
	k.add(r.n, uint8(reason))
	if k.ended == g.all {
		g.over(s, k)
		return
	}
	// Pressure took it from one rank, or a rank of the reader stands still and no longer beats to one: nobody can read the whole of
	// it any more, and the reader's other ranks would hold the rest for as long as they beat. Each rank asks who may still read (L12).
	if (reason == record.FreedRevoked || reason == record.FreedExpired) && k.said&(saidCancel|saidRevoke) == 0 {
		k.said |= saidRevoke
		g.sayLease(h, record.TagRevoke, g.all&^k.ended)
	}
}

// over is the end of a lease on every rank (L11): its event waits in its slot.
func (g *Group) over(s uint32, k *lease) {
	slot := &g.mem.Slots[s]
	if k.tag != 0 {
		g.names.remove(k.tag)
		k.tag = 0
	}
	g.held--
	g.blocks -= uint64(slot.Blocks)
	g.Counters.Freed[k.grave]++
	slot.Reason = uint16(k.grave)
	k.phase = leaseEnded
	k.end = clock.Instant(max(g.now.Sub(k.granted), 0)) // from here on: how long it was held
	g.remember(s, k)
	atomic.StoreUint64(&slot.State, record.State(k.use, record.Ended))
	list.Push(&g.ends, g.leases, s, (*lease).ofEnds)
}

// lapsesStepMax bounds the expectations that lapse in a step.
const lapsesStepMax = 1024

// lapse ends expectations whose grant did not come. A grant that the host has said meanwhile wins: its record is on the way.
func (g *Group) lapse(now clock.Instant) {
	for range lapsesStepMax { // the rest in the next step
		s := g.expects.Head
		if s == none || now.Before(g.leases[s].end) {
			return
		}
		k := &g.leases[s]
		list.Drop(&g.expects, g.leases, s, (*lease).ofExpect)
		word, was := &g.mem.Slots[s].State, record.State(k.use, record.Expected)
		if !atomic.CompareAndSwapUint64(word, was, record.State(k.use, record.Lapsed)) {
			k.end = now.Add(g.cfg.ExpectMax)
			list.Push(&g.expects, g.leases, s, (*lease).ofExpect)
			continue
		}
		g.Counters.Lapsed++
		g.cfg.Log.Put(log.ExpectLapsed, now, log.Entry{Request: g.idOf(s, k), A: uint64(g.cfg.ExpectMax)})
		g.expected--
		k.phase = leaseLapsed
		g.sayLease(record.NewHandle(s, k.use), record.TagCancel, g.all)
		list.Push(&g.ends, g.leases, s, (*lease).ofEnds)
	}
}

// giveBack makes a slot free for its next use.
func (g *Group) giveBack(s uint32, k *lease) {
	slot := &g.mem.Slots[s]
	use := k.use
	g.ids.clear(slot)
	*k = lease{use: use, dropped: k.phase == leaseExpected || k.phase == leaseLapsed}
	atomic.StoreUint32(&slot.Flags, 0)
	atomic.StoreUint64(&slot.State, record.State(use+1, record.Free))
	if use+1 == record.None {
		g.Counters.Retired++ // a handle of one more use would be none
		return
	}
	record.PushFree(&g.mem.Control.LeaseFree, &slot.Next, s)
}

// CancelAll has the ranks end every lease, whoever named it: what a context that closes says first. The ends come with the
// steps that follow. A rank that nobody has met has no row of them, and will be told of none.
func (g *Group) CancelAll() {
	var waits uint64
	for i := range g.ranks {
		if r := &g.ranks[i]; r.carrier.State() == stream.Waiting {
			waits |= r.bit
		}
	}
	for s := range g.leasesUsed {
		k := &g.leases[s]
		if k.phase != leaseHeld {
			continue
		}
		if k.said&saidCancel == 0 {
			k.said |= saidCancel
			g.sayLease(record.NewHandle(s, k.use), record.TagCancel, g.all&^k.ended)
		}
		for left := waits &^ k.ended; left != 0; left &= left - 1 {
			k.add(uint32(bits.TrailingZeros64(left)), record.FreedClosed)
		}
		if k.ended == g.all {
			g.over(s, k)
		}
	}
	g.send()
}
