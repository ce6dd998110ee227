package sim

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/stream"
)

// lane is one direction of a delta carrier: what faults are to come there.
type lane struct {
	lose, double, swap int
	n                  int    // messages carried
	kept               []byte // waits for the next one to overtake it
}

// Lanes of a rank.
const (
	toHost = iota
	toRank
)

// flushDelta hands on what both ends of a rank's delta carrier have to say. The engine carries it in its own messages, within
// two milliseconds, in order.
func (r *rankCtx) flushDelta() {
	up, ok := r.carrier.(stream.Delta)
	if !ok || r.life.host == nil {
		return
	}
	down := r.life.host.streams.End(r.n).(stream.Delta)
	if !r.gone && r.stopped == 0 {
		r.carry(toHost, up, down)
	}
	if h := r.life.host; !h.gone && h.stopped == 0 {
		r.carry(toRank, down, up)
	}
}

// carryTime is how long a message of a delta carrier is on its way.
const carryTime = time.Millisecond

func (r *rankCtx) carry(way int, from, to stream.Delta) {
	l := &r.lanes[way]
	buf := r.life.host.buf
	for range 64 {
		n, err := from.Take(buf)
		if err != nil || n == 0 {
			return
		}
		l.n++
		msg := append([]byte(nil), buf[:n]...)
		if loss := r.life.place.spec.CarrierLoss; loss > 0 && !r.w.quiet && float64(r.w.hash("delta", r.who(), r.n, way, r.w.now, l.n)>>11)/(1<<53) < loss {
			continue
		}
		switch {
		case l.lose > 0:
			l.lose--
			r.w.say(Vanished, r.who(), int(r.n), "", "delta message %d of %d bytes, lane %d", l.n, n, way)
			continue
		case l.double > 0:
			l.double--
			r.deliver(way, msg, to)
		case l.swap > 0:
			l.swap--
			l.kept = msg
			continue
		}
		r.deliver(way, msg, to)
		if l.kept != nil {
			r.deliver(way, l.kept, to)
			l.kept = nil
		}
	}
}

func (r *rankCtx) deliver(way int, msg []byte, to stream.Delta) {
	r.w.after(carryTime, func() { r.put(msg, way, to, 0) })
}

// put gives a message to an end, again while that has no room.
func (r *rankCtx) put(msg []byte, way int, to stream.Delta, tries int) {
	c := &r.steps
	if way == toHost {
		c = &r.life.host.steps
	}
	if c.gone {
		return
	}
	if c.stopped > 0 && tries < 200 { // it waits in the socket
		r.w.after(50*time.Millisecond, func() { r.put(msg, way, to, tries+1) })
		return
	}
	_ = to.Put(msg) // no room: it is dropped, as the engine may
	c.wake()
}

// idleLanes lets go of what faults keep back.
func (r *rankCtx) idleLanes() {
	for i := range r.lanes {
		r.lanes[i].lose, r.lanes[i].double, r.lanes[i].swap = 0, 0, 0
		r.lanes[i].kept = nil
	}
}
