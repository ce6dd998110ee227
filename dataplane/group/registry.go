package group

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Errors of the registry, one per decision of the caller.
var (
	ErrFull   = errors.New("group: engine table is full")
	ErrStale  = errors.New("group: engine handle is stale")
	ErrEngine = errors.New("group: engine cannot be used")
)

// EngineDesc names a remote engine; heartbeat.EngineDesc has the same fields.
type EngineDesc struct {
	ID     string
	TP, PP uint32 // 0 counts as 1
	User   uint64 // comes back in events

	Address string // host:port of its side channel, for the stats page; empty: it has none
}

// PeerMap is the handshake map of one rank of a remote engine, as it came over the wire. Data is kept and must not be changed
// any more.
type PeerMap struct {
	Rank uint32
	Data []byte
}

// registry is where other goroutines leave what the step picks up. They hold the lock for moments.
type registry struct {
	mu    sync.Mutex
	byID  map[string]uint32
	seats []seat
	free  []uint32 // ring, oldest first: a place is used again as late as can be
	first int      // in free
	left  int      // of free
	dirty []uint32 // ring of places with news, each in it once
	head  int
	news  atomic.Int32

	addresses []atomic.Pointer[string] // of the use that began last, or of the one before; nil: not known
}

type seat struct {
	use       uint32 // of the handle
	taken     bool
	removed   bool
	queued    bool
	mapsNew   bool
	offsetNew bool
	facts     *facts
	maps      []PeerMap
	epoch     uint64         // of the maps
	why       heartbeat.Over // there are none
	offset    clock.Offset
}

// facts of an engine never change.
type facts struct {
	id     []byte
	name   string // id
	hash   uint64 // wire.EngineHash of it
	user   uint64
	shape  topology.Shape
	reach  [][]uint32 // ranks of it that each of ours talks to
	handle uint64
}

func newRegistry(n int) *registry {
	r := &registry{byID: make(map[string]uint32), seats: make([]seat, n), left: n, free: make([]uint32, n), dirty: make([]uint32, n),
		addresses: make([]atomic.Pointer[string], n)}
	for i := range r.free {
		r.free[i] = uint32(i)
	}
	return r
}

// moved says where an engine is asked.
func (r *registry) moved(i uint32, address string) {
	if address != "" {
		r.addresses[i].Store(&address)
	}
}

// AddEngine gives the handle of a remote engine. The same id gives the same handle until RemoveEngine. Any goroutine. ErrFull: the
// table has cfg.Engines. ErrEngine: its ranks and ours do not divide each other.
func (g *Group) AddEngine(d EngineDesc) (uint64, error) {
	f := &facts{id: []byte(d.ID), name: d.ID, hash: wire.EngineHash([]byte(d.ID)), user: d.User, shape: topology.Shape{TP: max(d.TP, 1), PP: max(d.PP, 1)}}
	if len(f.id) == 0 || len(f.id) > record.IDMax {
		return 0, fmt.Errorf("%w: id of %d bytes, allowed: 1 to %d", ErrEngine, len(f.id), record.IDMax)
	}
	for n := range g.cfg.Self.Ranks() {
		reach, err := topology.Reach(g.cfg.Self, f.shape, n)
		if err != nil {
			return 0, fmt.Errorf("%w: %q: %w", ErrEngine, d.ID, err)
		}
		f.reach = append(f.reach, reach)
	}
	r := g.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	if i, ok := r.byID[d.ID]; ok {
		s := &r.seats[i]
		if s.facts.shape != f.shape {
			return 0, fmt.Errorf("%w: %q is known with TP %d x PP %d: remove it first", ErrEngine, d.ID, s.facts.shape.TP, s.facts.shape.PP)
		}
		r.moved(i, d.Address)
		return s.facts.handle, nil
	}
	if r.left == 0 {
		return 0, fmt.Errorf("%d engines: %w", len(r.seats), ErrFull)
	}
	i := r.free[r.first]
	r.first = (r.first + 1) % len(r.free)
	r.left--
	s := &r.seats[i]
	f.handle = uint64(record.NewHandle(i, s.use))
	*s = seat{use: s.use, queued: s.queued, taken: true, facts: f}
	r.addresses[i].Store(nil)
	r.moved(i, d.Address)
	r.byID[d.ID] = i
	r.note(i)
	return f.handle, nil
}

// RemoveEngine forgets an engine: the ranks report what was tracked there as lost. Any goroutine.
func (g *Group) RemoveEngine(engine uint64) error {
	r := g.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, s := r.lookup(engine)
	if s == nil {
		return ErrStale
	}
	s.removed = true
	delete(r.byID, string(s.facts.id))
	r.note(i)
	return nil
}

// LoadEngine hands in the maps of an engine's ranks, at least of all that ranks of ours talk to, all of one boot. They are told to
// those that do, again and again if a stream loses them. Any goroutine.
func (g *Group) LoadEngine(engine uint64, maps []PeerMap) error {
	var epoch uint64
	for i, m := range maps {
		h := new(wire.Handshake)
		if err := wire.ParseHandshake(m.Data, h); err != nil {
			return fmt.Errorf("%w: map of rank %d: %w", ErrEngine, m.Rank, err)
		}
		if i > 0 && h.Lease.Epoch != epoch {
			return fmt.Errorf("%w: maps of ranks %d and %d are of different boots", ErrEngine, maps[0].Rank, m.Rank)
		}
		epoch = h.Lease.Epoch
	}
	r := g.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, s := r.lookup(engine)
	if s == nil {
		return ErrStale
	}
	for _, m := range maps {
		if m.Rank >= s.facts.shape.Ranks() {
			return fmt.Errorf("%w: map of rank %d of %q, which has %d", ErrEngine, m.Rank, s.facts.id, s.facts.shape.Ranks())
		}
	}
	for _, reach := range s.facts.reach {
		for _, n := range reach {
			if mapOf(maps, n) == nil {
				return fmt.Errorf("%w: no map of rank %d of %q", ErrEngine, n, s.facts.id)
			}
		}
	}
	s.maps, s.epoch, s.mapsNew = append([]PeerMap(nil), maps...), epoch, true
	r.note(i)
	return nil
}

func mapOf(maps []PeerMap, rank uint32) []byte {
	for i := range maps {
		if maps[i].Rank == rank {
			return maps[i].Data
		}
	}
	return nil
}

// EngineOver says that the engine whose maps were handed in last is no more: the ranks report what is tracked there as lost, until
// LoadEngine brings the maps of another boot. The two are carried out in the order in which they are said. Any goroutine.
func (g *Group) EngineOver(engine uint64, why heartbeat.Over) error {
	r := g.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, s := r.lookup(engine)
	if s == nil {
		return ErrStale
	}
	s.maps, s.epoch, s.mapsNew, s.why = nil, 0, true, why
	r.note(i)
	return nil
}

// SetOffset says how an engine's CLOCK_MONOTONIC stands against this host's CLOCK_BOOTTIME. Requests of fixed leases wait for the
// first one. Any goroutine.
func (g *Group) SetOffset(engine uint64, o clock.Offset) error {
	r := g.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	i, s := r.lookup(engine)
	if s == nil {
		return ErrStale
	}
	s.offset, s.offsetNew = o, true
	r.note(i)
	return nil
}

// lookup gives the place of a live handle. Under the lock.
func (r *registry) lookup(engine uint64) (uint32, *seat) {
	h := record.Handle(engine)
	i := h.Slot()
	if engine>>32 == 0 || int(i) >= len(r.seats) {
		return 0, nil
	}
	s := &r.seats[i]
	if !s.taken || s.removed || s.use != h.Use() {
		return 0, nil
	}
	return i, s
}

// note queues a place for the step. Under the lock.
func (r *registry) note(i uint32) {
	s := &r.seats[i]
	if s.queued {
		return
	}
	s.queued = true
	n := int(r.news.Load())
	r.dirty[(r.head+n)%len(r.dirty)] = i
	r.news.Store(int32(n + 1))
}

// take gives the next place with news, as it is, and clears the news. Under the lock for a moment.
func (r *registry) take() (i uint32, s seat, ok bool) {
	if r.news.Load() == 0 {
		return 0, seat{}, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.news.Load()
	if n == 0 {
		return 0, seat{}, false
	}
	i = r.dirty[r.head]
	r.head = (r.head + 1) % len(r.dirty)
	r.news.Store(n - 1)
	p := &r.seats[i]
	s = *p
	p.queued, p.mapsNew, p.offsetNew = false, false, false
	return i, s, true
}

// giveBack makes the place of a removed engine free.
func (r *registry) giveBack(i uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.seats[i]
	*s = seat{use: s.use + 1, queued: s.queued}
	r.free[(r.first+r.left)%len(r.free)] = i
	r.left++
}
