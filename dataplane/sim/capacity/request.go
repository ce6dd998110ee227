package capacity

import (
	"strconv"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
)

// none is no request.
const none int32 = -1

// state is where a request stands. Those from queued on are at a D.
type state uint8

const (
	free       state = iota
	atRouter         // no P takes it now
	waiting          // in a P's queue
	prefilling       //
	handed           // its blocks are under a lease, its parameters on their way to a D
	queued           // tracked by a D
	reading          //
	decoding         //
)

// request is one request of the load, with the attempt that is under way.
type request struct {
	state   state
	tries   uint8
	refused bool   // it has found its P's cache full in this attempt
	serial  uint32 // of the attempt; never used again for this place

	input, output, blocks int32 // tokens, tokens, blocks
	p, d                  int32 // engines of the attempt
	pEpoch                uint64
	lease, track          record.Handle
	remote                host.Remote // as the parameters named the lease, without its id

	arrived, asked, began clock.Instant // at the router; for the cache; its read
	engine                list.Links    // a P's queue, or all of a D
	queue                 list.Links    // a D's queue
}

// token names a request's attempt in events: serial and place.
func (w *world) token(i int32) uint64 {
	return uint64(w.reqs[i].serial)<<32 | uint64(uint32(i))
}

// idOf is the name of a request's attempt on the wire. It holds until the next one is asked for.
func (w *world) idOf(i int32) []byte {
	w.id = strconv.AppendUint(append(w.id[:0], 'r'), uint64(i), 10)
	w.id = strconv.AppendUint(append(w.id, '-'), uint64(w.reqs[i].serial), 10)
	return w.id
}

// ofToken gives the request whose attempt is under way, or none.
func (w *world) ofToken(t uint64) int32 {
	i := int32(uint32(t))
	if i < 0 || int(i) >= len(w.reqs) || w.reqs[i].serial != uint32(t>>32) || w.reqs[i].state == free {
		return none
	}
	return i
}

// take makes a request. Its place is one that was given back, if there is any.
func (w *world) take() int32 {
	if n := len(w.freeReqs); n > 0 {
		i := w.freeReqs[n-1]
		w.freeReqs = w.freeReqs[:n-1]
		w.reqs[i] = request{serial: w.reqs[i].serial + 1}
		return i
	}
	w.reqs = append(w.reqs, request{serial: 1})
	return int32(len(w.reqs) - 1)
}

// end is the one way in which a request ends.
type end uint8

const (
	finished   end = iota // decoded
	turnedAway            // no P's cache can hold it, or the router has no room
	givenUp               // too many attempts were lost
	endsN
)

// finish ends a request. Whatever lists it was in, it has left.
func (w *world) finish(i int32, how end) {
	r := &w.reqs[i]
	if r.state == free {
		w.violated("every request ends once", "", "request %d ended again", i)
		return
	}
	r.state = free
	r.serial++
	w.ends[how]++
	w.alive--
	w.freeReqs = append(w.freeReqs, i)
}

// A request is in at most one of an engine's lists of each kind: a P's queue or all of a D, and a D's queue.

func (r *request) ofEngine() *list.Links { return &r.engine }
func (r *request) ofQueue() *list.Links  { return &r.queue }

func (w *world) push(l *list.List, i int32)    { list.Push(l, w.reqs, uint32(i), (*request).ofEngine) }
func (w *world) remove(l *list.List, i int32)  { list.Drop(l, w.reqs, uint32(i), (*request).ofEngine) }
func (w *world) pushQ(l *list.List, i int32)   { list.Push(l, w.reqs, uint32(i), (*request).ofQueue) }
func (w *world) removeQ(l *list.List, i int32) { list.Drop(l, w.reqs, uint32(i), (*request).ofQueue) }
