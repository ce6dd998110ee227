package core

import (
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
)

// peerWatch is where steps note how peers stand, for the goroutine that asks them.
type peerWatch struct {
	places  []watched // by the slot of an engine's handle
	used    atomic.Uint32
	changed atomic.Bool
	jump    clock.Jump    // the goroutine's
	at      uint32        // where the step goes on; its own
	next    clock.Instant // not before it; its own
}

type watched struct {
	engine atomic.Uint64 // handle; 0: nobody is asked for it
	seen   atomic.Uint64
}

// Bits of seen; the low half is heartbeat.EngineView.Breaks.
const (
	seenTracked = 1 << 32
	seenFixed   = 1 << 33
	seenBroken  = 1 << 34
	seenStrange = 1 << 35
)

const (
	looksMax = 16               // engines that one step looks at; the rest waits for the next ones
	looksGap = time.Millisecond // between two looks, so that a loop of empty steps does not pay for them
)

func (w *peerWatch) init(engines int) { w.places = make([]watched, engines) }

func (w *peerWatch) add(engine uint64) {
	slot := record.Handle(engine).Slot()
	if int(slot) >= len(w.places) {
		return
	}
	w.places[slot].seen.Store(0)
	w.places[slot].engine.Store(engine)
	for used := w.used.Load(); used <= slot && !w.used.CompareAndSwap(used, slot+1); {
		used = w.used.Load()
	}
}

func (w *peerWatch) remove(engine uint64) {
	if slot := record.Handle(engine).Slot(); int(slot) < len(w.places) {
		w.places[slot].engine.CompareAndSwap(engine, 0)
	}
}

// of gives what was seen last of an engine.
func (w *peerWatch) of(engine uint64) uint64 {
	if slot := record.Handle(engine).Slot(); int(slot) < len(w.places) && w.places[slot].engine.Load() == engine {
		return w.places[slot].seen.Load()
	}
	return 0
}

// look is the step's: it notes how some engines stand.
func (s *sideChannel) look(now clock.Instant, view func(engine uint64) heartbeat.EngineView) {
	w := &s.watch
	used := w.used.Load()
	if used == 0 || now < w.next {
		return
	}
	w.next = now.Add(looksGap)
	for range min(looksMax, used) {
		if w.at >= used {
			w.at = 0
		}
		if engine := w.places[w.at].engine.Load(); engine != 0 {
			s.Note(engine, view(engine))
		}
		w.at++
	}
}

// Note takes how an engine stands. A step's: no lock, no allocation.
func (s *sideChannel) Note(engine uint64, v heartbeat.EngineView) {
	slot := record.Handle(engine).Slot()
	if int(slot) >= len(s.watch.places) {
		return
	}
	p := &s.watch.places[slot]
	seen := uint64(v.Breaks)
	if v.Tracked > 0 {
		seen |= seenTracked
	}
	if v.Fixed > 0 {
		seen |= seenFixed
	}
	if v.State == heartbeat.Broken {
		seen |= seenBroken
	}
	if v.Strange {
		seen |= seenStrange
	}
	if p.engine.Load() != engine || p.seen.Load() == seen {
		return
	}
	p.seen.Store(seen)
	s.watch.changed.Store(true)
	s.notify()
}
