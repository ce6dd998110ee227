package lease

import "github.com/kvlease/kvlease/dataplane/internal/free"

// readers remembers who has reported for leases whose set is not complete (L5): one entry per reader, chained per lease.
// A lease with one reader never needs one.
type readers struct {
	pool []reader    // pool[0] is no reader
	free free.Places // reader i has place i-1
}

type reader struct {
	who   uint64 // native: engine and epoch; stock: the agent
	next  uint32
	rank  uint32
	n     uint32 // the count that its last report named
	stock bool
}

// chainMax bounds the readers remembered for one lease: more are held to the deadline.
const chainMax = 256

func newReaders(n int) readers {
	return readers{pool: make([]reader, n+1), free: free.New(n)}
}

// add notes one report in the chain from head. Native readers count per engine, stock ones all together; the set is
// complete when it has as many distinct readers as the largest count any of them named.
func (r *readers) add(head uint32, in reader) (newHead uint32, complete bool, o Outcome) {
	need, have, looked := max(in.n, 1), uint32(1), 0
	known := uint32(0)
	for i := head; i != 0; i = r.pool[i].next {
		if looked++; looked > chainMax {
			return head, false, Full
		}
		m := &r.pool[i]
		if m.stock != in.stock || !m.stock && m.who != in.who {
			continue
		}
		need = max(need, m.n)
		if m.who == in.who && m.rank == in.rank {
			known = i
			continue
		}
		have++
	}
	if known != 0 {
		r.pool[known].n = max(r.pool[known].n, in.n)
		return head, have >= need, Repeated
	}
	if have >= need {
		return head, true, Applied
	}
	i := r.take()
	if i == 0 {
		return head, false, Full
	}
	in.next = head
	r.pool[i] = in
	return i, false, Applied
}

func (r *readers) take() uint32 { return r.free.Take() + 1 } // 0: none is free

// drop gives a chain back and tells how long it was.
func (r *readers) drop(head uint32) (n int) {
	for i := head; i != 0; n++ { // at most chainMax: add stops there
		next := r.pool[i].next
		r.free.Give(i - 1)
		i = next
	}
	return n
}
