package loopback

import "github.com/kvlease/kvlease/dataplane/transport"

// reads is the pool of posted reads and their descriptors.
type reads struct {
	slots  []readSlot
	free   []int32
	chunks []chunk
	loose  int32 // first free chunk, -1 for none
	spare  int   // free chunks
}

type readSlot struct {
	used                bool
	gen                 uint32
	status              transport.Status
	peer                *peer
	localMem, remoteMem transport.Mem
	first               int32 // first chunk
	descs               int
	notif               []byte // capacity attachedMax
}

const chunkDescs = 64

// chunk is a piece of a read's descriptor list.
type chunk struct {
	next  int32
	descs [chunkDescs]transport.Desc
}

func newReads(slots, descs int) reads {
	chunks := (descs+chunkDescs-1)/chunkDescs + slots // each read may leave one partly empty
	r := reads{
		slots: make([]readSlot, slots), free: make([]int32, slots),
		chunks: make([]chunk, chunks), loose: 0, spare: chunks,
	}
	notifs := make([]byte, slots*attachedMax)
	for i := range r.slots {
		r.slots[i].notif = notifs[i*attachedMax : i*attachedMax : (i+1)*attachedMax]
		r.free[i] = int32(slots - 1 - i)
	}
	for i := range r.chunks {
		r.chunks[i].next = int32(i + 1)
	}
	r.chunks[chunks-1].next = -1
	return r
}

// add copies spec into a slot, or reports false if a pool is empty.
func (r *reads) add(p *peer, spec *transport.ReadSpec) (transport.Xfer, bool) {
	need := (len(spec.Descs) + chunkDescs - 1) / chunkDescs
	if len(r.free) == 0 || need > r.spare {
		return 0, false
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	s := &r.slots[i]
	s.used = true
	s.gen++
	s.status = transport.Pending
	s.peer, s.localMem, s.remoteMem = p, spec.LocalMem, spec.RemoteMem
	s.descs = len(spec.Descs)
	s.notif = append(s.notif[:0], spec.Notif...)
	s.first = r.loose
	for at := 0; at < len(spec.Descs); at += chunkDescs {
		c := &r.chunks[r.loose]
		copy(c.descs[:], spec.Descs[at:])
		r.loose = c.next
		r.spare--
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
	last := s.first
	for n := chunkDescs; n < s.descs; n += chunkDescs {
		last = r.chunks[last].next
		r.spare++
	}
	r.spare++
	r.chunks[last].next = r.loose
	r.loose = s.first
	s.used, s.peer = false, nil
	r.free = append(r.free, int32(x&0xffffffff)-1)
}

// each calls f with every descriptor of s, until f reports false.
func (r *reads) each(s *readSlot, f func(*transport.Desc) bool) bool {
	left := s.descs
	for c := s.first; left > 0; c = r.chunks[c].next {
		for i := range min(left, chunkDescs) {
			if !f(&r.chunks[c].descs[i]) {
				return false
			}
		}
		left -= chunkDescs
	}
	return true
}
