package read

import "github.com/kvlease/kvlease/dataplane/transport"

// peerOpen counts what is open to one peer.
type peerOpen struct {
	peer    transport.Peer
	pending int32 // no end seen
	aside   int32 // ended by an error, handle kept; or abandoned
	rows    int32 // row reads among both
	late    int32 // row reads that gave their result by time-out and are still open
}

// peerTable maps peers with something open to their counts: open addressing, entries vanish with the last transfer,
// so that the endless numbering of peers needs no memory.
type peerTable struct {
	entries []peerOpen // peer 0 is an empty place
	mask    uint32
	n, max  int
}

func newPeerTable(max int) peerTable {
	size := 16
	for size < 2*max {
		size *= 2
	}
	return peerTable{entries: make([]peerOpen, size), mask: uint32(size - 1), max: max}
}

func (t *peerTable) home(p transport.Peer) uint32 {
	h := uint32(p) * 0x9E3779B1 // Fibonacci hashing: neighbours spread
	return (h ^ h>>15) & t.mask
}

// find gives the peer's counts, or nil if nothing is open to it.
func (t *peerTable) find(p transport.Peer) *peerOpen {
	for i := t.home(p); ; i = (i + 1) & t.mask {
		e := &t.entries[i]
		if e.peer == p {
			return e
		}
		if e.peer == 0 {
			return nil
		}
	}
}

// get is find, or a new entry. It gives nil if PeersMax peers have something open.
func (t *peerTable) get(p transport.Peer) *peerOpen {
	i := t.home(p)
	for ; t.entries[i].peer != 0; i = (i + 1) & t.mask {
		if t.entries[i].peer == p {
			return &t.entries[i]
		}
	}
	if t.n == t.max {
		return nil
	}
	t.n++
	t.entries[i] = peerOpen{peer: p}
	return &t.entries[i]
}

// tidy removes the entry if nothing is open any more. It moves later entries up, so pointers into the table end here.
func (t *peerTable) tidy(p transport.Peer) {
	e := t.find(p)
	if e == nil || e.pending|e.aside != 0 {
		return
	}
	t.n--
	hole := t.home(p)
	for t.entries[hole].peer != p {
		hole = (hole + 1) & t.mask
	}
	for i := (hole + 1) & t.mask; t.entries[i].peer != 0; i = (i + 1) & t.mask {
		if (i-t.home(t.entries[i].peer))&t.mask >= (i-hole)&t.mask { // its home is not after the hole
			t.entries[hole] = t.entries[i]
			hole = i
		}
	}
	t.entries[hole] = peerOpen{}
}
