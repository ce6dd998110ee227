package ipc

import (
	"errors"
	"time"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// A handle of ours has the highest bit set, which no inner transport's has, then the use of its slot, then the slot.
const (
	ours     transport.Xfer = 1 << 63
	slotBits                = 20
	slotsMax                = 1 << slotBits
	useMask                 = 1<<(63-slotBits) - 1
)

// slot is one read of device memory.
type slot struct {
	use    uint64
	used   bool
	status transport.Status
	landed bool // the bytes are there, and the notification has not left
	peer   *peer
	id     transport.Peer
	made   bool // the event
	event  cuda.Event
	notif  []byte
}

func (t *Transport) handle(i uint32) transport.Xfer {
	return ours | transport.Xfer(t.slots[i].use&useMask)<<slotBits | transport.Xfer(i)
}

// slotOf is the slot behind a handle; nil: there is none.
func (t *Transport) slotOf(x transport.Xfer) *slot {
	i := uint32(x & (slotsMax - 1))
	if int(i) >= len(t.slots) || !t.slots[i].used || t.handle(i) != x {
		return nil
	}
	return &t.slots[i]
}

// PostRead starts a read of device memory into device memory, and hands any other to the inner transport. From device memory into host memory,
// or the other way round, there is none: ErrInvalid.
func (t *Transport) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	if spec.LocalMem != transport.VRAM && spec.RemoteMem != transport.VRAM {
		return t.inner.PostRead(spec)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.peers[spec.Peer]
	switch {
	case t.closed:
		return 0, transport.ErrClosed
	case p == nil || spec.LocalMem != spec.RemoteMem || t.ctx == nil:
		return 0, transport.ErrInvalid
	case p.broken:
		return 0, transport.ErrPeer
	}
	if err := t.plan(p, spec.Descs); err != nil {
		return 0, err
	}
	if len(t.free) == 0 {
		return 0, transport.ErrFull
	}
	i := t.free[len(t.free)-1]
	s := &t.slots[i]
	if !s.made {
		event, err := t.ctx.NewEvent()
		if err != nil {
			return 0, err
		}
		s.event, s.made = event, true
	}
	start := time.Now()
	begun, err := t.ctx.Copies(t.stream, t.copies, s.event)
	spec.Took = time.Since(start) // by the clock of the wall, which is near: copies are begun here and done elsewhere
	if err != nil && begun == 0 {
		return 0, err
	}
	s.used, s.status, s.landed, s.peer, s.id = true, transport.Pending, false, p, spec.Peer
	if err != nil { // a part of it is on its way
		s.status = transport.FailedHere
	}
	s.use++
	s.notif = append(s.notif[:0], spec.Notif...)
	t.free = t.free[:len(t.free)-1]
	p.open++
	return t.handle(i), nil
}

// plan turns pieces into copies between addresses of this process. ErrInvalid: one is not registered here; ErrRange: or not the peer's.
func (t *Transport) plan(p *peer, descs []transport.Desc) error {
	if len(descs) == 0 {
		return transport.ErrInvalid
	}
	t.copies = t.copies[:0]
	for i := range descs {
		d := &descs[i]
		to, here := find(t.regions, d.LocalDevice, d.Local, d.Len)
		from, there := find(p.regions, d.RemoteDevice, d.Remote, d.Len)
		switch {
		case d.Len == 0 || !here:
			return transport.ErrInvalid
		case !there:
			return transport.ErrRange
		}
		if last := len(t.copies) - 1; last >= 0 && t.copies[last].To+t.copies[last].Bytes == to && t.copies[last].From+t.copies[last].Bytes == from {
			t.copies[last].Bytes += d.Len
			continue
		}
		t.copies = append(t.copies, cuda.Copy{To: to, From: from, Bytes: d.Len})
	}
	return nil
}

// find is where a piece of the owner's is in this process.
func find(regions []shared, device uint32, addr, bytes uint64) (uint64, bool) {
	for i := range regions {
		if r := &regions[i]; r.at != 0 && r.device == device && addr >= r.addr && bytes <= r.bytes && addr-r.addr <= r.bytes-bytes {
			return r.at + (addr - r.addr), true
		}
	}
	return 0, false
}

// PollReads asks the events of our reads and the inner transport about its own.
func (t *Transport) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	mixed := false
	for _, x := range xfers {
		mixed = mixed || x&ours != 0
	}
	if !mixed {
		t.inner.PollReads(xfers, out, spinNs)
		return
	}
	for began := time.Now(); !t.look(xfers, out) && time.Since(began) < time.Duration(spinNs); { // ends with the spin
	}
}

// look fills out; true: a read has ended.
func (t *Transport) look(xfers []transport.Xfer, out []transport.Status) (ended bool) {
	t.asked = t.asked[:0]
	for i, x := range xfers {
		if x&ours == 0 {
			t.asked = append(t.asked, x)
			continue
		}
		out[i] = t.statusOf(x)
		ended = ended || out[i] != transport.Pending
	}
	if len(t.asked) == 0 {
		return ended
	}
	if len(t.told) < len(t.asked) {
		t.told = make([]transport.Status, len(t.asked))
	}
	t.inner.PollReads(t.asked, t.told, 0)
	n := 0
	for i, x := range xfers {
		if x&ours == 0 {
			out[i] = t.told[n]
			ended = ended || out[i] != transport.Pending
			n++
		}
	}
	return ended
}

func (t *Transport) statusOf(x transport.Xfer) transport.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slotOf(x)
	if s == nil {
		return transport.Failed
	}
	if s.status == transport.Pending {
		s.status = t.advance(s)
	}
	return s.status
}

// advance is how a read stands: first its event, then its notification.
func (t *Transport) advance(s *slot) transport.Status {
	if !s.landed {
		fired, err := t.ctx.Fired(s.event)
		switch {
		case err != nil: // our device's
			return transport.FailedHere
		case !fired:
			return transport.Pending
		}
		s.landed = true
	}
	if len(s.notif) == 0 {
		return transport.Done
	}
	switch err := t.inner.Send(s.id, s.notif); {
	case err == nil:
		return transport.Done
	case errors.Is(err, transport.ErrFull):
		return transport.Pending // it leaves at a later look
	case errors.Is(err, transport.ErrPeer):
		s.peer.broken = true
	case !s.peer.gone: // of this side
		return transport.FailedHere
	}
	return transport.Failed
}

// Release gives an ended read's slot back, and the mappings of its peer if that is gone and this was its last read.
func (t *Transport) Release(x transport.Xfer) error {
	if x&ours == 0 {
		return t.inner.Release(x)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slotOf(x)
	if s == nil || s.status == transport.Pending {
		return transport.ErrInvalid
	}
	s.used = false
	t.free = append(t.free, uint32(x&(slotsMax-1)))
	if s.peer.open--; s.peer.open == 0 && s.peer.gone && !t.closed {
		t.forget(s.peer)
	}
	s.peer = nil
	return nil
}
