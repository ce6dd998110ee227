// Package timeheap is a queue in order of time, with four children a node: the soonest first, and what is due at once in the
// order in which it was put in.
package timeheap

// Heap of T by times of type A. The zero value is empty.
type Heap[A ~int64, T any] struct {
	items []Item[A, T]
	seq   uint64
}

// Item is an element and its time.
type Item[A ~int64, T any] struct {
	At   A
	Seq  uint64 // in order of Push, from 1
	What T
}

func (a *Item[A, T]) before(b *Item[A, T]) bool { return a.At < b.At || a.At == b.At && a.Seq < b.Seq }

// Len counts the elements.
func (h *Heap[A, T]) Len() int { return len(h.items) }

// Cap is how many elements it has taken memory for.
func (h *Heap[A, T]) Cap() int { return cap(h.items) }

// Top is the soonest. The heap is not empty.
func (h *Heap[A, T]) Top() *Item[A, T] { return &h.items[0] }

// Push adds an element and gives its number.
func (h *Heap[A, T]) Push(at A, what T) uint64 {
	h.seq++
	e := Item[A, T]{at, h.seq, what}
	h.items = append(h.items, e)
	i := len(h.items) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h.items[up].At <= at { // an older one of the same time stays above
			break
		}
		h.items[i] = h.items[up]
		i = up
	}
	h.items[i] = e
	return e.Seq
}

// Pop takes the soonest. The heap is not empty.
func (h *Heap[A, T]) Pop() Item[A, T] {
	first := h.items[0]
	last := len(h.items) - 1
	e := h.items[last]
	h.items[last] = Item[A, T]{}
	h.items = h.items[:last]
	if last == 0 {
		return first
	}
	i := 0
	for {
		least := 4*i + 1
		if least >= last {
			break
		}
		for c, end := least+1, min(least+4, last); c < end; c++ {
			if h.items[c].before(&h.items[least]) {
				least = c
			}
		}
		if !h.items[least].before(&e) {
			break
		}
		h.items[i] = h.items[least]
		i = least
	}
	h.items[i] = e
	return first
}
