package capacity

import (
	"errors"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
)

// decoder is a D: requests wait in order for one of its slots, in which they are read and then decoded. From the moment in which
// one arrives it is tracked.
type decoder struct {
	*engine
	all   list.List // every request that is here
	queue list.List // of these, those that wait for a slot
	busy  int       // slots
	aside int       // of these, those whose blocks a failed read may still write
	known []uint64
}

func newDecoder(e *engine) *decoder {
	d := &decoder{engine: e}
	e.poll = d.event
	d.reset()
	return d
}

func (d *decoder) reset() {
	d.all, d.queue, d.busy, d.aside = list.New(), list.New(), 0, 0
	d.known = make([]uint64, d.w.cfg.P)
}

// engineOf gives the handle of a P. One that is new is asked for its handshake, whose answer takes a round trip.
func (d *decoder) engineOf(p int32) uint64 {
	if h := d.known[p]; h != 0 {
		return h
	}
	w := d.w
	h, err := d.plane.Tracker.AddEngine(heartbeat.EngineDesc{ID: w.ps[p].id})
	if err != nil {
		w.violated("every P has room in a D's table", d.id, "%v", err)
	}
	d.known[p] = h
	w.at(w.now.Add(2*w.cfg.Delay), happening{kind: evHandshake, engine: d.index, other: p, token: d.epoch})
	return h
}

// meets hands the present boot of a P in. A dead one does not answer: it is heard when it is back.
func (d *decoder) meets(p *prefiller, epoch uint64) {
	w := d.w
	if !d.alive || d.epoch != epoch || d.known[p.index] == 0 || !p.alive {
		return
	}
	h := d.known[p.index]
	if err := d.plane.Tracker.LoadHandshake(h, 0, p.served); err != nil {
		w.violated("a handshake of our own is taken", d.id, "%v", err)
	}
	if w.set.Fixed { // every clock is the same here; a D knows it to within the round trip
		var o clock.Offset
		sent := w.now.Add(-2 * w.cfg.Delay)
		o.Observe(clock.Sample{Sent: sent, Received: w.now, Stamp: clock.RemoteInstant(w.now.Add(-w.cfg.Delay))})
		if err := d.plane.Tracker.SetOffset(h, o); err != nil {
			w.violated("an offset is taken", d.id, "%v", err)
		}
	}
	w.wake(d.engine)
}

// accept tracks a request and lets it wait for a slot.
func (d *decoder) accept(i int32) {
	w := d.w
	r := &w.reqs[i]
	again := happening{kind: evAccept, token: w.token(i)}
	if w.now < d.stalledTill {
		w.at(d.stalledTill, again)
		return
	}
	remote := r.remote
	remote.ID = w.idOf(i)
	h, err := d.host.Track(d.engineOf(r.p), &remote, remote.ID, w.token(i), w.now)
	if errors.Is(err, host.ErrFull) { // of the ring until the next step; of slots until one comes back
		w.wake(d.engine)
		w.at(w.now.Add(w.cfg.Pass), again)
		return
	}
	if err != nil {
		w.violated("a request is tracked", d.id, "%v", err)
		return
	}
	r.track, r.state = h, queued
	w.pushQ(&d.queue, i)
	w.wake(d.engine)
	d.begin()
}

// begin reads for free slots.
func (d *decoder) begin() {
	w := d.w
	if w.now < d.stalledTill {
		return
	}
	for d.busy < w.cfg.Slots && d.queue.Head != list.None {
		i := int32(d.queue.Head)
		r := &w.reqs[i]
		w.runs[0] = record.Run{N: uint32(r.blocks)}
		err := d.host.Read(r.track, w.runs[:])
		if errors.Is(err, host.ErrFull) {
			w.wake(d.engine)
			return
		}
		if err != nil {
			w.violated("a tracked request can be read", d.id, "%v", err)
			return
		}
		w.removeQ(&d.queue, i)
		r.state, r.began = reading, w.now
		d.busy++
		w.wake(d.engine)
	}
}

// event takes an event of the plane.
func (d *decoder) event(ev *record.Event) {
	w := d.w
	i := w.ofToken(ev.User)
	switch ev.Kind {
	case record.EvReadDone:
		if i == none || w.reqs[i].state != reading {
			w.violated("every read ends once", d.id, "a read that is not under way is done")
			return
		}
		d.read(i)
	case record.EvReadFailed:
		if i == none || w.reqs[i].state != reading {
			w.violated("every read ends once", d.id, "a read that is not under way failed")
			return
		}
		if ev.Flags&record.FlagBlocksHeld != 0 {
			d.aside++
		} else {
			d.busy--
		}
		w.failedBy[ev.Status&7]++
		d.lose(i, ev.Status == record.ReadStale)
	case record.EvBlocksBack:
		if d.aside == 0 {
			w.violated("blocks come back that were aside", d.id, "none are")
		}
		d.aside--
		d.busy--
	case record.EvLeaseGone:
		if i == none || w.reqs[i].state != queued {
			return // its read tells
		}
		w.removeQ(&d.queue, i)
		if err := d.host.Untrack(w.reqs[i].track); err != nil {
			w.violated("a tracked request can be given up", d.id, "%v", err)
		}
		w.toldGone++
		d.lose(i, true)
		w.wake(d.engine)
	case record.EvAtRisk:
		w.atRisk++
	case record.EvEngineUp, record.EvEngineDown:
	default:
		w.violated("a reader hears of reads, leases and engines", d.id, "event %d", ev.Kind)
	}
}

// read takes the data of a request that is proven, and decodes.
func (d *decoder) read(i int32) {
	w := d.w
	r := &w.reqs[i]
	d.proved(r)
	if t := w.of(r); t != nil && t.alive {
		t.read = w.now
	}
	w.first.add(w.now.Sub(r.arrived))
	r.state = decoding
	w.work(float64(r.output)/w.cfg.Decode, happening{kind: evDecoded, token: w.token(i)})
}

// proved checks a read that was accepted: its lease had not ended when it was begun.
func (d *decoder) proved(r *request) {
	w := d.w
	p := w.ps[r.p]
	ended := clock.Never
	switch t := &p.tenures[r.lease.Slot()]; {
	case !p.alive && p.mem.Epoch == r.pEpoch:
		ended = p.crashAt
	case p.mem.Epoch != r.pEpoch:
		ended = 0
		if p.stale == r.pEpoch {
			ended = p.crashAt
		}
	case t.handle == r.lease && !t.alive:
		ended = t.freed
	case t.handle != r.lease:
		ended = 0
		if t.before == r.lease {
			ended = t.beforeFreed
		}
	}
	if ended < r.began {
		w.violated("no read is accepted whose lease had ended before it began", d.id, "the lease of %s ended at %v, the read began at %v", p.id, ended.Sub(start), r.began.Sub(start))
	}
}

// lose ends an attempt here. told: the lease was over, as far as its owner's rows or its time tell.
func (d *decoder) lose(i int32, told bool) {
	w := d.w
	r := &w.reqs[i]
	w.remove(&d.all, i)
	why := lostUnproven
	switch {
	case !w.ps[r.p].alive || w.ps[r.p].mem.Epoch != r.pEpoch:
		why = lostOwner
	case told:
		why = lostLease
	}
	w.abandon(r, false)
	w.lost(i, why)
}

// decoded ends a request for good.
func (d *decoder) decoded(i int32) {
	w := d.w
	if w.now < d.stalledTill {
		w.at(d.stalledTill, happening{kind: evDecoded, token: w.token(i)})
		return
	}
	w.remove(&d.all, i)
	d.busy--
	w.whole.add(w.now.Sub(w.reqs[i].arrived))
	w.finish(i, finished)
	d.begin()
}

// cause is why an attempt was lost.
type cause uint8

const (
	lostLease    cause = iota // its lease ended before it was read
	lostOwner                 // its P crashed
	lostReader                // its D crashed
	lostUnproven              // its read failed or could not be proven, though its P lives
	causesN
)

// lost ends an attempt that is in no list any more, and begins the next one.
func (w *world) lost(i int32, why cause) {
	r := &w.reqs[i]
	w.lostBy[why]++
	if r.state != prefilling {
		w.lostTokens += uint64(r.input)
	}
	r.tries++
	if int(r.tries) >= w.cfg.Tries {
		w.finish(i, givenUp)
		return
	}
	r.serial++
	r.state = atRouter
	w.route(i)
}

// retry is how long the router waits when nobody can take a request.
const retry = 50 * time.Millisecond
