package stream

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The least of a host and a rank that the rules of the stream let converge: leases are granted and cancelled by the host, ended by the
// rank, which reports each end; a lease that the rank has ended already is reported once more.

const planeSlots = 150

// testHost knows of each slot the use that its rank has not reported ended.
type testHost struct {
	t         testing.TB
	c         Carrier
	rng       *rand.Rand
	use       [planeSlots]uint32 // uses so far
	live      [planeSlots]bool
	cancelled [planeSlots]bool
	cursor    int // of a full state; planeSlots + 1: none under way
	number    uint64
	fulls     int
	quiet     bool
	bytes     int // of a grant
}

// testRank holds leases.
type testRank struct {
	t     testing.TB
	c     Carrier
	rng   *rand.Rand
	held  [planeSlots]uint32 // use, 0: none
	ended [planeSlots]uint32 // greatest use that ended
	tells []record.Handle
	named [planeSlots]bool
	full  uint64 // under way
	taken uint64 // the last taken whole
	quiet bool
	ends  int // leases ended in a step, at most
}

func newPlane(t testing.TB, h, r Carrier, seed uint64) (*testHost, *testRank) {
	rng := rand.New(rand.NewPCG(seed, 1))
	return &testHost{t: t, c: h, rng: rng, cursor: planeSlots + 1, bytes: grantBytes}, &testRank{t: t, c: r, rng: rng, ends: 2}
}

func leaseRecord(rec []byte, slot, use uint32) {
	clear(rec)
	binary.LittleEndian.PutUint64(rec, uint64(record.NewHandle(slot, use)))
}

// grantBytes makes a full state longer than a message; bigGrantBytes longer than any ring of these tests.
const (
	grantBytes    = 200
	bigGrantBytes = 2000
)

func (h *testHost) grant(slot uint32) bool {
	rec := h.c.Reserve(record.TagGrant, h.bytes)
	if rec == nil {
		return false
	}
	leaseRecord(rec, slot, h.use[slot])
	return true
}

func (h *testHost) cancel(slot uint32) bool {
	rec := h.c.Reserve(record.TagCancel, 8)
	if rec == nil {
		return false
	}
	leaseRecord(rec, slot, h.use[slot])
	return true
}

func (h *testHost) step() {
	for {
		tag, rec, ok := h.c.Next()
		if !ok {
			break
		}
		handle, ok := record.AsHandle(rec)
		if tag != record.TagRetired || !ok || handle.Slot() >= planeSlots {
			h.t.Fatalf("host got tag %d, %d bytes", tag, len(rec))
		}
		if slot := handle.Slot(); h.live[slot] && h.use[slot] == handle.Use() {
			h.live[slot] = false
		}
	}
	h.c.Release()
	if !h.quiet {
		for range 4 {
			slot := h.rng.Uint32N(planeSlots)
			switch {
			case !h.live[slot]:
				h.use[slot]++
				h.live[slot], h.cancelled[slot] = true, false
				h.grant(slot)
			case h.rng.IntN(3) == 0 && !h.cancelled[slot]:
				h.cancelled[slot] = true
				h.cancel(slot)
			}
		}
	}
	if h.c.Gap() {
		if number, ok := h.c.Begin(); ok {
			h.cursor, h.number = 0, number
			h.fulls++
		}
	}
	for h.cursor <= planeSlots && h.c.Fits(2*ringRoom) {
		switch {
		case h.cursor == planeSlots:
			record.PutFull(h.c.Reserve(record.TagFull, record.FullLen), record.Full{Incarnation: h.number, Mark: record.FullEnd})
		case h.live[h.cursor]:
			h.grant(uint32(h.cursor))
			if h.cancelled[h.cursor] {
				h.cancel(uint32(h.cursor))
			}
		}
		h.cursor++
	}
	h.c.Publish()
}

// ringRoom is what a full state leaves free for what happens meanwhile.
const ringRoom = 2000

func (r *testRank) step() {
	for {
		tag, rec, ok := r.c.Next()
		if !ok {
			break
		}
		r.take(tag, rec)
	}
	r.c.Release()
	if !r.quiet {
		for range r.ends {
			if slot := r.rng.Uint32N(planeSlots); r.held[slot] != 0 {
				r.end(slot)
			}
		}
	}
	for len(r.tells) > 0 {
		rec := r.c.Reserve(record.TagRetired, 8)
		if rec == nil {
			break
		}
		record.PutHandle(rec, r.tells[0])
		r.tells = r.tells[1:]
	}
	r.c.Publish()
}

func (r *testRank) end(slot uint32) {
	r.tells = append(r.tells, record.NewHandle(slot, r.held[slot]))
	r.ended[slot], r.held[slot] = r.held[slot], 0
}

func (r *testRank) take(tag uint32, rec []byte) {
	if tag == record.TagFull {
		r.mark(rec)
		return
	}
	handle, ok := record.AsHandle(rec)
	if !ok || handle.Slot() >= planeSlots || r.full == 0 && r.taken == 0 {
		r.t.Fatalf("rank got tag %d, %d bytes, before any full state: %v", tag, len(rec), r.full == 0 && r.taken == 0)
	}
	slot, use := handle.Slot(), handle.Use()
	switch {
	case tag == record.TagGrant && use > max(r.ended[slot], r.held[slot]):
		if r.held[slot] != 0 {
			r.t.Fatalf("slot %d granted again while use %d is held", slot, r.held[slot])
		}
		r.held[slot], r.named[slot] = use, true
	case tag == record.TagGrant && use <= r.ended[slot]:
		r.tells = append(r.tells, handle)
	case tag == record.TagGrant:
		r.named[slot] = true
	case r.held[slot] == use:
		r.end(slot)
	}
}

func (r *testRank) mark(rec []byte) {
	f, ok := record.AsFull(rec)
	switch {
	case !ok || f.Mark == record.FullStart && f.Incarnation <= max(r.full, r.taken):
		r.t.Fatalf("rank got %+v after %d", f, max(r.full, r.taken))
	case f.Mark == record.FullStart:
		r.full, r.named = f.Incarnation, [planeSlots]bool{}
	case f.Incarnation != r.full:
		r.t.Fatalf("end of full state %d in %d", f.Incarnation, r.full)
	default:
		for slot, use := range r.held {
			if use != 0 && !r.named[slot] {
				r.t.Fatalf("slot %d, use %d is held and not in the full state", slot, use)
			}
		}
		r.taken, r.full = r.full, 0
	}
}

// converged reports that host and rank hold the same, and have no more to say.
func converged(h *testHost, r *testRank) bool {
	if len(r.tells) > 0 || h.c.Gap() || r.full != 0 || h.cursor <= planeSlots {
		return false
	}
	for slot := range planeSlots {
		switch {
		case h.live[slot] != (r.held[slot] != 0):
			return false
		case h.live[slot] && (h.use[slot] != r.held[slot] || h.cancelled[slot]):
			return false
		}
	}
	return true
}
