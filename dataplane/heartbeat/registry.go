package heartbeat

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Errors of the registry, one per decision of the caller.
var (
	ErrFull   = errors.New("heartbeat: engine table is full")
	ErrStale  = errors.New("heartbeat: engine handle is stale")
	ErrRank   = errors.New("heartbeat: not the ranks that this one talks to")
	ErrEngine = errors.New("heartbeat: handshake of another engine")
	ErrShape  = errors.New("heartbeat: engine of another shape")
)

// EngineDesc names a remote engine.
type EngineDesc struct {
	ID     string
	TP, PP uint32 // its shape: ranks of a stage, and stages; 0 counts as 1
	User   uint64 // comes back in events

	Address string // host:port of its side channel, for the stats page; empty: it has none
}

// PeerRank is the handshake of one rank of an engine.
type PeerRank struct {
	Rank uint32
	Map  *wire.Handshake // kept; must not be changed any more
}

// registry is where other goroutines leave what the step picks up. They hold the lock for moments; the step only tries it.
type registry struct {
	mu       sync.Mutex
	byID     map[string]record.Handle
	seats    []seat
	free     []uint32
	local    *read.Layout // what is read into; nil: nothing
	links    int          // of all engines
	linksMax int          //
	dirty    []uint32     // ring of engines with news, each in it once
	head     int
	news     atomic.Int32 // length of dirty, so that a step without news takes no lock
	longAt   *uint64      // record.Control.LongAtNs
}

// seat is one place of the engine table.
type seat struct {
	use  atomic.Uint32 // uses begun; odd: in use. A handle's use is (use-1)/2.
	now  entry
	next *entry // AddEngineAt for a later use, while the one before has not ended here

	address atomic.Pointer[string] // of the use that began last, or of the one before; nil: not known
	queued  bool
}

// entry is what other goroutines have said about one engine.
type entry struct {
	desc      EngineDesc
	hash      uint64 // wire.EngineHash of its id
	use       uint32 // of its handle
	reach     []uint32
	readers   []uint16          // n of a completion, in the order of reach
	maps      []*wire.Handshake // handed in one by one, in the order of reach
	given     *facts            // handshakes not picked up
	offset    clock.Offset
	offsetNew bool
	dead      bool // the step has still to hear that it is over
	over      bool // EngineOver since the last handshake
	why       Over // of dead
	removed   bool
}

func newRegistry(n, links int, longAt *uint64) *registry {
	r := &registry{
		byID: make(map[string]record.Handle), seats: make([]seat, n), free: make([]uint32, n), dirty: make([]uint32, n),
		linksMax: links, longAt: longAt,
	}
	for i := range r.free {
		r.free[i] = uint32(n - 1 - i)
	}
	return r
}

// entryOf says what the shapes mean for this rank.
func (t *Tracker) entryOf(desc EngineDesc) (entry, error) {
	desc.TP, desc.PP = max(desc.TP, 1), max(desc.PP, 1)
	own, other := t.cfg.Shape, topology.Shape{TP: desc.TP, PP: desc.PP}
	e := entry{desc: desc, hash: wire.EngineHash([]byte(desc.ID))}
	var err error
	if e.reach, err = topology.Reach(own, other, t.cfg.Self.Rank); err != nil {
		return e, fmt.Errorf("engine %q: %w", desc.ID, err)
	}
	if _, err := topology.Takes(own, other, t.cfg.Self.Rank, t.cfg.KVHeads); err != nil {
		return e, fmt.Errorf("engine %q: %w", desc.ID, err)
	}
	for _, rank := range e.reach {
		n, err := topology.Readers(own, other, rank)
		if err != nil {
			return e, fmt.Errorf("engine %q: %w", desc.ID, err)
		}
		e.readers = append(e.readers, uint16(n))
	}
	return e, nil
}

// room takes the links of an engine out of those that are left once back are given back. Under the lock.
func (r *registry) room(e *entry, back int) error {
	if r.links-back+len(e.reach) > r.linksMax {
		return fmt.Errorf("%d links to ranks, engine %q needs %d more, at most %d: %w", r.links-back, e.desc.ID, len(e.reach), r.linksMax, ErrFull)
	}
	r.links += len(e.reach)
	return nil
}

// AddEngine gives the handle of a remote engine. The same id gives the same handle until RemoveEngine.
// Any goroutine. ErrFull: the table has cfg.Engines, or cfg.Links ranks of them. ErrShape: it is known with other sizes.
// An error of package topology: the sizes of both engines do not fit each other.
func (t *Tracker) AddEngine(desc EngineDesc) (uint64, error) {
	e, err := t.entryOf(desc)
	if err != nil {
		return 0, err
	}
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, ok := r.byID[desc.ID]; ok {
		err := sameShape(r.lookup(uint64(h)), &e)
		if err == nil {
			r.seats[h.Slot()].moved(desc.Address)
		}
		return uint64(h), err
	}
	if len(r.free) == 0 {
		return 0, fmt.Errorf("%d engines: %w", len(r.seats), ErrFull)
	}
	if err := r.room(&e, 0); err != nil {
		return 0, err
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	e.use = r.seats[i].use.Load() / 2
	r.seats[i].address.Store(nil)
	r.seats[i].moved(desc.Address)
	return uint64(r.begin(i, e)), nil
}

// moved says where an engine is asked.
func (p *seat) moved(address string) {
	if address != "" {
		p.address.Store(&address)
	}
}

func sameShape(old, e *entry) error {
	if old.desc.TP != e.desc.TP || old.desc.PP != e.desc.PP {
		return fmt.Errorf("engine %q is known with TP %d x PP %d, not %d x %d: remove it first: %w",
			e.desc.ID, old.desc.TP, old.desc.PP, e.desc.TP, e.desc.PP, ErrShape)
	}
	return nil
}

// AddEngineAt is AddEngine where the handle was chosen elsewhere: a rank takes it from its host. A place whose former use
// has not ended here (a transfer is open) takes the new one over when it has; what is tracked there until then is lost at
// once. ErrStale: the handle is none, lies outside the table, or is of a use that is past.
func (t *Tracker) AddEngineAt(engine uint64, desc EngineDesc) error {
	e, err := t.entryOf(desc)
	if err != nil {
		return err
	}
	r := t.reg
	r.mu.Lock()
	defer r.mu.Unlock()
	h := record.Handle(engine)
	i := h.Slot()
	if engine>>32 == 0 || int(i) >= len(r.seats) || h.Use() >= 1<<31 {
		return ErrStale
	}
	p := &r.seats[i]
	e.use = h.Use()
	use := p.use.Load()
	switch {
	case e.use < use/2:
		return ErrStale
	case use&1 == 1 && e.use == use/2:
		if p.now.removed {
			return ErrStale
		}
		return sameShape(&p.now, &e)
	}
	old, known := r.byID[desc.ID]
	known = known && old != h
	back := 0
	if p.next != nil {
		back = len(p.next.reach)
	}
	if q := &r.seats[old.Slot()]; known && q != p && q.next != nil && q.next.use == old.Use() {
		back += len(q.next.reach)
	}
	if err := r.room(&e, back); err != nil { // before anything has changed
		return err
	}
	if known {
		r.remove(old) // the host knows it under another handle now
	}
	if use&1 == 1 {
		if p.next != nil {
			r.forget(p.next)
		}
		p.next = &e
		r.byID[desc.ID] = h
		if !p.now.removed {
			r.removeNow(i)
		}
		return nil
	}
	if at := slices.Index(r.free, i); at >= 0 {
		r.free = slices.Delete(r.free, at, at+1)
	}
	r.begin(i, e)
	return nil
}

// begin starts a use of a place. Under the lock.
func (r *registry) begin(i uint32, e entry) record.Handle {
	p := &r.seats[i]
	p.now = e
	h := record.NewHandle(i, e.use)
	r.byID[e.desc.ID] = h
	// R1: release; pairs with R2 in Tracker.engineOf. What was written before is seen by the step that meets the handle.
	p.use.Store(2*e.use + 1)
	return h
}

// forget gives back what an entry that never began had taken. Under the lock.
func (r *registry) forget(e *entry) {
	r.links -= len(e.reach)
	if h, ok := r.byID[e.desc.ID]; ok && h.Use() == e.use {
		delete(r.byID, e.desc.ID)
	}
}

// RemoveEngine forgets an engine: its tracked requests are lost, its owed messages are tried once. The handle is stale from
// now on for other goroutines; the engine's place is free again when no transfer from it is open. Any goroutine.
func (t *Tracker) RemoveEngine(engine uint64) error {
	t.reg.mu.Lock()
	defer t.reg.mu.Unlock()
	return t.reg.remove(record.Handle(engine))
}

// remove is RemoveEngine under the lock.
func (r *registry) remove(h record.Handle) error {
	e := r.lookup(uint64(h))
	if e == nil {
		return ErrStale
	}
	p := &r.seats[h.Slot()]
	if e == p.next {
		r.forget(e)
		p.next = nil
		return nil
	}
	delete(r.byID, e.desc.ID)
	r.removeNow(h.Slot())
	return nil
}

func (r *registry) removeNow(i uint32) {
	p := &r.seats[i]
	if r.byID[p.now.desc.ID] == record.NewHandle(i, p.now.use) {
		delete(r.byID, p.now.desc.ID)
	}
	p.now.removed = true
	r.note(i)
}

// lookup gives the entry of a live handle, or nil. Under the lock.
func (r *registry) lookup(engine uint64) *entry {
	h := record.Handle(engine)
	i := h.Slot()
	if engine>>32 == 0 || int(i) >= len(r.seats) {
		return nil
	}
	p := &r.seats[i]
	switch use := p.use.Load(); {
	case p.next != nil && p.next.use == h.Use():
		return p.next
	case use&1 == 0 || use/2 != h.Use() || p.now.removed:
		return nil
	}
	return &p.now
}

// note queues an engine for the step. Under the lock.
func (r *registry) note(i uint32) {
	p := &r.seats[i]
	if p.queued {
		return
	}
	p.queued = true
	n := int(r.news.Load())
	r.dirty[(r.head+n)%len(r.dirty)] = i
	r.news.Store(int32(n + 1))
	atomic.StoreUint64(r.longAt, 0) // after the count: see sayLong
}

// newsStepMax bounds the engines whose news one step takes.
const newsStepMax = 16

// news is what other goroutines have said about an engine since the step looked last.
type news struct {
	given     *facts
	offset    clock.Offset
	offsetNew bool
	dead      bool
	why       Over // of dead
	removed   bool
}

// takeNews gives the next engine with news. busy: another goroutine holds the lock, the next step looks again.
func (r *registry) takeNews() (i uint32, n news, ok, busy bool) {
	if r.news.Load() == 0 {
		return 0, n, false, false
	}
	if !r.mu.TryLock() {
		return 0, n, false, true
	}
	defer r.mu.Unlock()
	left := r.news.Load()
	if left == 0 {
		return 0, n, false, false
	}
	i = r.dirty[r.head]
	r.head = (r.head + 1) % len(r.dirty)
	r.news.Store(left - 1)
	p := &r.seats[i]
	p.queued = false
	if p.use.Load()&1 == 0 {
		return i, n, true, false
	}
	e := &p.now
	n = news{given: e.given, offset: e.offset, offsetNew: e.offsetNew, dead: e.dead, why: e.why, removed: e.removed}
	e.given, e.offsetNew, e.dead = nil, false, false
	return i, n, true, false
}

// giveBack ends the use of a removed engine's place; the one that waits for it begins. It reports false if the lock is
// taken: again in the next step.
func (r *registry) giveBack(i uint32) bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	p := &r.seats[i]
	r.links -= len(p.now.reach)
	p.use.Store(2*p.now.use + 2)
	next := p.next
	p.now, p.next = entry{}, nil
	if next == nil {
		r.free = append(r.free, i)
		return true
	}
	r.begin(i, *next)
	if next.given != nil || next.offsetNew || next.dead {
		r.note(i)
	}
	return true
}
