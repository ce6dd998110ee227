package group

// none ends a list.
const none = ^uint32(0)

// links of an entry that is in at most one list of its kind.
type links struct {
	next, prev uint32
	in         bool
}

// list is a first-in, first-out list of entries of a table, by index.
type list struct {
	head, tail uint32
	n          int
}

func emptyList() list { return list{head: none, tail: none} }

// push puts entry i at the end, unless it is in a list of its kind.
func push[T any](l *list, all []T, i uint32, of func(*T) *links) {
	k := of(&all[i])
	if k.in {
		return
	}
	*k = links{next: none, prev: l.tail, in: true}
	if l.tail == none {
		l.head = i
	} else {
		of(&all[l.tail]).next = i
	}
	l.tail = i
	l.n++
}

// drop takes entry i out, if it is in.
func drop[T any](l *list, all []T, i uint32, of func(*T) *links) {
	k := of(&all[i])
	if !k.in {
		return
	}
	if k.prev == none {
		l.head = k.next
	} else {
		of(&all[k.prev]).next = k.next
	}
	if k.next == none {
		l.tail = k.prev
	} else {
		of(&all[k.next]).prev = k.prev
	}
	*k = links{}
	l.n--
}
