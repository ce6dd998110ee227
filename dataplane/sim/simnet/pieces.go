package simnet

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/internal/regions"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// cut is how a read is cut into pieces.
type cut uint8

const (
	whole  cut = iota // one piece
	halves            // each descriptor in two, somewhere
	words             // a small read of one descriptor in words of 8 bytes
	single            // the same byte by byte
)

// stepsMax is the most events that a read's pieces take: of a longer read several pieces land at once.
const stepsMax = 256

// plan decides when a read's pieces land and how it is cut.
func (n *Net) plan(a, owner *Agent, c *conn, r *read, descs int, spec *transport.ReadSpec) {
	l, d := c.link, r.fate
	r.start = n.now.Add(l.Delay + d.span(drawRequest, l.Jitter) + l.ReadDelay)
	if !c.up {
		c.up = true
		r.start = r.start.Add(l.Connect)
	}
	fail, after := d.chance(drawFail, l.ReadFail), d.unit(drawFailAt)
	if n.interceptRead != nil {
		n.posted = Posted{From: n.text(c.from), To: n.toText(c), Spec: spec}
		f := n.interceptRead(&n.posted)
		if f.Fail {
			fail, after = true, min(max(f.After, 0), 1)
		}
		r.start = r.start.Add(f.Delay)
	}
	end := r.start.Add(l.DescTime * timeOf(descs))
	if r.total > SmallRead {
		end = max(end, reserve(&a.rxFree, r.start, r.total, a.cfg.Rate), reserve(&c.free, r.start, r.total, l.Rate))
		if owner != nil {
			end = max(end, reserve(&owner.txFree, r.start, r.total, owner.cfg.Rate))
		}
	}
	r.end = end.Add(l.Delay + d.span(drawAnswer, l.Jitter))
	r.pieces, r.stride = 1, 1
	switch {
	case r.descs == nil:
		r.pieces = 0
	case a.cfg.Sized && r.total <= SmallRead: // a lean one: copied when it ends
		r.start = r.end
	case descs == 1 && r.total <= SmallRead && d.chance(drawTorn, l.Torn):
		r.cut, r.pieces = single, int32(r.total)
	case descs == 1 && r.total <= SmallRead:
		if r.total > 8 {
			r.cut, r.pieces = words, int32(r.total+7)/8
		}
	default:
		r.cut, r.pieces = halves, int32(2*descs)
	}
	if r.pieces > 1 {
		r.stride = stride(d.of(drawOrder), r.pieces)
	}
	r.steps = min(r.pieces, stepsMax)
	if fail {
		r.failAt = int32(after * float64(r.steps))
	}
}

// reserve takes bytes from a line that carries one read after the other, and gives when the last of them is through.
func reserve(free *instant, from instant, bytes uint64, rate float64) instant {
	if rate <= 0 {
		return from
	}
	*free = max(*free, from).Add(seconds(float64(bytes) / rate))
	return *free
}

// stride is a step that visits every piece once.
func stride(h uint64, pieces int32) int32 {
	s := int32(h%uint64(pieces)) | 1
	for gcd(s, pieces) != 1 {
		s++
	}
	return s
}

func gcd(a, b int32) int32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// stepAt is when a step is due: one after the other from start to end, the last one at the end itself.
func (r *read) stepAt(k int32) instant {
	if k >= r.steps {
		return r.end
	}
	share := (float64(k) + r.fate.unit(drawPiece+uint64(k))) / float64(r.steps)
	return r.start.Add(timeOf(float64(r.end-r.start) * share))
}

// schedule makes the read's next event.
func (n *Net) schedule(i int32, r *read, at instant) {
	r.due = at
	if n.rushing && at <= n.rushTo {
		r.event = rushed
		return
	}
	r.event = n.heap.Push(at, event{i, evRead})
}

// rushed is the number of an event that is not in the heap, since PollReads spins for it.
const rushed = ^uint64(0)

// move carries a read's next step out, unless something holds it up.
func (n *Net) move(i int32, r *read) {
	r.event = 0
	c := n.conns.at(r.conn)
	reader, owner := n.agents[r.reader], n.owner(c)
	switch {
	case r.phase == failing:
		n.lose(c)
		n.fail(i, r, c, false)
		return
	case n.silent(c) && (c.lost || c.dropped):
		n.fail(i, r, c, false)
		return
	case owner == nil && !n.silent(c):
		if r.status == transport.Failed {
			n.fail(i, r, c, false)
			return
		}
		r.phase = failing
		n.schedule(i, r, n.now.Add(failDelayLeast+r.fate.span(drawLate, failDelaySpan)))
		return
	}
	if list := n.holding(r, c, reader, owner); list != nil {
		switch {
		case r.status == transport.Pending:
			n.park(i, r, list)
			if n.silent(c) {
				n.wait(r.conn, c)
			}
		case n.now < r.last:
			n.schedule(i, r, r.last)
		default: // a transport gives up in the end
			n.fail(i, r, c, false)
		}
		return
	}
	if r.step == r.failAt && r.status == transport.Pending {
		n.fail(i, r, c, true)
		return
	}
	if r.step < r.steps {
		if r.status == transport.Failed && n.now > r.last {
			n.fail(i, r, c, false)
			return
		}
		if c.link.RDMA && owner.unregistered && !registered(r, owner) {
			n.lose(c)
			n.fail(i, r, c, false)
			return
		}
		from, to := int64(r.step)*int64(r.pieces)/int64(r.steps), int64(r.step+1)*int64(r.pieces)/int64(r.steps)
		for k := from; k < to; k++ {
			n.copyPiece(r, c, r.pieceAt(int32(k)))
		}
		r.step++
		if at := r.stepAt(r.step); r.step < r.steps || at > n.now {
			n.schedule(i, r, at)
			return
		}
	}
	if r.failAt != none && r.status == transport.Pending { // the error comes at the very end
		n.fail(i, r, c, false)
		return
	}
	r.phase = landed
	if r.status == transport.Failed {
		r.phase = ended
		n.tidy(i, r)
		return
	}
	n.tell(EvLanded, c, int(r.total))
	if !n.rushing {
		reader.wake()
	}
}

// holding gives the list of what a read has to wait for, nil for nothing.
func (n *Net) holding(r *read, c *conn, reader, owner *Agent) *int32 {
	switch {
	case n.silent(c):
		return &c.parked
	case reader.hold:
		return &reader.held
	case owner.stopped && !c.link.RDMA:
		return &owner.parked
	case c.link.Flush && c.polled < r.need:
		return &c.parked
	}
	return nil
}

// pieceAt is the k-th piece to be copied.
func (r *read) pieceAt(k int32) int32 {
	return int32((int64(r.fate.of(drawCut)%uint64(r.pieces)) + int64(k)*int64(r.stride)) % int64(r.pieces))
}

// rangeOf is where a piece lies: a descriptor, and from where to where in it.
func (r *read) rangeOf(p int32) (d *transport.Desc, from, to uint64) {
	switch r.cut {
	case halves:
		d = &r.descs[p/2]
		at := d.Len / 2
		if d.Len > 2 {
			at = 1 + r.fate.of(drawCut+uint64(p/2)<<32)%(d.Len-1)
		}
		if p%2 == 0 {
			return d, 0, at
		}
		return d, at, d.Len
	case words:
		d = &r.descs[0]
		return d, uint64(p) * 8, min(uint64(p)*8+8, d.Len)
	case single:
		return &r.descs[0], uint64(p), uint64(p) + 1
	}
	return &r.descs[0], 0, r.descs[0].Len
}

func (n *Net) copyPiece(r *read, c *conn, p int32) {
	d, from, to := r.rangeOf(p)
	if from == to {
		return
	}
	n.counters.Pieces++
	late := r.status == transport.Failed
	if late {
		n.counters.LatePieces++
	}
	copyBytes(d.Local+from, d.Remote+from, to-from)
	if n.onWrite != nil {
		n.written = Write{
			At: n.now, Reader: n.text(r.reader), Owner: n.toText(c),
			Local: d.Local + from, Remote: d.Remote + from, Bytes: to - from, Late: late,
		}
		n.onWrite(&n.written)
	}
}

// registered reports whether the owner still has what a read asks for.
func registered(r *read, owner *Agent) bool {
	for i := range r.descs {
		d, ok := &r.descs[i], false
		for mem := transport.DRAM; mem <= transport.VRAM && !ok; mem++ {
			ok = regions.Covered(owner.regions, mem, d.RemoteDevice, d.Remote, d.Len)
		}
		if !ok {
			return false
		}
	}
	return true
}

// retries is how long after an error a transport may still be at a read that takes long by itself: it gives up before a reader's
// quarantine does, which is 30 s at least.
const retries = 20 * time.Second

// fail reports an error of a read. If it goes on, what is left of it lands later.
func (n *Net) fail(i int32, r *read, c *conn, goesOn bool) {
	first := r.status == transport.Pending
	r.status = transport.Failed
	if goesOn && r.descs != nil {
		r.phase = going
		late := r.fate.span(drawLate, c.link.Late)
		r.start, r.end = r.start.Add(late), r.end.Add(late)
		r.last = min(max(n.now, r.end), n.now.Add(max(c.link.Late, retries)))
		n.schedule(i, r, max(n.now, r.stepAt(r.step)))
	} else {
		r.phase, r.event = ended, 0
	}
	if first {
		n.counters.ReadsFailed++
		n.tell(EvFailed, c, int(r.total))
		if !n.rushing {
			n.agents[r.reader].wake()
		}
	}
	n.tidy(i, r)
}

// tidy gives a read back that is released and has nothing under way.
func (n *Net) tidy(i int32, r *read) {
	if !r.released || r.phase != ended && r.phase != landed || !r.live {
		return
	}
	c := n.conns.at(r.conn)
	n.descs.give(r.descs)
	n.bytes.give(r.notif)
	r.live, r.descs, r.notif, r.event = false, nil, none, 0
	n.reads.give(i)
	c.refs--
	n.settle(r.conn, c)
}

// park lets a read wait in a list.
func (n *Net) park(i int32, r *read, list *int32) {
	r.next, *list = *list, i
}

// unpark lets all reads of a list go on, each a little later.
func (n *Net) unpark(list *int32) {
	for i := *list; i != none; {
		r := n.reads.at(i)
		next := r.next
		r.next = none
		at := n.now.Add(r.fate.span(drawGo, n.conns.at(r.conn).link.Jitter))
		late := at.Sub(r.due)
		r.start, r.end = r.start.Add(late), r.end.Add(late)
		n.schedule(i, r, at)
		i = next
	}
	*list = none
}
