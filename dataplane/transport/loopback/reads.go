package loopback

import (
	"github.com/kvlease/kvlease/dataplane/internal/free"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// reads is the pool of posted reads and their descriptors.
type reads struct {
	slots    []readSlot
	free     free.Places
	chunks   []chunk
	next     []uint32 // the chunk after it of the same read
	loose    free.Places
	notifs   []byte // attachedMax for each
	unriding free.Places
}

type readSlot struct {
	used                bool
	gen                 uint32
	status              transport.Status
	peer                *peer
	localMem, remoteMem transport.Mem
	first               uint32 // chunk
	descs               int
	notif               []byte // of notifs; empty: none rides on it
	notifAt             uint32 // its place
}

const chunkDescs = 16

// chunk is a piece of a read's descriptor list.
type chunk [chunkDescs]transport.Desc

func newReads(slots, attached, descs int) reads {
	chunks := (descs+chunkDescs-1)/chunkDescs + slots // each read may leave one partly empty
	return reads{
		slots: make([]readSlot, slots), free: free.New(slots),
		chunks: make([]chunk, chunks), next: make([]uint32, chunks), loose: free.New(chunks),
		notifs: make([]byte, attached*attachedMax), unriding: free.New(attached),
	}
}

// add copies spec into a slot, or reports false if a pool is empty.
func (r *reads) add(p *peer, spec *transport.ReadSpec) (transport.Xfer, bool) {
	need := (len(spec.Descs) + chunkDescs - 1) / chunkDescs
	if r.free.Left() == 0 || need > r.loose.Left() || len(spec.Notif) > 0 && r.unriding.Left() == 0 {
		return 0, false
	}
	i := r.free.Take()
	s := &r.slots[i]
	s.used = true
	s.gen++
	s.status = transport.Pending
	s.peer, s.localMem, s.remoteMem = p, spec.LocalMem, spec.RemoteMem
	s.descs = len(spec.Descs)
	if len(spec.Notif) > 0 {
		s.notifAt = r.unriding.Take()
		at := int(s.notifAt) * attachedMax
		s.notif = append(r.notifs[at:at:at+attachedMax], spec.Notif...)
	}
	last := &s.first
	for at := 0; at < len(spec.Descs); at += chunkDescs {
		c := r.loose.Take()
		copy(r.chunks[c][:], spec.Descs[at:])
		*last, last = c, &r.next[c]
	}
	return transport.Xfer(s.gen)<<32 | transport.Xfer(i+1), true
}

func (r *reads) get(x transport.Xfer) *readSlot {
	i := int64(x&0xffffffff) - 1
	if i < 0 || i >= int64(len(r.slots)) {
		return nil
	}
	s := &r.slots[i]
	if !s.used || s.gen != uint32(x>>32) {
		return nil
	}
	return s
}

func (r *reads) release(x transport.Xfer) {
	s := r.get(x)
	for c, n := s.first, 0; n < s.descs; n += chunkDescs {
		r.loose.Give(c)
		c = r.next[c] // which giving back has left as it was
	}
	if len(s.notif) > 0 {
		r.unriding.Give(s.notifAt)
	}
	s.used, s.peer, s.notif = false, nil, nil
	r.free.Give(uint32(x&0xffffffff) - 1)
}

// each calls f with every descriptor of s, until f reports false.
func (r *reads) each(s *readSlot, f func(*transport.Desc) bool) bool {
	left := s.descs
	for c := s.first; left > 0; c = r.next[c] {
		for i := range min(left, chunkDescs) {
			if !f(&r.chunks[c][i]) {
				return false
			}
		}
		left -= chunkDescs
	}
	return true
}
