package group

import (
	"math/bits"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// track is what the host keeps of a tracked request.
type track struct {
	req      record.TrackReq
	done     uint64 // ranks that have told the outcome of its read
	heldBy   uint64 // of these, those that said that blocks are held
	back     uint64 // of these, those that have said since that they are back
	retired  uint64 // ranks on which nothing is left of it
	asked    uint64 // ranks that retired it without an outcome, and are asked once more
	bytes    uint64
	took     uint64
	riskLeft uint64
	deadline clock.Instant // of a read that waits for its engine's clock

	use            uint32
	parts, got     uint32
	runs, lastRuns uint32

	phase    trackPhase
	said     uint8 // said*
	pend     uint8 // pend*
	status   uint8 // the gravest so far
	gone     bool  // EvLeaseGone was said, or waits
	risk     bool  // EvAtRisk was said, or waits
	decided  bool  // its outcome was known without the ranks
	heldSaid bool  // its outcome said that blocks are held
	backSaid bool
	wait     trackWait
	idLen    uint16
	id       [idInline]byte
	inNews   links
	inWait   links
}

type trackPhase uint8

const (
	trackFree  trackPhase = iota
	trackLive             // tracked, or its read is on its way
	trackEnded            // untracked, or its outcome is known
)

// trackWait says whether the ranks know of a request.
type trackWait uint8

const (
	told     trackWait = iota // they do, or will with the next full state
	waits                     // held back until its engine's clock is known
	orphaned                  // never told: its engine is not known
)

// Events that wait in a request. They leave in this order.
const (
	pendGone = 1 << iota
	pendRisk
	pendOutcome
	pendBack
)

func (t *track) ofNews() *links { return &t.inNews }
func (t *track) ofWait() *links { return &t.inWait }

// badness orders the outcomes of a read: what the engine is told is the worst of its ranks'. What says that the data is wrong
// comes before what says that it may be, that before the rest; a cancel is what we do to the others ourselves.
var badness = [...]uint8{
	record.ReadOK: 0, record.ReadCancelled: 1, record.ReadTimeout: 2, record.ReadFailed: 3, record.ReadLost: 4,
	record.ReadUnproven: 5, record.ReadStale: 6,
}

func (t *track) worse(status uint8) {
	if badness[status] > badness[t.status] {
		t.status = status
	}
}

// trackAt gives the live request of a handle.
func (g *Group) trackAt(h record.Handle) (uint32, *track) {
	u := h.Slot()
	if h>>32 == 0 || int(u) >= len(g.tracks) || g.tracks[u].phase == trackFree || g.tracks[u].use != h.Use() {
		return 0, nil
	}
	return u, &g.tracks[u]
}

func (x *said) Track(in *record.TrackReq, remote, _ []byte, now clock.Instant) {
	g := x.group()
	h := in.Track
	u := h.Slot()
	if h>>32 == 0 || int(u) >= len(g.tracks) || g.tracks[u].phase != trackFree ||
		uint32(atomic.LoadUint64(&g.mem.Tracks[u].State)>>32) != h.Use() {
		g.Counters.BadHandle++
		return
	}
	t := &g.tracks[u]
	*t = track{req: *in, use: h.Use(), phase: trackLive, runs: none, lastRuns: none}
	g.tracksUsed = max(g.tracksUsed, u+1)
	g.tracked++
	g.Counters.Tracked++
	e := g.engineOf(in.Engine)
	if e == nil {
		g.Counters.Stale++
		g.orphan(u, t)
		return
	}
	e.tracked++
	if in.ExpiresNs != 0 {
		e.fixed++
	}
	if !g.remotes.set(&t.id, &t.idLen, remote) { // a rank that has to hear of it again could not be told
		g.Counters.LongIDsFull++
		g.orphan(u, t)
		return
	}
	t.req.RemoteLen, t.req.LocalLen = t.idLen, 0
	if t.req.ExpiresNs != 0 && !e.offset.Known() {
		t.wait, t.deadline = waits, clock.Never
		push(&g.waiting, g.tracks, u, (*track).ofWait)
		return
	}
	g.sayTrack(u, t)
	if g.dead != 0 {
		g.pendGone(u, t)
	}
}

// orphan keeps a request to itself: no rank could do anything for it.
func (g *Group) orphan(u uint32, t *track) {
	t.wait, t.retired = orphaned, g.all
	g.pendGone(u, t)
}

func (g *Group) pendGone(u uint32, t *track) {
	if t.gone || t.phase != trackLive || t.said != 0 {
		return
	}
	t.gone = true
	g.Counters.Gone++
	g.event(u, t, pendGone)
}

func (g *Group) event(u uint32, t *track, what uint8) {
	t.pend |= what
	push(&g.news, g.tracks, u, (*track).ofNews)
}

func (x *said) ReadPart(in *record.Read, runs []record.Run, now clock.Instant) {
	g := x.group()
	u, t := g.trackAt(in.Track)
	if t == nil || t.phase != trackLive || t.said&saidUntrack != 0 {
		g.Counters.BadHandle++
		return
	}
	if t.said&saidRead == 0 {
		t.said |= saidRead
		t.parts = in.Parts
		t.pend &^= pendGone | pendRisk // the outcome says more
		g.reading++
		g.Counters.Reads++
	}
	switch {
	case in.Parts == 0 || in.Parts != t.parts || in.Part != t.got || in.Part >= in.Parts:
		g.Counters.BadParts++
		g.decide(u, t, record.ReadFailed)
		return
	case t.wait == orphaned || g.dead != 0:
		g.decide(u, t, record.ReadLost)
		return
	case !g.runs.add(t, in.Part, runs):
		g.Counters.RunsFull++
		g.decide(u, t, record.ReadFailed)
		return
	}
	t.got++
	if t.wait == waits {
		if t.got == t.parts {
			g.unwait(u, t)
			t.deadline = now.Add(g.cfg.ReadTimeout)
			push(&g.stuck, g.tracks, u, (*track).ofWait)
		}
		return
	}
	for i := range g.ranks {
		r := &g.ranks[i]
		if t.retired&r.bit != 0 || !r.pastTrack(u) {
			continue
		}
		if rec := g.room(r, record.TagRead, record.ReadLen+len(runs)*record.RunLen); rec != nil {
			record.PutRead(rec, record.Read{Track: in.Track, Part: in.Part, Parts: t.parts, N: uint32(len(runs))}, runs)
		}
	}
}

func (x *said) Untrack(h record.Handle, _ clock.Instant) {
	g := x.group()
	u, t := g.trackAt(h)
	if t == nil || t.phase != trackLive || t.said&saidUntrack != 0 && t.said&saidRead == 0 {
		return
	}
	g.Counters.Untracked++
	switch {
	case t.said&saidRead == 0:
		t.pend &^= pendGone | pendRisk // nobody waits for them
		g.stop(u, t)
		t.phase = trackEnded
		g.settle(u, t)
	case t.wait == waits:
		g.decide(u, t, record.ReadCancelled)
	default:
		g.stop(u, t) // the outcomes come from the ranks
	}
}

// stop tells the ranks that a request is over.
func (g *Group) stop(u uint32, t *track) {
	if t.wait == waits {
		t.wait, t.retired = orphaned, g.all
		g.unwait(u, t)
	}
	if t.said&saidUntrack != 0 {
		return
	}
	t.said |= saidUntrack
	h := record.NewHandle(u, t.use)
	for i := range g.ranks {
		r := &g.ranks[i]
		if t.retired&r.bit != 0 || !r.pastTrack(u) {
			continue
		}
		if rec := g.room(r, record.TagUntrack, 8); rec != nil {
			record.PutHandle(rec, h)
		}
	}
}

// decide makes an outcome known that needs no rank's word: no rank has read anything.
func (g *Group) decide(u uint32, t *track, status uint8) {
	t.decided, t.status = true, status
	g.stop(u, t)
	g.outcome(u, t)
}

// outcome makes the outcome of a read known.
func (g *Group) outcome(u uint32, t *track) {
	t.phase = trackEnded
	g.reading--
	g.Counters.Outcomes[t.status]++
	g.runs.drop(t)
	g.event(u, t, pendOutcome)
}

// look sees whether every rank has told the outcome of a read, and whether all blocks are back.
func (g *Group) look(u uint32, t *track) {
	if g.dead != 0 { // a read of it would be lost
		g.pendGone(u, t)
	}
	if t.phase == trackLive && t.said&saidRead != 0 {
		if left := g.dead &^ t.done; left != 0 {
			t.worse(record.ReadLost)
			t.heldBy |= left &^ g.gone // a broken core's transfers go on
			if t.said&saidUntrack == 0 {
				g.Counters.Cut++
				g.stop(u, t)
			}
		}
		if t.done|g.dead == g.all {
			g.outcome(u, t)
		}
	}
	if t.heldSaid && !t.backSaid && !g.holds(t) {
		t.backSaid = true
		g.blocksHeld--
		g.event(u, t, pendBack)
	}
	g.settle(u, t)
}

// holds reports that a transfer may still write to a request's blocks. A process that is gone writes nothing.
func (g *Group) holds(t *track) bool { return t.heldBy&^t.back&^g.gone != 0 }

// read takes a rank's outcome.
func (g *Group) read(r *rank, ev *record.Event) {
	u, t := g.trackAt(record.Handle(ev.Handle))
	if t == nil || t.done&r.bit != 0 || t.decided || t.said&saidRead == 0 || ev.Status < 0 || int(ev.Status) >= len(badness) ||
		(ev.Kind == record.EvReadDone) != (ev.Status == record.ReadOK) {
		g.Counters.Repeated++
		return
	}
	t.done |= r.bit
	t.worse(uint8(ev.Status))
	t.bytes += ev.Value0
	t.took = max(t.took, ev.Value1)
	if ev.Flags&record.FlagBlocksHeld != 0 {
		t.heldBy |= r.bit
	}
	if ev.Status != record.ReadOK && t.said&saidUntrack == 0 && t.done != g.all { // one bad rank makes the request bad
		g.Counters.Cut++
		g.stop(u, t)
	}
	g.look(u, t)
}

// blocksBack takes a rank's word that its blocks are back.
func (g *Group) blocksBack(r *rank, h record.Handle) {
	u, t := g.trackAt(h)
	if t == nil || t.heldBy&r.bit == 0 || t.back&r.bit != 0 {
		g.Counters.Repeated++
		return
	}
	t.back |= r.bit
	g.look(u, t)
}

// retire takes a rank's word that nothing is left of a request there.
func (g *Group) retire(r *rank, h record.Handle) {
	u, t := g.trackAt(h)
	if t == nil || t.retired&r.bit != 0 {
		g.Counters.Repeated++
		return
	}
	if t.phase == trackLive && t.said&saidRead != 0 && t.done&r.bit == 0 {
		if t.asked&r.bit == 0 || t.said&saidUntrack == 0 || r.carrier.Gap() {
			// Its outcome was lost on the way, or it never saw the read: the full state asks.
			t.asked |= r.bit
			r.again = true
			return
		}
		t.done |= r.bit // it never saw the read
		t.worse(record.ReadCancelled)
	}
	t.retired |= r.bit
	t.back |= t.heldBy & r.bit
	g.look(u, t)
}

// settle gives the slot back once nothing is left of a request anywhere, and all was said about it.
func (g *Group) settle(u uint32, t *track) {
	if t.phase != trackEnded || t.pend != 0 || t.inNews.in || t.retired|g.dead != g.all || t.heldSaid && !t.backSaid {
		return
	}
	if e := g.engineOf(t.req.Engine); e != nil {
		e.tracked--
		if t.req.ExpiresNs != 0 {
			e.fixed--
		}
	}
	g.remotes.drop(&t.id, &t.idLen)
	g.runs.drop(t)
	g.unwait(u, t)
	g.tracked--
	use := t.use
	t.phase = trackFree
	s := &g.mem.Tracks[u]
	atomic.StoreUint64(&s.State, record.State(use+1, record.Free))
	if use+1 == record.None {
		g.Counters.Retired++
		return
	}
	record.PushFree(&g.mem.Control.TrackFree, &s.Next, u)
}

// goneOn and riskOn take what a rank has seen of a lease.
func (g *Group) goneOn(h record.Handle) {
	if u, t := g.trackAt(h); t != nil {
		g.pendGone(u, t)
	}
}

func (g *Group) riskOn(h record.Handle, left uint64) {
	u, t := g.trackAt(h)
	if t == nil || t.risk || t.gone || t.phase != trackLive || t.said != 0 {
		return
	}
	t.risk, t.riskLeft = true, left
	g.Counters.AtRisk++
	g.event(u, t, pendRisk)
}

func (x *said) Reject(in *record.TrackReq, remote []byte, _ clock.Instant) {
	g := x.group()
	g.Counters.Rejected++
	g.req = *in
	g.req.RemoteLen, g.req.LocalLen = uint16(len(remote)), 0
	if g.cfg.Between {
		g.req.SaidNs = 0
	}
	for i := range g.ranks {
		r := &g.ranks[i]
		if rec := g.room(r, record.TagReject, record.TrackLen+len(remote)); rec != nil {
			record.PutTrack(rec, g.req, remote, nil)
		} else if g.dead&r.bit == 0 {
			g.Counters.RejectsUntold++
		}
	}
}

// sayTrack tells the ranks of a request.
func (g *Group) sayTrack(u uint32, t *track) {
	for i := range g.ranks {
		if r := &g.ranks[i]; r.pastTrack(u) {
			g.sendTrack(r, t)
		}
	}
}

func (g *Group) sendTrack(r *rank, t *track) bool {
	id := g.remotes.get(&t.id, t.idLen)
	rec := g.room(r, record.TagTrack, record.TrackLen+len(id))
	if rec == nil {
		return false
	}
	g.req = t.req
	if g.cfg.Between {
		g.req.SaidNs = 0
	}
	if g.req.ExpiresNs != 0 {
		g.req.LeftNs = 1
		if e := g.engineOf(t.req.Engine); e != nil {
			if at, bound, ok := e.offset.Local(clock.RemoteInstant(min(t.req.ExpiresNs, 1<<62))); ok {
				g.req.LeftNs = uint64(max(at.Add(-bound).Sub(g.now), 1)) // the lease stands until then for certain
			}
		}
	}
	record.PutTrack(rec, g.req, id, nil)
	return true
}

// unwait takes a request out of the lists of those that wait for their engine's clock.
func (g *Group) unwait(u uint32, t *track) {
	if t.deadline == clock.Never {
		drop(&g.waiting, g.tracks, u, (*track).ofWait)
	} else {
		drop(&g.stuck, g.tracks, u, (*track).ofWait)
	}
}

// clockKnown tells the ranks of the requests that waited for an engine's clock; all of them, since that happens once an engine.
func (g *Group) clockKnown(engine uint64) {
	for _, l := range [2]*list{&g.waiting, &g.stuck} {
		for u := l.head; u != none; {
			t := &g.tracks[u]
			next := t.inWait.next
			if t.req.Engine == engine {
				g.unwait(u, t)
				t.wait = told
				g.sayTrack(u, t)
				g.sayParts(u, t)
			}
			u = next
		}
	}
}

// sayParts tells the ranks the parts of a read that have come so far.
func (g *Group) sayParts(u uint32, t *track) {
	for i := range g.ranks {
		r := &g.ranks[i]
		if !r.pastTrack(u) {
			continue
		}
		for c := t.runs; c != none; {
			if c = g.sendPart(r, u, t, c); c == noRoom {
				break
			}
		}
	}
}

// noRoom is what sendPart gives for a part that did not fit.
const noRoom = none - 1

// sendPart tells a rank the part that begins in chunk c, and gives the chunk of the next one.
func (g *Group) sendPart(r *rank, u uint32, t *track, c uint32) uint32 {
	n, part, next := 0, g.runs.chunks[c].part, c
	for next != none && g.runs.chunks[next].part == part {
		k := &g.runs.chunks[next]
		n += copy(g.part[n:], k.runs[:k.n])
		next = k.next
	}
	rec := g.room(r, record.TagRead, record.ReadLen+n*record.RunLen)
	if rec == nil {
		return noRoom
	}
	record.PutRead(rec, record.Read{Track: record.NewHandle(u, t.use), Part: part, Parts: t.parts, N: uint32(n)}, g.part[:n])
	return next
}

// engineLost ends what waits for the clock of an engine that is removed.
func (g *Group) engineLost(engine uint64) {
	for _, l := range [2]*list{&g.waiting, &g.stuck} {
		for u := l.head; u != none; {
			t := &g.tracks[u]
			next := t.inWait.next
			if t.req.Engine == engine {
				g.unwait(u, t)
				t.wait, t.retired = orphaned, g.all
				if t.said&saidRead != 0 {
					g.decide(u, t, record.ReadLost)
				} else {
					g.pendGone(u, t)
				}
			}
			u = next
		}
	}
}

// waitsStepMax bounds the reads that a step gives up.
const waitsStepMax = 1024

// stopWaiting gives up reads that waited too long for their engine's clock, oldest first.
func (g *Group) stopWaiting(now clock.Instant) {
	for range waitsStepMax { // the rest in the next step
		u := g.stuck.head
		if u == none || now.Before(g.tracks[u].deadline) {
			return
		}
		g.Counters.WaitTimeouts++
		g.decide(u, &g.tracks[u], record.ReadLost)
	}
}

// lowest gives the first rank of a set.
func lowest(set uint64) uint32 { return uint32(bits.TrailingZeros64(set)) }
