package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// Events is the completion ring as the plane fills it. An event that does not fit stays with the object it speaks of,
// whose slot is the room kept for it, and is put again by a later step: nothing is dropped, and nothing needs a ring
// as large as all that can be alive at once.
type Events struct {
	ring   *ringbuf.Producer
	now    clock.Instant
	put    int
	held   uint64
	total  uint64 // events published so far
	notify func() // the host's descriptor
}

// NewEvents fills the ring in mem; notify is called once after a step that published something.
func NewEvents(mem []byte, notify func()) (*Events, error) {
	ring, err := ringbuf.NewProducer(mem)
	if err != nil {
		return nil, err
	}
	return &Events{ring: ring, notify: notify}, nil
}

// Put adds an event. It reports false if the ring is full.
func (e *Events) Put(ev *record.Event) bool {
	rec := e.ring.Reserve(uint32(ev.Kind), record.EventLen)
	if rec == nil {
		e.held++
		return false
	}
	ev.TimeNs = uint64(e.now)
	record.PutEvent(rec, ev)
	e.put++
	return true
}

// Begin says what time it is for the events to come.
func (e *Events) Begin(now clock.Instant) { e.now = now }

// Total counts the events published so far, Held the times that one found no room.
func (e *Events) Total() uint64 { return e.total }
func (e *Events) Held() uint64  { return e.held }

// Flush publishes all events of a step with one store.
func (e *Events) Flush() {
	if e.put == 0 {
		return
	}
	e.total += uint64(e.put)
	e.put = 0
	e.ring.Publish()
	if e.notify != nil {
		e.notify()
	}
}

// publishEnds moves ended leases and lapsed expectations into the completion ring. The slot goes back to the host only
// after its event is in the ring, so that a handle never means two leases that the host has not heard the end of.
func (p *Plane) publishEnds() {
	for {
		end, ok := p.Leases.NextEnd()
		if !ok {
			return
		}
		ev := record.Event{
			Kind: record.EvFreed, Status: int32(end.Reason), Handle: uint64(end.Handle), User: end.User,
			Value0: uint64(end.Blocks), Value1: uint64(end.Held), Reasons: uint64(end.Reason), // of the one rank
		}
		if end.Lapsed {
			ev = record.Event{Kind: record.EvExpectLapsed, Handle: uint64(end.Handle)}
		}
		if p.link != nil {
			ok = p.link.end(&end, &ev)
		} else {
			ok = p.out.Put(&ev)
		}
		if !ok {
			return
		}
		p.Leases.PopEnd()
	}
}

// PublishEnds moves what is ended into the completion ring outside a step, when the context closes.
func (p *Plane) PublishEnds() {
	p.publishEnds()
	p.Flush()
}

// Flush publishes the events of a step that did not come to its end.
func (p *Plane) Flush() {
	p.out.Flush()
	if p.link != nil {
		p.link.carrier.Publish()
	}
}
