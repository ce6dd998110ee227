// Package host is the engine's side of a context in Go: what the C library is for engines in other languages.
// It takes slots, writes submission records and polls events; it never enters the core.
package host

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/ringbuf"
)

// Errors of the hooks; each has its C status.
var (
	ErrFull     = errors.New("host: no room now, call again after a step") // KVL_ERR_FULL
	ErrStale    = errors.New("host: the handle's object has ended")        // KVL_ERR_STALE
	ErrInvalid  = errors.New("host: invalid argument")                     // KVL_ERR_INVALID
	ErrClosed   = errors.New("host: draining or closed")                   // KVL_ERR_CLOSED
	ErrPoisoned = errors.New("host: the core is broken")                   // KVL_ERR_POISONED
	ErrBusy     = errors.New("host: the memory is being registered again") // KVL_ERR_BUSY
)

// Host is one context's engine side with one producer.
//
// Threads: one for everything but Poll, which may be another one.
// Memory: all from New; no call allocates.
type Host struct {
	mem        *record.Memory
	ring, over *ringbuf.Producer
	events     *ringbuf.Consumer
	wake       func() // ends the pump's sleep
	rejects    uint64 // bytes of the overflow that they have taken since it was last drained
	leases     slots
	tracks     slots
	poison     poisonReport
	ranks      int // of a host context; 0: one rank with its board in here
	sites      *trace.Sites
}

// Trace gives the host's side the trace sites of its context (core.Core.Sites). Without it hooks run through none.
func (h *Host) Trace(sites *trace.Sites) { h.sites = sites }

// HostOf says that the context is a host context with this many ranks: their boards are elsewhere.
func (h *Host) HostOf(ranks int) { h.ranks = ranks }

// slots hands out the slots of one kind: those given back first, then those never used.
type slots struct {
	fresh, size uint32
	free        uint32  // the list taken from given
	given       *uint32 // where the core gives back
	words       func(slot uint32) (state *uint64, next *uint32)
}

// New makes the host side over a context's memory, with the producer of ring 0. wake is called after a publish while
// the pump sleeps; nil without a pump.
func New(mem *record.Memory, wake func()) (*Host, error) {
	ring, err := ringbuf.NewProducer(mem.Rings[0])
	if err != nil {
		return nil, fmt.Errorf("submission ring: %w", err)
	}
	over, err := ringbuf.NewProducer(mem.Overflows[0])
	if err != nil {
		return nil, fmt.Errorf("overflow ring: %w", err)
	}
	events, err := ringbuf.NewConsumer(mem.Events)
	if err != nil {
		return nil, fmt.Errorf("completion ring: %w", err)
	}
	return &Host{
		mem: mem, ring: ring, over: over, events: events, wake: wake,
		leases: slots{size: uint32(len(mem.Slots)), free: record.None, given: &mem.Control.LeaseFree,
			words: func(i uint32) (*uint64, *uint32) { return &mem.Slots[i].State, &mem.Slots[i].Next }},
		tracks: slots{size: uint32(len(mem.Tracks)), free: record.None, given: &mem.Control.TrackFree,
			words: func(i uint32) (*uint64, *uint32) { return &mem.Tracks[i].State, &mem.Tracks[i].Next }},
	}, nil
}

// publish makes the records of one tag visible, and ends the pump's sleep if it is not lighter than said.
//
// Edge W1: the publish and the load of asleep are sequentially consistent; pairs with W2 in the pump, which stores
// asleep and looks at the rings again before it sleeps.
func (h *Host) publish(tag, sleep uint32) {
	if h.sites.On(trace.HookSubmit) { // before: nobody has drained it yet
		h.sites.Fire(trace.HookSubmit, h.sites.Ctx(), 0, h.ring.Position(), uint64(tag))
	}
	h.ring.Publish()
	h.over.Publish()
	if h.wake == nil {
		return
	}
	if asleep := atomic.LoadUint32(&h.mem.Control.Asleep); asleep != 0 && (asleep >= sleep || h.filling()) {
		h.wake()
	}
}

// filling: a quarter of the ring waits, or something that overflowed. What may wait must not fill it: new work would be refused.
func (h *Host) filling() bool {
	return h.ring.Position()-h.ring.Taken() > uint64(h.ring.Capacity()/4) || !h.over.Drained()
}

// full refuses for want of room, and counts it in a word of the control page.
func (h *Host) full(word *uint64) error {
	atomic.AddUint64(word, 1)
	return ErrFull
}

// newWork says whether new work may be said now.
func (h *Host) newWork() error {
	switch {
	case atomic.LoadUint32(&h.mem.Control.Poisoned) != 0:
		return ErrPoisoned
	case atomic.LoadUint32(&h.mem.Control.Draining) != 0:
		return ErrClosed
	case !h.over.Drained():
		return h.full(&h.mem.Control.RefusedRing)
	}
	return nil
}

// say puts a record that is never refused for room into the ring, or into the overflow behind what the ring holds.
func (h *Host) say(tag uint32, n int) []byte {
	if h.over.Drained() {
		if rec := h.ring.Reserve(tag, n); rec != nil {
			return rec
		}
	}
	rec := h.over.Reserve(tag, n+8)
	if rec == nil {
		return nil
	}
	binary.LittleEndian.PutUint64(rec, h.ring.Position())
	return rec[8:]
}

// take gives a free slot and its use.
func (p *slots) take() (slot, use uint32, ok bool) {
	if p.free == record.None {
		p.free = record.TakeFree(p.given)
	}
	if slot = p.free; slot == record.None {
		if p.fresh == p.size {
			return 0, 0, false
		}
		slot = p.fresh
		p.fresh++
	} else {
		_, next := p.words(slot)
		p.free = atomic.LoadUint32(next)
	}
	state, _ := p.words(slot)
	return slot, uint32(atomic.LoadUint64(state) >> 32), true
}

// back undoes take for a slot that no record names yet.
func (p *slots) back(slot uint32) {
	_, next := p.words(slot)
	atomic.StoreUint32(next, p.free)
	p.free = slot
}

// sayOnce says tag about a handle whose slot is in one of the states alive. A bit of the slot's state word sees to it that one
// record at most per kind and use is ever on its way: the overflow has room for that many, so it is never refused.
func (h *Host) sayOnce(p *slots, tag, bit uint32, handle record.Handle, alive ...uint32) error {
	if handle == 0 || handle.Slot() >= p.size {
		return ErrInvalid
	}
	word, _ := p.words(handle.Slot())
	sleep := uint32(record.Dozes)
	for {
		old := atomic.LoadUint64(word)
		if uint32(old>>32) != handle.Use() || !slices.Contains(alive, uint32(old)&record.Mask) {
			return ErrStale
		}
		if uint32(old)&bit != 0 {
			return nil
		}
		if atomic.CompareAndSwapUint64(word, old, old|uint64(bit)) {
			if uint32(old)&record.Mask == record.Expected {
				sleep = record.Listens // no block and no reader waits for it
			}
			break
		}
	}
	binary.LittleEndian.PutUint64(h.say(tag, 8), uint64(handle))
	h.publish(tag, sleep)
	return nil
}

// Key is what a reader shows to name a use of a slot natively, in the present era; 0 while that changes.
func (h *Host) Key(l record.Handle) uint64 {
	_, key, _ := h.Era(l)
	return key
}

// Era gives what the parameters of a lease say beside its slot and use: the boot epoch and the key. false: memory is being
// registered again, ask again.
func (h *Host) Era(l record.Handle) (epoch, key uint64, ok bool) {
	epoch, secret, ok := h.mem.Control.ReadEra()
	if !ok {
		return 0, 0, false
	}
	return epoch, lease.Key(secret, l.Slot(), l.Use()), true
}

// Poll takes up to len(out) events. now is CLOCK_BOOTTIME; it matters only once the core is broken.
func (h *Host) Poll(out []record.Event, now clock.Instant) int {
	n := 0
	for n < len(out) {
		_, rec, ok := h.events.Next()
		if !ok {
			break
		}
		out[n] = *record.AsEvent(rec)
		n++
	}
	if n > 0 {
		h.events.Release()
	}
	if n < len(out) && atomic.LoadUint32(&h.mem.Control.Poisoned) != 0 && atomic.LoadUint32(&h.mem.Control.Stepping) == 0 {
		n += h.pollPoisoned(out[n:], now)
	}
	return n
}
