package sim

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// Options of a run that change nothing of what happens in it.
type Options struct {
	Log    bool         // keep the log
	Probes []Probe      // looks at the world, in order of time
	Stop   func() bool  // asked before each event; true ends the run with ErrStopped
	Sites  *trace.Sites // of all contexts; nil: none
}

// ErrStopped says that a run was called off by Options.Stop: nothing can be said of it.
var ErrStopped = errors.New("sim: called off")

// Probe looks at the world at a time, behind what is due then. One behind the end of the run is not carried out.
type Probe struct {
	At   time.Duration
	Look func(*World)
}

// startInstant is true time at the start: late enough for every offset of an engine's clock.
const startInstant = clock.Instant(100 * time.Hour)

// Run carries a schedule out. An error says that the schedule is none: an unknown engine, a verb without its fields.
func Run(s Schedule, o Options) (*Result, error) {
	w, err := newWorld(&s, o)
	if err != nil {
		return nil, err
	}
	defer w.close()
	for i := range s.Actions {
		a := &s.Actions[i]
		w.at(startInstant.Add(a.At), func() { w.act(a) })
	}
	for _, p := range o.Probes {
		w.at(startInstant.Add(p.At), func() {
			w.at(w.now, func() { p.Look(w) }) // behind all that was due before it was
		})
	}
	w.runUntil(startInstant.Add(s.Span))
	if s.Settle >= 0 && !w.over {
		w.settle()
	}
	if w.over {
		return nil, ErrStopped
	}
	return &w.res, nil
}

// check holds what a schedule must be.
func (s *Schedule) check() error {
	if len(s.Engines) == 0 {
		return fmt.Errorf("sim: a schedule without engines")
	}
	for i := range s.Engines {
		e := &s.Engines[i]
		switch {
		case e.ID == "":
			return fmt.Errorf("sim: engine %d has no id", i)
		case slices.IndexFunc(s.Engines, func(o Engine) bool { return o.ID == e.ID }) != i:
			return fmt.Errorf("sim: two engines have the id %q", e.ID)
		}
		if err := e.check(); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		for _, k := range e.Known {
			if s.engine(k) == nil || k == e.ID {
				return fmt.Errorf("sim: engine %q knows %q, which is none", e.ID, k)
			}
		}
	}
	if err := s.Link.check(); err != nil {
		return fmt.Errorf("sim: %w", err)
	}
	for i := range s.Actions {
		a := &s.Actions[i]
		if err := a.check(); err != nil {
			return fmt.Errorf("sim: action %d (%s at %v): %w", i, a.Do, a.At, err)
		}
		if s.engine(a.Engine) == nil {
			return fmt.Errorf("sim: action %d (%s at %v): no engine %q", i, a.Do, a.At, a.Engine)
		}
		if a.Peer != "" && s.engine(a.Peer) == nil {
			return fmt.Errorf("sim: action %d (%s at %v): no engine %q", i, a.Do, a.At, a.Peer)
		}
		v, ok := verbs[a.Do]
		if !ok {
			return fmt.Errorf("sim: action %d: unknown verb %q", i, a.Do)
		}
		if v.peer && a.Peer == "" || v.req && a.Req == "" && a.As == "" {
			return fmt.Errorf("sim: action %d (%s at %v) lacks its peer or its req", i, a.Do, a.At)
		}
	}
	return nil
}

func (s *Schedule) engine(id string) *Engine {
	for i := range s.Engines {
		if s.Engines[i].ID == id {
			return &s.Engines[i]
		}
	}
	return nil
}

// verbs are what actions can do, and whether they need a peer and a request.
var verbs = map[Verb]struct{ peer, req bool }{
	Expect: {req: true}, Grant: {req: true}, Cancel: {req: true}, Revoke: {req: true}, Pressure: {},
	Track: {peer: true, req: true}, Read: {req: true}, Untrack: {req: true}, Reject: {peer: true, req: true},
	Heartbeat: {peer: true}, Completion: {peer: true}, Renew: {peer: true}, Complete: {peer: true}, Release: {peer: true},
	Leaving: {peer: true}, Bytes: {peer: true},
	Lose: {peer: true}, Double: {peer: true}, Hold: {peer: true}, FailRead: {}, HoldRead: {},
	SetLink: {peer: true}, Partition: {peer: true}, Reset: {peer: true}, Handshake: {}, WireCut: {peer: true},
	Stop: {}, Stall: {}, SetPass: {}, Kill: {}, Start: {}, Clock: {}, Suspend: {}, Poison: {}, Drain: {}, Unregister: {}, Register: {},
	LoseDelta: {}, DoubleDelta: {}, SwapDelta: {}, LoseRank: {}, AddEngine: {peer: true}, RemoveEngine: {peer: true},
}
