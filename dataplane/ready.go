package dataplane

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Ready tells whether the event behind the last write into a lease's blocks has fired. It does not wait.
type Ready interface {
	Fired(event uint64) (bool, error)
}

// readyStepMax is how many events a step asks: some 100 ns each. The rest is asked in the next one; a lease that is offered later is safe.
const readyStepMax = 256

// awaited are leases whose blocks a device still writes. NICs are outside of a device's order of work, and a fence that is read behind
// the data cannot tell that the data was read too early: the blocks were the lease's all along. So what a reader needs to know of a lease does
// not leave before the event has fired (record.Unready), and no reader, of whatever kind, can be early.
//
// Memory: from Await, by slot. A step touches no heap.
type awaited struct {
	ready Ready
	of    []await  // by slot
	slots []uint32 // those that wait, in no order
	next  int
}

type await struct {
	event uint64 // 0: the slot does not wait
	use   uint32
}

// Await says who knows events, for grants from now on; nil: nobody does, and what still waits ends with its lease. Off the step.
func (p *Plane) Await(ready Ready) {
	if ready != nil && p.awaited.of == nil {
		p.awaited.of, p.awaited.slots = make([]await, len(p.mem.Slots)), make([]uint32, 0, len(p.mem.Slots))
	}
	p.awaited.ready = ready
}

// Awaited is how many leases wait for an event of a device.
func (p *Plane) Awaited() int { return len(p.awaited.slots) }

// await has a lease wait for an event. A slot that has come back to the host meanwhile has another use by now.
func (a *awaited) await(h record.Handle, event uint64) {
	s := h.Slot()
	if int(s) >= len(a.of) {
		return // nobody knows events: it is never offered, and ends at its deadline
	}
	if a.of[s].event == 0 {
		a.slots = append(a.slots, s)
	}
	a.of[s] = await{event: event, use: h.Use()}
}

// askReady asks the events and offers the leases whose own has fired. An event that cannot be asked is not asked again, since its handle may
// be anything by now: then the lease is never offered, and ends at its deadline.
func (p *Plane) askReady() {
	a := &p.awaited
	offered := false
	for n := min(len(a.slots), readyStepMax); n > 0; n-- {
		if a.next >= len(a.slots) {
			a.next = 0
		}
		s := a.slots[a.next]
		w, slot := &a.of[s], &p.mem.Slots[s]
		state := atomic.LoadUint64(&slot.State)
		alive := uint32(state>>32) == w.use && uint32(state)&record.Mask == record.Granted
		if alive {
			fired, err := false, error(nil)
			if a.ready != nil {
				fired, err = a.ready.Fired(w.event)
			}
			switch {
			case err != nil:
				p.Counters.ReadyFailed++
				p.cfg.Log.Put(log.ReadyFailed, p.last, log.Entry{A: uint64(s), Text: err.Error()})
			case fired:
				p.Counters.ReadyFired++
				atomic.AndUint32(&slot.Flags, ^uint32(record.Unready))
				offered = true
			default:
				a.next++
				continue
			}
		}
		w.event = 0
		a.slots[a.next] = a.slots[len(a.slots)-1]
		a.slots = a.slots[:len(a.slots)-1]
	}
	if offered && p.out.notify != nil {
		p.out.notify() // the host may sleep until it can make parameters
	}
}
