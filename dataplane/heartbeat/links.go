package heartbeat

// links is an element's place in one doubly linked list.
type links struct{ next, prev uint32 }

// list is a doubly linked list through the elements of a slice: first in, first out, but any can leave. An element that is in
// several lists at once has links for each; the functions below are told which.
type list struct {
	head, tail uint32
	n          int
}

func emptyList() list { return list{head: none, tail: none} }

// push appends element i of all.
func push[T any](l *list, all []T, i uint32, of func(*T) *links) {
	*of(&all[i]) = links{next: none, prev: l.tail}
	if l.tail == none {
		l.head = i
	} else {
		of(&all[l.tail]).next = i
	}
	l.tail = i
	l.n++
}

// unlink takes element i out, which is in the list.
func unlink[T any](l *list, all []T, i uint32, of func(*T) *links) {
	k := of(&all[i])
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
	*k = links{none, none}
	l.n--
}
