package heartbeat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// tracked is what a plain map knows of an id at an owner.
type tracked struct {
	users map[record.Handle]bool // true: it reads
	read  bool                   // one of its users has read
	since clock.Instant          // first user
	beat  clock.Instant          // last heartbeat, 0 none
	cuts  uint64                 // steps that had cut a round before the one of this heartbeat
	again bool                   // it was the second one of a round
	left  clock.Instant          // since when its owner is owed the end, 0 not
	steps int                    // since then
}

// trackerModel is two owners, one of ours and a stock one, with maps of what is tracked at them.
type trackerModel struct {
	t      *rapid.T
	r      *rig
	owners [2]*owner
	engine [2]uint64
	ids    [2]map[string]*tracked
	heard  [2]int
	events int
	of     map[record.Handle]*tracked
	gone   clock.Instant // when an id was left by its last user
	cuts   uint64        // steps that have cut a round, before the present one
}

const (
	trackerStep     = 250 * time.Millisecond
	trackerInterval = 5 * time.Second // a sixth of 30 s
)

func newTrackerModel(t *rapid.T) *trackerModel {
	m := &trackerModel{t: t, of: map[record.Handle]*tracked{}}
	m.r = newRig(t, func(c *Config) {
		c.BatchBytesMax, c.Tracks = batchBytesLeast, 128
		c.BatchesStepMax = rapid.IntRange(8, 32).Draw(t, "batches a step")
		c.EndsStepMax = rapid.IntRange(4, 32).Draw(t, "ends a step")
	})
	for i := range m.owners {
		m.owners[i] = m.r.owner(fmt.Sprint("P", i), i == 1)
		m.engine[i] = m.r.connect(m.owners[i])
		m.ids[i] = map[string]*tracked{}
	}
	return m
}

// id draws an id; a small pool, so that requests share them. Stock ids have the length at which few fit a message.
func (m *trackerModel) id(stock int) (id string, slot uint32) {
	slot = uint32(rapid.IntRange(0, 99).Draw(m.t, "id"))
	if stock == 1 {
		return fmt.Sprintf("r%d%s", slot, strings.Repeat("-", int(slot)*9%300)), slot
	}
	return fmt.Sprint(slot), slot
}

// track tracks some requests; more than one message names.
func (m *trackerModel) track(*rapid.T) {
	k := rapid.IntRange(0, 1).Draw(m.t, "owner")
	for range rapid.IntRange(1, 40).Draw(m.t, "requests") {
		m.one(k)
	}
}

func (m *trackerModel) one(k int) {
	if len(m.of) >= 120 {
		return
	}
	id, slot := m.id(k)
	l := m.ids[k][id]
	switch {
	case l == nil || l.left != 0:
		if l != nil && (l.read || m.reads(l)) {
			return // an end that says that all was read is under way
		}
		l = &tracked{users: map[record.Handle]bool{}, since: m.r.now}
		m.ids[k][id] = l
	case l.read || m.reads(l):
		return
	}
	var h record.Handle
	if k == 0 {
		h = m.r.track(m.engine[0], m.owners[0], slot, 0)
	} else {
		h = m.r.trackStock(m.engine[1], id)
	}
	l.users[h] = false
	m.of[h] = l
}

func (m *trackerModel) reads(l *tracked) bool {
	for _, reads := range l.users {
		if reads {
			return true
		}
	}
	return false
}

// pick draws a handle that does not read, in order of handles, so that the same draws give the same one.
func (m *trackerModel) pick() (record.Handle, bool) {
	var all []record.Handle
	for s := range uint32(len(m.r.tracks)) {
		for h, l := range m.of {
			if h.Slot() == s && !l.users[h] {
				all = append(all, h)
			}
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	return rapid.SampledFrom(all).Draw(m.t, "request"), true
}

func (m *trackerModel) leave(h record.Handle) {
	l := m.of[h]
	delete(m.of, h)
	if delete(l.users, h); len(l.users) == 0 {
		l.left, l.steps = m.r.now, 0
		m.gone = m.r.now
	}
}

func (m *trackerModel) untrack(*rapid.T) {
	if h, ok := m.pick(); ok {
		m.r.k.Untrack(h, m.r.now)
		m.leave(h)
	}
}

func (m *trackerModel) read(*rapid.T) {
	if h, ok := m.pick(); ok {
		m.of[h].users[h] = true
		m.r.read(h, record.Run{Local: h.Slot() % blockCount, Remote: h.Slot() % blockCount, N: 1})
	}
}

func (m *trackerModel) pass(*rapid.T) {
	for range rapid.IntRange(1, 40).Draw(m.t, "steps") {
		m.step()
	}
}

func (m *trackerModel) step() {
	m.cuts = m.r.k.Counters().BeatsCut
	m.r.step(m.r.now.Add(trackerStep))
	for ; m.events < len(m.r.events); m.events++ {
		e := &m.r.events[m.events]
		h := record.Handle(e.Handle)
		switch l := m.of[h]; {
		case e.Kind == record.EvEngineUp:
		case e.Kind == record.EvReadDone && l != nil && l.users[h]:
			l.read = true
			m.leave(h)
		default:
			m.t.Fatalf("event %s of %#x", kindNames[e.Kind], h)
		}
	}
	for k, o := range m.owners {
		for ; m.heard[k] < len(o.heard); m.heard[k]++ {
			m.hear(k, &o.heard[m.heard[k]])
		}
		for id, l := range m.ids[k] {
			m.check(k, id, l)
		}
	}
}

func (m *trackerModel) hear(k int, msg *heard) {
	if msg.size > batchBytesLeast {
		m.t.Fatalf("a message of %d bytes, at most %d", msg.size, batchBytesLeast)
	}
	named := map[string]bool{}
	for _, id := range msg.ids {
		l := m.ids[k][id]
		if l == nil || named[id] {
			m.t.Fatalf("%s names %s, which is not tracked, or twice", msg.what, id)
		}
		named[id] = true
		switch msg.what {
		case "renew", "HB":
			if l.left != 0 && l.left < msg.at.Add(-trackerStep) {
				m.t.Fatalf("a heartbeat for %s at %v, which has no user since %v", id, msg.at, l.left)
			}
			// Where an id leaves the list of a round that is cut into steps, the last one takes its place, and may be named once more.
			cuts := m.r.k.Counters().BeatsCut
			again := cuts > l.cuts && !m.gone.Before(l.beat.Add(-trackerStep)) && !l.again
			if l.beat != 0 && msg.at.Sub(l.beat) < trackerInterval/2 && !again {
				m.t.Fatalf("heartbeats for %s at %v and %v", id, l.beat, msg.at)
			}
			l.again = l.beat != 0 && msg.at.Sub(l.beat) < trackerInterval/2
			l.beat, l.cuts = msg.at, m.cuts
		case "complete", "release", "done":
			rides := k == 1 && m.reads(l) && len(l.users) == 1 // a stock completion goes with the last part of the READ
			if l.left == 0 && !rides {
				m.t.Fatalf("%s for %s, which has %d users", msg.what, id, len(l.users))
			}
			if k == 0 && (msg.what == "complete") != l.read {
				m.t.Fatalf("%s for %s, read %v", msg.what, id, l.read)
			}
			if l.steps < 0 {
				m.t.Fatalf("%s for %s a second time", msg.what, id)
			}
			if l.steps = -1; l.left != 0 {
				delete(m.ids[k], id)
			}
		default:
			m.t.Fatalf("message %s", msg.what)
		}
	}
}

// check asks, after a step, whether an id is beaten for in time, and whether its owner has been told its end.
func (m *trackerModel) check(k int, id string, l *tracked) {
	switch {
	case l.left == 0 && !m.reads(l) && l.steps >= 0:
		last := max(l.since, l.beat)
		if m.r.now.Sub(last) > trackerInterval+trackerInterval/5+4*trackerStep {
			m.t.Fatalf("at %v %s of owner %d, tracked since %v, was last beaten for at %v", m.r.now, id, k, l.since, l.beat)
		}
	case l.left != 0 && l.steps < 0:
		delete(m.ids[k], id)
	case l.left != 0:
		if l.steps++; l.steps > 60 {
			m.t.Fatalf("at %v the owner has not been told of the end of %s at %v", m.r.now, id, l.left)
		}
	}
}

// Whoever tracks what for how long, alone or with others: each id is named once an interval in messages within their limit, never after
// its last user has left, and its owner is told the end once, as read if one of the users has read.
func TestAnyOrderOfTracksReadsAndUntracksAgainstTheMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newTrackerModel(t)
		m.step()
		t.Repeat(map[string]func(*rapid.T){
			"track": m.track, "untrack": m.untrack, "untrack another": m.untrack, "and another": m.untrack, "read": m.read, "time passes": m.pass,
		})
		for len(m.of) > 0 {
			h, ok := m.pick()
			if !ok {
				m.step()
				continue
			}
			m.r.k.Untrack(h, m.r.now)
			m.leave(h)
		}
		for range 80 {
			m.step()
		}
		if n := len(m.ids[0]) + len(m.ids[1]); n != 0 {
			t.Fatalf("%d ends were not told", n)
		}
		m.r.wantRest()
	})
}
