package lease

import (
	"math/bits"
	"time"
)

// lists are doubly linked rings through slot numbers. The links past the slots are the rings' own heads, so a slot leaves
// its ring without knowing which it is. A slot in no ring points to itself: links are distances, so memory of zeros is slots
// in no ring, and none of it is touched before it is used.
type lists struct {
	links []link
	slots uint32
}

type link struct{ next, prev uint32 } // added to a slot: the one after it, the one before it

// Rings of Table.timed after the wheel's buckets.
const (
	ringDue     = 0 // first look, settle to pass
	ringStalled = 1 // first look after a gap, one interval to pass
	ringNoted   = 2 // second look, arrivals to be applied
	ringEnded   = 3 // ends to be told, oldest first
	timedLists  = 4
)

// Rings of Table.worth.
const (
	ringRevocable = 0 // held, every reader checks the fence
	ringLingering = 1
	worthLists    = 2
)

func newLists(slots, rings int) lists {
	return lists{links: make([]link, slots+rings), slots: uint32(slots)}
}

func (l *lists) head(ring int) uint32 { return l.slots + uint32(ring) }

// first gives the oldest slot of a ring.
func (l *lists) first(ring int) (uint32, bool) {
	h := l.head(ring)
	s := h + l.links[h].next
	return s, s < l.slots
}

func (l *lists) push(ring int, s uint32) {
	h := l.head(ring)
	last := h + l.links[h].prev
	l.links[s] = link{h - s, last - s}
	l.links[last].next = s - last
	l.links[h].prev = s - h
}

func (l *lists) drop(s uint32) {
	k := l.links[s]
	l.links[s+k.prev].next += k.next
	l.links[s+k.next].prev += k.prev
	l.links[s] = link{}
}

// wheel says when a slot is to be looked at. An extension does not touch it: the slot is looked at when the old deadline
// comes up, and put back. Ends past the horizon are looked at once per turn.
type wheel struct {
	buckets int
	tick    uint64   // units
	done    uint64   // ticks below this were looked at
	full    []uint64 // a bit per bucket that may hold slots
}

const tickMax = 10 * time.Millisecond

func newWheel(duration time.Duration, slots int) wheel {
	tick := max(uint64(min(tickMax, duration/256))>>unitShift, 1)
	buckets := 1 << bits.Len64(2*unitsOf(duration)/tick)
	buckets = min(max(buckets, 256), 1<<16)
	return wheel{buckets: buckets, tick: tick, full: make([]uint64, buckets/64)}
}

// bucket gives the ring for an end: the first tick that is not before it.
func (w *wheel) bucket(end uint64) int {
	at := (end + w.tick - 1) / w.tick
	at = min(max(at, w.done), w.done+uint64(w.buckets)-1)
	b := int(at) & (w.buckets - 1)
	w.full[b/64] |= 1 << (b % 64)
	return b
}

// empty forgets a bucket that was found empty.
func (w *wheel) empty(b int) { w.full[b/64] &^= 1 << (b % 64) }

// next gives the first tick from w.done to last whose bucket may hold slots; it looks at one turn at most.
func (w *wheel) next(last uint64) (uint64, bool) {
	for at, stop := w.done, min(last, w.done+uint64(w.buckets)-1); at <= stop; {
		b := int(at) & (w.buckets - 1)
		if word := w.full[b/64] >> (b % 64); word != 0 {
			at += uint64(bits.TrailingZeros64(word))
			return at, at <= stop
		}
		at += uint64(64 - b%64)
	}
	return 0, false
}
