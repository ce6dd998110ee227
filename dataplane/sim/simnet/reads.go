package simnet

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// phase is how far a read is.
type phase uint8

const (
	going   phase = iota // pieces are still to come
	failing              // its peer is dead, which is noticed at the next event
	landed               // every byte is there; PollReads has not seen it
	ended                // nothing more lands
)

// read is one posted read. It lives until its handle is released and nothing of it can land any more.
type read struct {
	live, released bool
	phase          phase
	cut            cut
	status         transport.Status
	gen            uint32
	reader, conn   int32
	next           int32 // among those that wait for the same
	event          uint64
	due            instant // of its event
	start, end     instant
	last           instant // of a failed read: nothing lands later
	fate           draws
	descs          []transport.Desc // none if no byte moves
	total          uint64
	pieces, stride int32
	steps, step    int32
	failAt         int32 // the step before which an error is reported, none
	notif          int32
	notifLen       int32
	need           uint64 // notifications that must have been polled
}

// moving reports whether the owner has begun to answer a read that waits for nothing.
func (r *read) moving(now instant) bool { return r.phase == going && r.event != 0 && now >= r.start }

// PostRead starts a read. Ranges that are not registered here are ErrInvalid, and those that are not in the peer's metadata ErrRange.
func (a *Agent) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	if !a.alive {
		return 0, transport.ErrClosed
	}
	ci, c := a.conn(spec.Peer)
	if c == nil || len(spec.Descs) == 0 || len(spec.Notif) > attachedMax {
		return 0, transport.ErrInvalid
	}
	var total uint64
	for i := range spec.Descs {
		d := &spec.Descs[i]
		if d.Len == 0 || !regions.Covered(a.regions, spec.LocalMem, d.LocalDevice, d.Local, d.Len) {
			return 0, transport.ErrInvalid
		}
		if !regions.Covered(c.regions, spec.RemoteMem, d.RemoteDevice, d.Remote, d.Len) {
			return 0, transport.ErrRange
		}
		total += d.Len
	}
	n := a.net
	owner := n.owner(c)
	if owner == nil && !n.silent(c) { // the transport knows of the end of a process when it posts
		n.lose(c)
	}
	if n.lost(c) {
		return 0, transport.ErrPeer
	}
	if a.open >= a.cfg.ReadsMax {
		return 0, transport.ErrFull
	}
	class := uint32(classRead)
	if total <= SmallRead {
		class = classSmallRead
	}
	i, r := n.reads.take()
	*r = read{
		live: true, gen: r.gen + 1, reader: a.index, conn: ci, next: none, fate: n.fate(c, class), total: total,
		failAt: none, notif: none, need: c.sent,
	}
	if len(spec.Notif) > 0 {
		r.notif, r.notifLen = n.bytes.put(spec.Notif), int32(len(spec.Notif))
	}
	sized := a.cfg.Sized && spec.LocalMem == transport.VRAM || spec.RemoteMem == transport.VRAM && owner != nil && owner.cfg.Sized
	if !sized {
		r.descs = n.descs.take(spec.Descs)
	}
	a.open++
	c.open++
	c.refs++
	n.counters.Reads++
	n.counters.ReadBytes += total
	n.plan(a, owner, c, r, len(spec.Descs), spec)
	n.tell(EvPosted, c, int(total))
	n.schedule(i, r, r.stepAt(0))
	return transport.Xfer(r.gen)<<32 | transport.Xfer(i+1), nil
}

// PollReads reports where reads stand. A step does not let the clock go on, so spinning is this: if none has ended, those that
// end next, within spinNs of virtual time, end now.
func (a *Agent) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	n, next := a.net, clock.Never
	ended := a.rush(xfers, n.now)
	for k, x := range xfers {
		out[k] = a.look(x)
		ended = ended || out[k] != transport.Pending
		if _, r := a.read(x); r != nil && r.event != 0 && r.status == transport.Pending {
			next = min(next, r.end)
		}
	}
	if ended || spinNs <= 0 || next > n.now.Add(timeOf(spinNs)) || !a.rush(xfers, next) {
		return
	}
	for k, x := range xfers {
		out[k] = a.look(x)
	}
}

// rush carries out what is left of the reads that end by a time, and reports whether there were any.
func (a *Agent) rush(xfers []transport.Xfer, to clock.Instant) bool {
	n, any := a.net, false
	n.rushing, n.rushTo = true, to
	for _, x := range xfers {
		i, r := a.read(x)
		if r == nil || r.event == 0 || r.end > to || r.status != transport.Pending {
			continue
		}
		for r.event != 0 && r.due <= to && r.status == transport.Pending { // at most its steps
			n.move(i, r)
		}
		if r.event == rushed { // it failed, and goes on
			r.event = n.heap.Push(r.due, event{i, evRead})
		}
		any = true
	}
	n.rushing = false
	return any
}

func (a *Agent) read(x transport.Xfer) (int32, *read) {
	i := int64(x&0xffffffff) - 1
	if i < 0 || i >= int64(len(a.net.reads.items)) {
		return none, nil
	}
	r := a.net.reads.at(int32(i))
	if !r.live || r.released || r.gen != uint32(x>>32) || r.reader != a.index {
		return none, nil
	}
	return int32(i), r
}

// look gives a read's status. A read that has landed is done when it is looked at: then its notification leaves.
func (a *Agent) look(x transport.Xfer) transport.Status {
	_, r := a.read(x)
	if r == nil {
		return transport.Failed
	}
	if r.status != transport.Pending || r.phase != landed || a.stopped {
		return r.status
	}
	n := a.net
	if r.notif != none {
		n.scratch = n.scratch[:r.notifLen]
		n.bytes.get(r.notif, n.scratch)
		switch c := n.conns.at(r.conn); n.send(r.conn, c, n.scratch, classAttached) {
		case nil:
		case transport.ErrFull:
			return transport.Pending
		default:
			r.status = transport.Failed
			n.counters.ReadsFailed++
			return r.status
		}
	}
	r.status = transport.Done
	n.counters.ReadsDone++
	return r.status
}

// Release gives back the handle of an ended read. What is under way of it lands all the same.
func (a *Agent) Release(x transport.Xfer) error {
	i, r := a.read(x)
	if r == nil || r.status == transport.Pending {
		return transport.ErrInvalid
	}
	r.released = true
	a.open--
	a.net.conns.at(r.conn).open--
	a.net.tidy(i, r)
	return nil
}
