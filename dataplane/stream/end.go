package stream

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// end is what all kinds of carriers share: the step's side of two rings.
//
// Threads: the step, but for what is atomic. Others set the link, then the state, then wake; the step takes them up at its next call.
// Trust: none in what stands in the rings; a record is copied before anybody looks into it.
type end struct {
	host bool
	own  wake // this context's sleep

	state atomic.Uint32 // State, as whoever attaches or loses it says; never back
	link  *link         // written before state says Attached
	why   atomic.Pointer[error]
	broke func() // tells whoever holds the other end that this one gave up; may be nil

	seen State // what the step has taken up
	told State // what State has answered last

	tx       *ringbuf.Producer
	rx       *ringbuf.Consumer
	left     uint64 // after a loss: bytes that may still have been written before it
	reserved bool

	gap         bool
	incarnation uint64
	counters    Counters
	copied      recordBuffer
}

// attach hands the link over. Any thread, once.
func (e *end) attach(l *link) {
	e.link = l
	e.why.Store(nil)
	e.state.Store(uint32(Attached))
	e.own.ring()
}

// lose says that the other end is gone. Any thread; nothing if nobody was attached. The first reason stays, and is there before the
// state is seen.
func (e *end) lose(err error) {
	if State(e.state.Load()) != Attached {
		return
	}
	e.why.CompareAndSwap(nil, &err)
	if e.state.CompareAndSwap(uint32(Attached), uint32(Lost)) {
		e.own.ring()
	}
}

// waits says why nobody is attached yet.
func (e *end) waits(err error) { e.why.Store(&err) }

// look takes up what others have said since the last call.
func (e *end) look() {
	if now := State(e.state.Load()); now != e.seen {
		e.turn(now)
	}
}

func (e *end) turn(now State) {
	if e.link == nil { // closed
		return
	}
	if e.seen == Waiting {
		e.tx, e.rx = e.link.tx, e.link.rx
		e.gap = e.host
	}
	if now == Lost {
		e.left = uint64(e.tx.Capacity())
	}
	e.seen = now
}

// fail ends the use of memory that contradicts itself.
func (e *end) fail() {
	e.lose(errCorrupt)
	if e.broke != nil {
		e.broke()
	}
}

var errCorrupt = error(ErrCorrupt)

// free is the room that is left.
func (e *end) free() uint64 {
	if e.tx == nil || e.seen != Attached {
		return 0
	}
	free, ok := e.tx.Free()
	if !ok {
		e.fail()
		return 0
	}
	return free
}

// Fits is part of Carrier. It counts the fill at the end of the ring in any case, so it may be too careful by one record.
func (e *end) Fits(n int) bool {
	e.look()
	return n >= 0 && !e.gap && e.fits(n)
}

func (e *end) fits(n int) bool {
	return uint64(RecordBytes(n))+ringbuf.RecordBytesMax <= e.free()
}

// Reserve is part of Carrier.
func (e *end) Reserve(tag uint32, n int) []byte {
	e.look()
	if e.tx == nil || e.seen != Attached || e.gap {
		e.counters.Refused++
		return nil
	}
	rec := e.tx.Reserve(tag, n)
	if rec == nil {
		e.refused()
		return nil
	}
	e.reserved = true
	e.counters.Sent++
	return rec
}

func (e *end) refused() {
	e.counters.Refused++
	if e.host {
		e.gap = true
		e.counters.Gaps++
	}
	e.free() // a tail that cannot be is the reason
}

// Begin is part of Carrier.
func (e *end) Begin() (incarnation uint64, ok bool) {
	e.look()
	if !e.host || e.tx == nil || e.seen != Attached || !e.fits(record.FullLen) {
		return 0, false
	}
	rec := e.tx.Reserve(record.TagFull, record.FullLen)
	if rec == nil {
		return 0, false
	}
	e.incarnation++
	record.PutFull(rec, record.Full{Incarnation: e.incarnation, Mark: record.FullStart})
	e.gap = false
	e.reserved = true
	e.counters.Sent++
	e.counters.Fulls++
	return e.incarnation, true
}

// Publish is part of Carrier.
//
// Edge W1: the ring's head is stored before asleep is loaded; pairs with W2, Sleeping before Pending. One of the two sees the
// other, so no record waits for the other end's period. One write a sleep.
func (e *end) Publish() {
	if !e.reserved {
		return
	}
	e.reserved = false
	e.tx.Publish()
	if other := e.link.other; e.link.peer >= 0 && atomic.LoadUint32(other) != 0 && atomic.CompareAndSwapUint32(other, 1, 0) {
		e.link.peer.ring()
		e.counters.Wakes++
	}
}

// Next is part of Carrier.
func (e *end) Next() (tag uint32, rec []byte, ok bool) {
	e.look()
	if e.rx == nil {
		return 0, nil, false
	}
	tag, rec, ok = e.rx.Next()
	if !ok {
		if e.rx.Corrupt() {
			e.fail()
		}
		return 0, nil, false
	}
	if e.seen == Lost {
		size := uint64(RecordBytes(len(rec)))
		if size > e.left { // somebody still writes
			e.left = 0
			return 0, nil, false
		}
		e.left -= size
	}
	e.counters.Received++
	n := copy(e.copied.bytes(), rec)
	return tag, e.copied.bytes()[:n:n], true
}

// Release is part of Carrier.
func (e *end) Release() {
	if e.rx != nil {
		e.rx.Release()
	}
}

// Gap is part of Carrier.
func (e *end) Gap() bool {
	e.look()
	return e.gap && e.seen == Attached
}

// State is part of Carrier.
func (e *end) State() State {
	e.look()
	e.told = e.seen
	return e.seen
}

// Pending is part of Carrier.
func (e *end) Pending() bool {
	e.look()
	return e.seen != e.told || e.rx != nil && !e.rx.Empty() && (e.seen != Lost || e.left > 0)
}

// Untaken is part of Carrier. What a lost end has left is nobody's to wait for.
func (e *end) Untaken() uint64 {
	if State(e.state.Load()) != Attached || e.link == nil {
		return 0
	}
	return e.link.rx.Untaken()
}

// Sleeping is part of Carrier. Edge W2, see Publish.
func (e *end) Sleeping(asleep bool) {
	e.look()
	if e.rx == nil {
		return
	}
	v := uint32(0)
	if asleep {
		v = 1
	}
	atomic.StoreUint32(e.link.asleep, v)
}

// Counters is part of Carrier.
func (e *end) Counters() Counters { return e.counters }

// Err is part of Carrier.
func (e *end) Err() error {
	if err := e.why.Load(); err != nil {
		return *err
	}
	return nil
}

// shut ends the use of the memory; the caller has seen to it that nobody else attaches or loses this end any more.
func (e *end) shut() {
	e.tx, e.rx, e.reserved, e.gap = nil, nil, false, false
	e.seen, e.told = State(e.state.Load()), State(e.state.Load())
	e.link.drop()
	e.link = nil
	e.own.close()
	e.why.CompareAndSwap(nil, &errClosed)
}

var errClosed = error(ErrClosed)
