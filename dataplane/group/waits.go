package group

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Requests with a fixed end that no rank was told yet, since their engine's clock is not known: waiting, and stuck once a read of
// theirs has a time-out.

// unwait takes a request out of the lists of those that wait for their engine's clock.
func (g *Group) unwait(u uint32, t *track) {
	if t.deadline == clock.Never {
		list.Drop(&g.waiting, g.tracks, u, (*track).ofWait)
	} else {
		list.Drop(&g.stuck, g.tracks, u, (*track).ofWait)
	}
}

// clockKnown tells the ranks of the requests that waited for an engine's clock; all of them, since that happens once an engine.
func (g *Group) clockKnown(engine uint64) {
	for _, l := range [2]*list.List{&g.waiting, &g.stuck} {
		for u := l.Head; u != none; {
			t := &g.tracks[u]
			next := t.inWait.Next
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

// engineLost ends what waits for the clock of an engine that is removed.
func (g *Group) engineLost(engine uint64) {
	for _, l := range [2]*list.List{&g.waiting, &g.stuck} {
		for u := l.Head; u != none; {
			t := &g.tracks[u]
			next := t.inWait.Next
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
		u := g.stuck.Head
		if u == none || now.Before(g.tracks[u].deadline) {
			return
		}
		g.Counters.WaitTimeouts++
		t := &g.tracks[u]
		g.cfg.Log.Put(log.ClockUnknown, now, log.Entry{Request: g.remotes.get(&t.id, t.idLen)})
		g.decide(u, t, record.ReadLost)
	}
}
