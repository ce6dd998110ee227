package sim

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// When all faults are over and everything has come to its end, each pair of engines that has met and is not broken for good serves a
// request once more: nothing that went wrong may have left them deaf. So a connection that never heals, an engine that is taken for
// dead for ever, a slot or a block that is lost, and a full state that left something out show, though no lease tells of them.

// aliveTries is how often a pair may fail: what one knows of the other may be old, and the first request may be what finds it out.
const aliveTries = 4

// bondEvery is how often the last requests are looked at.
const bondEvery = 100 * time.Millisecond

// whole reports that nothing of a life is lost, or leaving, for good.
func (l *life) whole() bool {
	if l.dead || l.stock != nil || l.drains || l.app.broken || l.host != nil && l.host.poisoned {
		return false
	}
	for _, r := range l.ranks {
		if r.gone || r.poisoned || r.blob == nil {
			return false
		}
	}
	if !l.side.whole { // a rank has begun to sleep, and the others have not
		return false
	}
	for _, p := range l.w.places { // two engines of one name are each other's trouble
		if o := p.life; o != l && !o.dead && o.id == l.id {
			return false
		}
	}
	return true
}

// knows reports that an engine has asked the one at another place.
func (s *side) knows(at *place) bool {
	for _, p := range s.peers {
		if p.at == at && at.life != nil && p.id == at.life.id {
			return true
		}
	}
	return false
}

// bond is a pair of engines, and what they do last.
type bond struct {
	owner, reader *life
	tries         int
	why           string // it went wrong
	g             *grant
	q             *request
}

// ask begins a request of a pair. What is refused, since a cache is full of what is decoded from, say, leaves nothing behind.
func (b *bond) ask(w *World) error {
	err := b.begin(w)
	if err == nil {
		return nil
	}
	if b.q != nil {
		_ = b.reader.app.untrack(b.q)
	}
	if b.g != nil && !b.g.ended {
		_ = b.owner.app.host.Cancel(b.g.handle)
		b.g.cancel = true
	}
	return err
}

func (b *bond) begin(w *World) error {
	b.tries++
	b.g, b.q = nil, nil
	name := fmt.Sprintf("last %d of %s at %s", b.tries, b.owner.place.spec.ID, b.reader.place.spec.ID)
	if err := b.owner.app.grant(name, name, 1, 0, false); err != nil {
		return fmt.Errorf("grant: %w", err)
	}
	b.g = w.grants[name]
	if err := b.reader.app.track(name, b.g); err != nil {
		return fmt.Errorf("track: %w", err)
	}
	b.q = w.requests[b.reader.place.spec.ID+"/"+name]
	if err := b.reader.app.read(b.q, 0, 1); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	return nil
}

// over looks at the request of a pair.
func (b *bond) over() bool {
	switch {
	case b.q == nil || !b.q.read:
		return true
	case !b.q.outcome:
		b.why = "its read has no outcome"
		return false
	case !b.q.done:
		b.why = "its read fails: " + nameOf(readNames[:], b.q.status)
	case !b.g.ended:
		b.why = "it was read, and its lease is held"
		return false
	case b.g.reason != record.FreedCompleted:
		b.why = "it was read, and its lease ends as " + nameOf(freedNames[:], b.g.reason)
	default:
		b.why = ""
	}
	return true
}

// proveAlive has each pair serve a request.
func (w *World) proveAlive(longest time.Duration) {
	before := w.res
	defer func() { // these are no requests of the schedule
		after := w.res
		w.res = before
		w.res.Violations, w.res.Log, w.res.Steps = after.Violations, after.Log, after.Steps
	}()
	var all []*bond
	for _, p := range w.places {
		for _, d := range w.places {
			if p != d && p.life.whole() && d.life.whole() && d.life.side.knows(p) {
				all = append(all, &bond{owner: p.life, reader: d.life, why: "nothing was asked"})
			}
		}
	}
	// A slot whose expectation ended before a rank heard of it stands one use too low there until the next grant is heard: a read that
	// comes first is stale. There are at most as many of these slots as expectations.
	tries := aliveTries
	for i := range w.s.Actions {
		if w.s.Actions[i].Do == Expect {
			tries++
		}
	}
	for range tries {
		open := 0
		for _, b := range all {
			if b.why == "" {
				continue
			}
			open++
			if err := b.ask(w); err != nil {
				b.why = err.Error()
			}
		}
		if open == 0 {
			return
		}
		// The longest pause of a side channel, and a lease.
		for end := w.now.Add(backoffMax + 2*longest); w.now < end && !w.over; {
			w.runUntil(w.now.Add(bondEvery))
			over := true
			for _, b := range all {
				over = b.over() && over
			}
			if over {
				break
			}
		}
		w.runUntil(w.now.Add(max(longest, backoffMax/2)))
	}
	for _, b := range all {
		if b.why != "" && !w.over {
			w.broke(Live, b.reader.place.spec.ID, "", "the last requests from %s fail when all faults are over: %s", b.owner.id, b.why)
		}
	}
}
