package edges

import (
	"fmt"

	wm "github.com/kvlease/kvlease/internal/weakmem"
)

var errf = fmt.Errorf

// wakeScenes: who sleeps says so before looking again, and who publishes looks for sleepers behind that. Descriptors are words
// whose system calls are ordered by the kernel's lock: acquire and release, nothing more is taken for granted.
func wakeScenes() []Scene {
	const lost = "a record is published and nobody says so"
	again := Shortcut{"the rings not looked at again", "between saying and sleeping"}
	return []Scene{{
		Name: "producer in C and the pump",
		What: "no published record waits for the pump's period",
		Sites: []Site{
			{"W1", "kvl_nudge: fence", wm.SeqCst, wm.AcqRel},
			{"W2", "pump.lieDown: asleep stored", wm.SeqCst, wm.Release},
			{"W2", "pump.lieDown: rings looked at", wm.SeqCst, wm.Acquire},
		},
		Shortcuts: []Shortcut{again},
		build: func(b *build) wm.Program {
			return wm.Program{Threads: []wm.Thread{
				{Name: "producer", Body: func(t *wm.T) {
					for n := range uint64(2) {
						t.Store("head", n+1, wm.Release)
						fence(t, b.at(0))
						if t.Load("asleep", wm.Relaxed) != 0 && t.Swap("asleep", 0, wm.AcqRel) != 0 {
							t.Add("fd", 1, wm.AcqRel)
						}
					}
				}},
				pump(b, 1, 2, lost),
			}}
		},
	}, {
		Name: "producer in Go, or another end of a stream, and the pump",
		What: "no published record waits for the pump's period",
		Sites: []Site{
			{"W1", "host.publish, stream end.Publish: head stored", wm.SeqCst, wm.Release},
			{"W1", "host.publish, stream end.Publish: asleep looked at", wm.SeqCst, wm.Acquire},
			{"W2", "pump.lieDown, stream end.Sleeping: asleep stored", wm.SeqCst, wm.Release},
			{"W2", "pump.pending, stream end.Pending: rings looked at", wm.SeqCst, wm.Acquire},
		},
		Shortcuts: []Shortcut{again},
		build: func(b *build) wm.Program {
			return wm.Program{Threads: []wm.Thread{
				{Name: "producer", Body: func(t *wm.T) {
					for n := range uint64(2) {
						t.Store("head", n+1, b.at(0))
						if t.Load("asleep", b.at(1)) != 0 {
							if _, ok := t.CompareAndSwap("asleep", 1, 0, wm.SeqCst, wm.SeqCst); ok {
								t.Add("fd", 1, wm.AcqRel)
							}
						}
					}
				}},
				pump(b, 2, 3, lost),
			}}
		},
	}, overflowWake(lost), inboxWake(), loopScene(1), loopScene(2), {
		Name:      "events and a loop that sleeps on their descriptor",
		What:      "no event waits once it is published",
		Shortcuts: []Shortcut{{"the ring not looked at once the descriptor is empty", ""}, {"the descriptor emptied behind the ring", ""}},
		build:     events,
	}}
}

// pump takes two records: lieDown, sleep, getUp, and a step, until it has all.
func pump(b *build, stored, looked int, lost string) wm.Thread {
	return wm.Thread{Name: "pump", Body: func(t *wm.T) {
		at := uint64(0)
		for {
			at = max(at, t.Load("head", wm.Acquire)) // a step
			if at == 2 {
				return
			}
			t.Store("asleep", 1, b.at(stored))
			if b.takes("the rings not looked at again") || t.Load("head", b.at(looked)) == at {
				t.Sleep("fd", wm.Acquire, nonzero, lost)
			}
			t.Store("asleep", 0, wm.SeqCst)
			if t.Load("fd", wm.Acquire) != 0 {
				t.Swap("fd", 0, wm.AcqRel)
			}
		}
	}}
}

// overflowWake is the pump beside a producer whose ring is full: it looks into the overflow ring only of who was ever refused room.
func overflowWake(lost string) Scene {
	const late = "the refusal counted behind the publish"
	return Scene{
		Name: "producer in C whose ring is full, and the pump",
		What: "no entry of the overflow ring waits for the pump's period, though only that of a refused producer is looked at",
		Sites: []Site{
			{"W1", "kvl_nudge: fence", wm.SeqCst, wm.AcqRel},
			{"W2", "pump.lieDown: asleep stored", wm.SeqCst, wm.Release},
			{"W2", "submit source.silent: refused looked at", wm.SeqCst, wm.Acquire},
			{"W2", "submit source.silent: overflow ring looked at", wm.SeqCst, wm.Acquire},
		},
		Shortcuts: []Shortcut{{late, "the pump sleeps past it"}},
		build: func(b *build) wm.Program {
			return wm.Program{Threads: []wm.Thread{
				{Name: "producer", Body: func(t *wm.T) {
					if !b.takes(late) {
						t.Store("refused", 1, wm.Relaxed)
					}
					for n := range uint64(2) {
						t.Store("over", n+1, wm.Release)
						fence(t, b.at(0))
						if t.Load("asleep", wm.Relaxed) != 0 && t.Swap("asleep", 0, wm.AcqRel) != 0 {
							t.Add("fd", 1, wm.AcqRel)
						}
					}
					t.Store("refused", 1, wm.Relaxed)
				}},
				{Name: "pump", Body: func(t *wm.T) {
					over := func(refused, head wm.Order) uint64 {
						if t.Load("refused", refused) == 0 {
							return 0
						}
						return t.Load("over", head)
					}
					for at := uint64(0); ; {
						if at = max(at, over(wm.Relaxed, wm.Acquire)); at == 2 { // a step
							return
						}
						t.Store("asleep", 1, b.at(1))
						if over(b.at(2), b.at(3)) <= at {
							t.Sleep("fd", wm.Acquire, nonzero, lost)
						}
						t.Store("asleep", 0, wm.SeqCst)
						if t.Load("fd", wm.Acquire) != 0 {
							t.Swap("fd", 0, wm.AcqRel)
						}
					}
				}},
			}}
		},
	}
}

// inboxWake is the channel behind the inbox of the death wire. What a send that finds it full has seen orders nothing.
func inboxWake() Scene {
	const byChannel = "sent whenever there is room, without asked"
	return Scene{
		Name: "wakes of the death wire's inbox",
		What: "no entry waits for the next one",
		Sites: []Site{
			{"I3", "inbox.put: head stored", wm.SeqCst, wm.Release},
			{"I3", "inbox.put: asked swapped", wm.SeqCst, wm.AcqRel},
			{"I4", "inbox.woken: asked stored", wm.SeqCst, wm.Release},
			{"I4", "inbox.take: head looked at", wm.SeqCst, wm.Acquire},
		},
		Shortcuts: []Shortcut{{byChannel, "a store and a load that arm64 may turn round"}},
		build: func(b *build) wm.Program {
			return wm.Program{Threads: []wm.Thread{
				{Name: "put", Body: func(t *wm.T) {
					for n := range uint64(2) {
						t.Store("head", n+1, b.at(0))
						if b.takes(byChannel) {
							if t.Load("full", wm.Relaxed) == 0 {
								t.Swap("full", 1, wm.AcqRel)
							}
						} else if t.Swap("asked", 1, b.at(1)) == 0 {
							t.Assert(t.Swap("full", 1, wm.AcqRel) == 0, "a send that would wait")
						}
					}
				}},
				{Name: "take", Body: func(t *wm.T) {
					for at := uint64(0); at < 2; {
						t.Sleep("full", wm.Acquire, nonzero, "an entry is there and nobody says so")
						t.Swap("full", 0, wm.AcqRel)
						if !b.takes(byChannel) {
							t.Store("asked", 0, b.at(2))
						}
						at = max(at, t.Load("head", b.at(3)))
					}
				}},
			}}
		},
	}
}

// loopScene is that of the inline mode with so many records.
func loopScene(records uint64) Scene {
	s := Scene{
		Name: fmt.Sprintf("producer in C and a loop that sleeps on kvl_wait_fd, records: %d", records),
		What: "no published record waits for the loop's tick, and a loop without work sleeps",
		Sites: []Site{
			{"W1", "kvl_nudge: fence", wm.SeqCst, wm.AcqRel},
			{"W2", "kvl_tick_before_step: fence", wm.SeqCst, wm.Plain},
		},
		Shortcuts: []Shortcut{{stillSetting, "the timer stays readable, and the loop spins"}},
		Long:      records > 1,
		build:     func(b *build) wm.Program { return loop(b, records) },
	}
	if records > 1 {
		s.Shortcuts = append(s.Shortcuts, Shortcut{notAfter, "the producer's setting is overwritten"},
			Shortcut{notLeft, "a step takes a bounded number of records"},
			Shortcut{setBehind, "a step between hears of neither"})
	}
	return s
}

const (
	stillSetting = "kicked cleared while its timer is being set"
	notAfter     = "kicked not looked at after the timer was set"
	notLeft      = "what a step left not looked for"
	setBehind    = "kicked set behind the timer"
)

// Of the word kicked.
const (
	idle    = iota
	kicking // the timer is being set
	kicked
)

// loop is the inline mode: a timer that is readable, or not, and a word that says that somebody sets it so, or has.
func loop(b *build, records uint64) wm.Program {
	kick := func(t *wm.T) {
		switch {
		case b.takes(stillSetting):
			if t.Swap("kicked", kicked, wm.SeqCst) == idle {
				t.Swap("timer", 1, wm.AcqRel)
			}
		case b.takes(setBehind):
			t.Swap("timer", 1, wm.AcqRel)
			t.Store("kicked", kicked, wm.SeqCst)
		default:
			if _, ok := t.CompareAndSwap("kicked", idle, kicking, wm.SeqCst, wm.Relaxed); ok {
				t.Swap("timer", 1, wm.AcqRel)
				t.Store("kicked", kicked, wm.Release)
			}
		}
	}
	return wm.Program{
		Init: map[string]uint64{"timer": 1, "kicked": kicked}, // kvl_wait_fd has kicked
		Threads: []wm.Thread{
			{Name: "producer", Body: func(t *wm.T) {
				for n := range records {
					t.Store("head", n+1, wm.Release)
					fence(t, b.at(0))
					if t.Load("kicked", wm.Relaxed) == idle {
						kick(t)
					}
				}
				t.Store("done", 1, wm.Release)
			}},
			{Name: "loop", Body: func(t *wm.T) {
				taken, stale := uint64(0), false
				step := func() {
					if _, ok := t.CompareAndSwap("kicked", kicked, idle, wm.SeqCst, wm.Relaxed); ok {
						stale = true
					}
					fence(t, b.at(1))
					if t.Load("head", wm.Acquire) > taken { // it takes one
						taken++
					}
					more := !b.takes(notLeft) && t.Load("head", wm.Acquire) > taken
					if !more && !stale {
						return // the timer is off, or is just being set
					}
					stale = false
					t.Swap("timer", 0, wm.AcqRel)
					if more || !b.takes(notAfter) && t.Load("kicked", wm.SeqCst) != idle {
						stale = true
						t.Swap("timer", 1, wm.AcqRel)
					}
				}
				for wakes := 0; taken < records; wakes++ {
					if wakes == 4 {
						t.Await("done", wm.Acquire, nonzero) // what a producer has begun it comes to the end of
					}
					if wakes == 6 {
						return // this way is long enough
					}
					t.Sleep("timer", wm.Acquire, nonzero, "a record is published and the timer is off")
					step()
				}
				t.Await("done", wm.Acquire, nonzero)
				step()
				step()
				t.Assert(t.Load("timer", wm.Acquire) == 0, "the timer stays readable, and nothing is left to do")
			}},
		},
	}
}

// events is the core that publishes and rings, and kvl_poll in a loop that sleeps between.
func events(b *build) wm.Program {
	const all = 2
	return wm.Program{Threads: []wm.Thread{
		{Name: "core", Body: func(t *wm.T) {
			for n := range uint64(all) {
				t.Store("head", n+1, wm.Release)
				t.Add("fd", 1, wm.AcqRel)
			}
		}},
		{Name: "loop", Body: func(t *wm.T) {
			taken := uint64(0)
			take := func() { taken = max(taken, t.Load("head", wm.Acquire)) }
			for taken < all {
				t.Sleep("fd", wm.Acquire, nonzero, "an event is published and the descriptor is empty")
				switch {
				case b.takes("the ring not looked at once the descriptor is empty"):
					take()
					t.Swap("fd", 0, wm.AcqRel)
				case b.takes("the descriptor emptied behind the ring"):
					take()
					take()
					t.Swap("fd", 0, wm.AcqRel)
				default:
					take()
					if t.Swap("fd", 0, wm.AcqRel) != 0 {
						take()
					}
				}
			}
		}},
	}}
}
