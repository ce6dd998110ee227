package group

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/log"
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
	withdrew       uint32 // that of its engine when it came

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
	inNews   list.Links
	inWait   list.Links
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

func (t *track) ofNews() *list.Links { return &t.inNews }
func (t *track) ofWait() *list.Links { return &t.inWait }

// trackAt gives the live request of a handle.
func (g *Group) trackAt(h record.Handle) (uint32, *track) {
	u := h.Slot()
	if h>>32 == 0 || int(u) >= len(g.tracks) || g.tracks[u].phase == trackFree || g.tracks[u].use != h.Use() {
		return 0, nil
	}
	return u, &g.tracks[u]
}

func (x *said) Track(in *record.TrackReq, remote, _ []byte, now clock.Instant) {
	x.group().drained(clock.Instant(in.SaidNs), now)
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
	t.withdrew = e.withdrew
	if in.ExpiresNs != 0 {
		e.fixed++
	}
	if in.Native != 0 && (in.Epoch != e.epoch || len(e.maps) == 0) {
		e.strange, e.since = in.Epoch, now
	}
	if !g.remotes.set(&t.id, &t.idLen, remote) { // a rank that has to hear of it again could not be told
		g.Counters.LongIDsFull++
		g.cfg.Log.Put(log.RequestIDsFull, now, log.Entry{Request: remote, A: uint64(len(remote))})
		g.orphan(u, t)
		return
	}
	t.req.RemoteLen, t.req.LocalLen = t.idLen, 0
	if t.req.ExpiresNs != 0 && !e.offset.Known() {
		t.wait, t.deadline = waits, clock.Never
		list.Push(&g.waiting, g.tracks, u, (*track).ofWait)
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
	list.Push(&g.news, g.tracks, u, (*track).ofNews)
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
	if t.phase != trackEnded || t.pend != 0 || t.inNews.In() || t.retired|g.dead != g.all || t.heldSaid && !t.backSaid {
		return
	}
	if _, e := g.placeOf(t.req.Engine); e != nil {
		e.tracked--
		if t.withdrew == e.withdrew && heartbeat.Missed(t.said&saidRead != 0, t.status, g.trouble(e) != 0) {
			e.missedAt = g.now
		}
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
	left := uint64(0)
	for i := range g.ranks {
		if r := &g.ranks[i]; !g.sayReject(r, &g.req, remote) && (g.dead|g.lost)&r.bit == 0 {
			left |= r.bit
		}
	}
	if k := g.keep(left, &g.Counters.RejectsUntold); k != nil {
		k.death, k.req = false, g.req
		copy(k.id[:], remote)
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
		if _, e := g.placeOf(t.req.Engine); e != nil { // no news now: they may tell of other requests
			if at, bound, ok := e.offset.Local(clock.RemoteInstant(min(t.req.ExpiresNs, 1<<62))); ok {
				from := g.now // where its time of arrival is all that a rank has
				if g.req.SaidNs != 0 {
					from = clock.Instant(g.req.SaidNs)
				}
				if g.cfg.Between && g.req.Native == 0 {
					bound += g.cfg.TransitMax
				}
				g.req.LeftNs = uint64(max(at.Add(-bound).Sub(from), 1)) // the lease stands until then for certain
			}
		}
	}
	record.PutTrack(rec, g.req, id, nil)
	return true
}
