package heartbeat

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Errors of the registry, one per decision of the caller.
var (
	ErrFull   = errors.New("heartbeat: engine table is full")
	ErrStale  = errors.New("heartbeat: engine handle is stale")
	ErrRank   = errors.New("heartbeat: not the rank that this one reads from")
	ErrEngine = errors.New("heartbeat: handshake of another engine")
)

// EngineDesc names a remote engine.
type EngineDesc struct {
	ID    string
	Ranks uint32 // 0 counts as 1
	User  uint64 // comes back in events
}

// registry is where other goroutines leave what the step picks up. They hold the lock for moments; the step only tries it.
type registry struct {
	mu    sync.Mutex
	byID  map[string]uint32
	desc  []registered
	free  []uint32
	dirty []uint32 // ring of engines with news, each in it once
	head  int
	news  atomic.Int32 // length of dirty, so that a step without news takes no lock
}

type registered struct {
	use     atomic.Uint32 // uses begun; odd: in use. A handle's use is (use-1)/2.
	user    uint64
	id      string
	ranks   uint32
	given   *facts // handshake not picked up
	removed bool
	queued  bool
}

func newRegistry(n int) *registry {
	r := &registry{
		byID: make(map[string]uint32), desc: make([]registered, n), free: make([]uint32, n), dirty: make([]uint32, n),
	}
	for i := range r.free {
		r.free[i] = uint32(n - 1 - i)
	}
	return r
}

// AddEngine gives the handle of a remote engine. The same id gives the same handle until RemoveEngine.
// Any goroutine. ErrFull: the table has cfg.Engines.
func (t *Tracker) AddEngine(desc EngineDesc) (uint64, error) {
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.byID[desc.ID]; ok {
		return uint64(record.NewHandle(i, (r.desc[i].use.Load()-1)/2)), nil
	}
	if len(r.free) == 0 {
		return 0, fmt.Errorf("%d engines: %w", len(r.desc), ErrFull)
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	d := &r.desc[i]
	d.user, d.id, d.ranks, d.given, d.removed = desc.User, desc.ID, max(desc.Ranks, 1), nil, false
	// R1: release; pairs with R2 in Tracker.engineOf. What AddEngine wrote is seen by the step that meets the handle.
	use := d.use.Add(1)
	r.byID[desc.ID] = i
	return uint64(record.NewHandle(i, (use-1)/2)), nil
}

// RemoveEngine forgets an engine: its tracked requests are lost, its owed messages are tried once. The handle is stale from
// now on for other goroutines; the engine's place is free again when no transfer from it is open. Any goroutine.
func (t *Tracker) RemoveEngine(engine uint64) error {
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, d := r.lookup(engine)
	if d == nil {
		return ErrStale
	}
	d.removed = true
	delete(r.byID, d.id)
	r.note(i)
	return nil
}

// LoadHandshake hands in the metadata map of the rank of an engine that this rank reads from. The step loads it, one a step.
// A map with another epoch or other metadata than the one known makes the engine a new one. Any goroutine; h is kept and
// must not be changed any more.
func (t *Tracker) LoadHandshake(engine uint64, rank uint32, h *wire.Handshake) error {
	f, err := t.factsOf(h)
	if err != nil {
		return err
	}
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, d := r.lookup(engine)
	switch {
	case d == nil:
		return ErrStale
	case rank != t.cfg.Self.Rank%d.ranks:
		return fmt.Errorf("rank %d of %d, this rank reads from %d: %w", rank, d.ranks, t.cfg.Self.Rank%d.ranks, ErrRank)
	case d.id != "" && h.EngineID != d.id:
		return fmt.Errorf("handshake of %q, expected %q: %w", h.EngineID, d.id, ErrEngine)
	}
	d.given = f
	r.note(i)
	return nil
}

// lookup gives the entry of a live handle. Under the lock.
func (r *registry) lookup(engine uint64) (uint32, *registered) {
	h := record.Handle(engine)
	i := h.Slot()
	if engine>>32 == 0 || int(i) >= len(r.desc) {
		return 0, nil
	}
	d := &r.desc[i]
	if use := d.use.Load(); use&1 == 0 || (use-1)/2 != h.Use() || d.removed {
		return 0, nil
	}
	return i, d
}

// note queues an engine for the step. Under the lock.
func (r *registry) note(i uint32) {
	d := &r.desc[i]
	if d.queued {
		return
	}
	d.queued = true
	n := int(r.news.Load())
	r.dirty[(r.head+n)%len(r.dirty)] = i
	r.news.Store(int32(n + 1))
}

// newsStepMax bounds the engines whose news one step takes.
const newsStepMax = 16

// takeNews gives the next engine with news. busy: another goroutine holds the lock, the next step looks again.
func (r *registry) takeNews() (i uint32, given *facts, removed, ok, busy bool) {
	if r.news.Load() == 0 {
		return 0, nil, false, false, false
	}
	if !r.mu.TryLock() {
		return 0, nil, false, false, true
	}
	defer r.mu.Unlock()
	n := r.news.Load()
	if n == 0 {
		return 0, nil, false, false, false
	}
	i = r.dirty[r.head]
	r.head = (r.head + 1) % len(r.dirty)
	r.news.Store(n - 1)
	d := &r.desc[i]
	given, removed = d.given, d.removed
	d.given, d.queued = nil, false
	return i, given, removed, true, false
}

// giveBack makes a removed engine's place free. It reports false if the lock is taken: again in the next step.
func (r *registry) giveBack(i uint32) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	d := &r.desc[i]
	d.use.Add(1)
	d.given, d.id = nil, ""
	r.free = append(r.free, i)
	return true
}
