package dataplane

// none ends a list.
const none = ^uint32(0)

// links of an entry that is in at most one queue.
type links struct {
	next   uint32
	queued bool
}

// queue is a first-in, first-out list of entries of a table, by index.
type queue struct{ head, tail uint32 }

// push puts entry i at the end, once. links gives an entry's.
func push[T any](q *queue, all []T, i uint32, of func(*T) *links) {
	k := of(&all[i])
	if k.queued {
		return
	}
	k.queued, k.next = true, none
	if q.tail == none {
		q.head = i
	} else {
		of(&all[q.tail]).next = i
	}
	q.tail = i
}

// pop takes the first entry out.
func pop[T any](q *queue, all []T, of func(*T) *links) {
	k := of(&all[q.head])
	q.head, k.queued = k.next, false
	if q.head == none {
		q.tail = none
	}
}

func (e *leaseTold) ofQueue() *links  { return &e.links }
func (e *trackTold) ofQueue() *links  { return &e.links }
func (e *engineTold) ofQueue() *links { return &e.links }
