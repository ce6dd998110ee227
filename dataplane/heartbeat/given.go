package heartbeat

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// LoadEngine hands in the handshakes of all ranks of an engine that this rank talks to (topology.Reach), in any order, all of
// one boot. The steps load them, one a step. Another epoch or other metadata than the ones known make the engine a new
// one. Any goroutine; what a step needs is allocated here.
func (t *Tracker) LoadEngine(engine uint64, ranks []PeerRank) error {
	r := t.reg
	r.mu.Lock()
	e := r.lookup(engine)
	if e == nil {
		r.mu.Unlock()
		return ErrStale
	}
	desc, reach, readers, local := e.desc, e.reach, e.readers, r.local // the first three are not changed while the engine is known
	r.mu.Unlock()
	maps := make([]*wire.Handshake, len(reach))
	for _, k := range ranks {
		at := slices.Index(reach, k.Rank)
		if at < 0 || maps[at] != nil {
			return fmt.Errorf("rank %d of engine %q, this rank talks to each of %d once: %w", k.Rank, desc.ID, reach, ErrRank)
		}
		maps[at] = k.Map
	}
	if at := slices.Index(maps, nil); at >= 0 {
		return fmt.Errorf("rank %d of engine %q is missing: %w", reach[at], desc.ID, ErrRank)
	}
	var f *facts
	for made := false; !made; { // again if another place to read into was set meanwhile
		var err error
		if f, err = t.factsOf(&desc, reach, readers, local, maps); err != nil {
			return err
		}
		r.mu.Lock()
		if made = r.local == local; !made {
			local = r.local
			r.mu.Unlock()
		}
	}
	defer r.mu.Unlock()
	if e = r.lookup(engine); e == nil {
		return ErrStale
	}
	copy(e.kept(), maps)
	e.given, e.dead, e.over = f, false, false
	r.note(record.Handle(engine).Slot())
	return nil
}

// LoadHandshake is LoadEngine for handshakes that come one by one: the engine is loaded when those of all ranks that this one
// talks to are there. A handshake of another boot than those handed in before puts them aside.
func (t *Tracker) LoadHandshake(engine uint64, rank uint32, h *wire.Handshake) error {
	if h == nil {
		return fmt.Errorf("%w: none", ErrHandshake)
	}
	r := t.reg
	r.mu.Lock()
	e := r.lookup(engine)
	if e == nil {
		r.mu.Unlock()
		return ErrStale
	}
	at := slices.Index(e.reach, rank)
	if at < 0 {
		r.mu.Unlock()
		return fmt.Errorf("rank %d of engine %q, this rank talks to %d: %w", rank, e.desc.ID, e.reach, ErrRank)
	}
	desc, reach, readers := e.desc, e.reach, e.readers
	r.mu.Unlock()
	if _, err := t.factsOf(&desc, reach[at:at+1], readers[at:at+1], nil, []*wire.Handshake{h}); err != nil {
		return err
	}
	maps, err := r.merge(engine, at, h)
	if err != nil || slices.Index(maps, nil) >= 0 {
		return err
	}
	ranks := make([]PeerRank, len(maps))
	for i, m := range maps {
		ranks[i] = PeerRank{Rank: reach[i], Map: m}
	}
	return t.LoadEngine(engine, ranks)
}

// merge puts a handshake beside those that are kept, without those of other boots. They are kept so if one is still missing; else
// LoadEngine keeps them. Under one lock: what another goroutine hands in meanwhile must not be lost.
func (r *registry) merge(engine uint64, at int, h *wire.Handshake) ([]*wire.Handshake, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.lookup(engine)
	if e == nil {
		return nil, ErrStale
	}
	maps := slices.Clone(e.kept())
	for i, m := range maps {
		if m != nil && (m.Native != h.Native || m.Lease.Epoch != h.Lease.Epoch) {
			maps[i] = nil
		}
	}
	maps[at] = h
	if slices.Index(maps, nil) >= 0 {
		copy(e.maps, maps)
	}
	return maps, nil
}

// kept are the handshakes handed in so far.
func (e *entry) kept() []*wire.Handshake {
	if e.maps == nil {
		e.maps = make([]*wire.Handshake, len(e.reach))
	}
	return e.maps
}

// SetLocal says where blocks are read into: before it, and after SetLocal(nil), engines are tracked and not read from. Engines whose
// handshakes are known get their maps anew; those whose cache does not fit are named in the error and not read from. Any
// goroutine. The layout is kept.
func (t *Tracker) SetLocal(local *read.Layout) error {
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	r.local = local
	var bad []error
	for i := range r.seats {
		for _, e := range [...]*entry{&r.seats[i].now, r.seats[i].next} {
			if e == nil || e.removed || e.over || len(e.maps) == 0 || slices.Index(e.maps, nil) >= 0 {
				continue
			}
			f, err := t.factsOf(&e.desc, e.reach, e.readers, local, e.maps)
			if err != nil {
				bad = append(bad, err)
				if f, err = t.factsOf(&e.desc, e.reach, e.readers, nil, e.maps); err != nil {
					continue
				}
				f.bare = false // it never fits: a read would wait in vain
			}
			e.given = f
			r.note(uint32(i))
		}
	}
	return errors.Join(bad...)
}

// SetOffset says how the owner's CLOCK_MONOTONIC stands against our CLOCK_BOOTTIME: what the ends of fixed leases are
// converted with. An offset that knows nothing takes it back. Any goroutine.
func (t *Tracker) SetOffset(engine uint64, o clock.Offset) error {
	return t.tell(engine, func(e *entry) { e.offset, e.offsetNew = o, true })
}

// EngineDead is EngineOver of an engine that has died: its death wire fell.
func (t *Tracker) EngineDead(engine uint64) error { return t.EngineOver(engine, Died) }

// EngineOver says that the engine of the handshake in force is no more. What is tracked there is lost now, and nothing is tried
// until another handshake comes: SetLocal does not hand in those that are known. Any goroutine.
func (t *Tracker) EngineOver(engine uint64, why Over) error {
	return t.tell(engine, func(e *entry) { e.given, e.dead, e.over, e.why = nil, true, true, why })
}

func (t *Tracker) tell(engine uint64, what func(*entry)) error {
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.lookup(engine)
	if e == nil {
		return ErrStale
	}
	what(e)
	r.note(record.Handle(engine).Slot())
	return nil
}
