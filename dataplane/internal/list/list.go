// Package list is first-in, first-out lists of the entries of a table, by index, through links that the entries hold: no list
// takes memory, and any entry can leave.
package list

// None ends a list.
const None = ^uint32(0)

// Links of an entry that is in at most one list of a kind. The zero value is in none. An entry that is in lists of several kinds
// has links for each; the functions below are told which.
type Links struct {
	Next, prev uint32
	in         bool
}

// In reports whether the entry is in a list of this kind.
func (k *Links) In() bool { return k.in }

// List of entries; New makes an empty one.
type List struct {
	Head, tail uint32
	N          int
}

// New is an empty list.
func New() List { return List{Head: None, tail: None} }

// Push puts entry i of all at the end, unless it is in a list of its kind.
func Push[T any](l *List, all []T, i uint32, of func(*T) *Links) {
	k := of(&all[i])
	if k.in {
		return
	}
	*k = Links{Next: None, prev: l.tail, in: true}
	if l.tail == None {
		l.Head = i
	} else {
		of(&all[l.tail]).Next = i
	}
	l.tail = i
	l.N++
}

// Drop takes entry i of all out, if it is in.
func Drop[T any](l *List, all []T, i uint32, of func(*T) *Links) {
	k := of(&all[i])
	if !k.in {
		return
	}
	if k.prev == None {
		l.Head = k.Next
	} else {
		of(&all[k.prev]).Next = k.Next
	}
	if k.Next == None {
		l.tail = k.prev
	} else {
		of(&all[k.Next]).prev = k.prev
	}
	*k = Links{}
	l.N--
}
