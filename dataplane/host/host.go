// Package host is the engine's side of a context in Go: what the C library is for engines in other languages.
// It takes slots, writes submission records and polls events; it never enters the core.
package host

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/siphash"
	"github.com/kvlease/kvlease/ringbuf"
)

// Errors of the hooks; each has its C status.
var (
	ErrFull     = errors.New("host: no room now, call again after a step") // KVL_ERR_FULL
	ErrStale    = errors.New("host: the handle's object has ended")        // KVL_ERR_STALE
	ErrInvalid  = errors.New("host: invalid argument")                     // KVL_ERR_INVALID
	ErrClosed   = errors.New("host: draining or closed")                   // KVL_ERR_CLOSED
	ErrPoisoned = errors.New("host: the core is broken")                   // KVL_ERR_POISONED
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
	leases     alloc
	tracks     alloc
	poison     poisonReport
}

// alloc hands out slots: those never used first, then what the core gave back.
type alloc struct {
	fresh, size uint32
	free        uint32 // local part of the free list
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
		leases: alloc{size: uint32(len(mem.Slots)), free: record.None},
		tracks: alloc{size: uint32(len(mem.Tracks)), free: record.None},
	}, nil
}

// publish makes the records visible and ends the pump's sleep.
//
// Edge W1: the publish and the load of asleep are sequentially consistent; pairs with W2 in the pump, which stores
// asleep and looks at the rings again before it sleeps.
func (h *Host) publish() {
	h.ring.Publish()
	h.over.Publish()
	if h.wake != nil && atomic.LoadUint32(&h.mem.Control.Asleep) != 0 {
		h.wake()
	}
}

// newWork says whether new work may be said now.
func (h *Host) newWork() error {
	switch {
	case atomic.LoadUint32(&h.mem.Control.Poisoned) != 0:
		return ErrPoisoned
	case atomic.LoadUint32(&h.mem.Control.Draining) != 0:
		return ErrClosed
	case !h.over.Drained():
		return ErrFull
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
	putU64(rec, h.ring.Position())
	return rec[8:]
}

// takeLease gives a free lease slot and its use.
func (h *Host) takeLease() (slot, use uint32, ok bool) {
	a := &h.leases
	if a.free == record.None {
		a.free = record.TakeFree(&h.mem.Control.LeaseFree)
	}
	switch {
	case a.free != record.None:
		slot = a.free
		a.free = atomic.LoadUint32(&h.mem.Slots[slot].Next)
	case a.fresh < a.size:
		slot = a.fresh
		a.fresh++
	default:
		return 0, 0, false
	}
	return slot, uint32(atomic.LoadUint64(&h.mem.Slots[slot].State) >> 32), true
}

func (h *Host) takeTrack() (slot, use uint32, ok bool) {
	a := &h.tracks
	if a.free == record.None {
		a.free = record.TakeFree(&h.mem.Control.TrackFree)
	}
	switch {
	case a.free != record.None:
		slot = a.free
		a.free = atomic.LoadUint32(&h.mem.Tracks[slot].Next)
	case a.fresh < a.size:
		slot = a.fresh
		a.fresh++
	default:
		return 0, 0, false
	}
	return slot, uint32(atomic.LoadUint64(&h.mem.Tracks[slot].State) >> 32), true
}

// backLease undoes takeLease for a slot that no record names yet.
func (h *Host) backLease(slot uint32) {
	atomic.StoreUint32(&h.mem.Slots[slot].Next, h.leases.free)
	h.leases.free = slot
}

func (h *Host) backTrack(slot uint32) {
	atomic.StoreUint32(&h.mem.Tracks[slot].Next, h.tracks.free)
	h.tracks.free = slot
}

// Key is what a reader shows to name a use of a slot natively.
func (h *Host) Key(lease record.Handle) uint64 {
	var p [8]byte
	putU32(p[:], lease.Slot())
	putU32(p[4:], lease.Use())
	return siphash.Sum64(h.mem.Secret[0], h.mem.Secret[1], p[:])
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

func putU64(b []byte, v uint64) {
	putU32(b, uint32(v))
	putU32(b[4:], uint32(v>>32))
}

func putU32(b []byte, v uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}
