package lease

// readers remembers who has reported for leases whose set is not complete (L5): one entry per reader, chained per lease.
// A lease with one reader never needs one.
type readers struct {
	pool []reader // pool[0] is no reader
	free uint32
	used int
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
	r := readers{pool: make([]reader, n+1)}
	return r
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

func (r *readers) take() uint32 {
	if i := r.free; i != 0 {
		r.free = r.pool[i].next
		r.used++
		return i
	}
	// Entries never used lie behind those used so far, so an unused pool costs no resident page.
	if r.used+1 < len(r.pool) {
		r.used++
		return uint32(r.used)
	}
	return 0
}

// drop gives a chain back and tells how long it was.
func (r *readers) drop(head uint32) (n int) {
	for i := head; i != 0; n++ { // at most chainMax: add stops there
		next := r.pool[i].next
		r.pool[i] = reader{next: r.free}
		r.free = i
		r.used--
		i = next
	}
	return n
}
