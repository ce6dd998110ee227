package group

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
)

// What a tracked request reads, over all ranks: one outcome, and one word that the blocks are back.

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
			list.Push(&g.stuck, g.tracks, u, (*track).ofWait)
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
		if t.wait == waits && g.dead != 0 { // no rank knows of it, so none will say how it ended
			g.decide(u, t, record.ReadLost)
			return
		}
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
