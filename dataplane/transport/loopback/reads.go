package loopback

import "github.com/kvlease/kvlease/dataplane/transport"

// reads is the pool of posted reads and their descriptors.
type reads struct {
	slots  []readSlot
	free   []int32
	chunks []chunk
	next   []int32 // of a chunk; beside them, so that a chunk that was never used is memory that nobody touched
	loose  int32   // first free chunk, -1 for none
	spare  int     // free chunks
	notifs [][]byte
}

type readSlot struct {
	used                bool
	gen                 uint32
	status              transport.Status
	peer                *peer
	localMem, remoteMem transport.Mem
	first               int32 // first chunk
	descs               int
	notif               []byte // of notifs, capacity attachedMax; nil: none rides on it
}

const chunkDescs = 16

// chunk is a piece of a read's descriptor list.
type chunk [chunkDescs]transport.Desc

func newReads(slots, attached, descs int) reads {
	chunks := (descs+chunkDescs-1)/chunkDescs + slots // each read may leave one partly empty
	r := reads{
		slots: make([]readSlot, slots), free: make([]int32, slots),
		chunks: make([]chunk, chunks), next: make([]int32, chunks), loose: 0, spare: chunks,
	}
	for i := range r.slots {
		r.free[i] = int32(slots - 1 - i)
	}
	notifs := make([]byte, attached*attachedMax)
	for i := range attached {
		r.notifs = append(r.notifs, notifs[i*attachedMax:i*attachedMax:(i+1)*attachedMax])
	}
	for i := range r.next {
		r.next[i] = int32(i + 1)
	}
	r.next[chunks-1] = -1
	return r
}

// add copies spec into a slot, or reports false if a pool is empty.
func (r *reads) add(p *peer, spec *transport.ReadSpec) (transport.Xfer, bool) {
	need := (len(spec.Descs) + chunkDescs - 1) / chunkDescs
	if len(r.free) == 0 || need > r.spare || len(spec.Notif) > 0 && len(r.notifs) == 0 {
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
	if len(spec.Notif) > 0 {
		last := len(r.notifs) - 1
		s.notif, r.notifs = append(r.notifs[last][:0], spec.Notif...), r.notifs[:last]
	}
	s.first = r.loose
	for at := 0; at < len(spec.Descs); at += chunkDescs {
		copy(r.chunks[r.loose][:], spec.Descs[at:])
		r.loose = r.next[r.loose]
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
		last = r.next[last]
		r.spare++
	}
	r.spare++
	r.next[last] = r.loose
	r.loose = s.first
	s.used, s.peer = false, nil
	if s.notif != nil {
		r.notifs, s.notif = append(r.notifs, s.notif), nil
	}
	r.free = append(r.free, int32(x&0xffffffff)-1)
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
