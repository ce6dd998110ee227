// Package due orders the entries of a table, by index, by when they need a look.
package due

import "github.com/kvlease/kvlease/dataplane/clock"

// Heap is a binary heap of indexes; where[i] is the place of entry i + 1, 0 if it needs no look. Equal times are ordered by index,
// so that a run is repeatable. Memory: all from New, which touches none of it.
type Heap struct {
	heap  []uint32
	where []int32
	at    []clock.Instant
}

// New is a heap for entries 0 to n-1, none of which needs a look.
func New(n int) Heap {
	return Heap{heap: make([]uint32, 0, n), where: make([]int32, n), at: make([]clock.Instant, n)}
}

// Set moves i to t; clock.Never takes it out.
func (h *Heap) Set(i uint32, t clock.Instant) {
	p := h.where[i] - 1
	switch {
	case t == clock.Never:
		if p < 0 {
			return
		}
		last := len(h.heap) - 1
		moved := h.heap[last]
		h.heap = h.heap[:last]
		h.where[i] = 0
		if int(p) < last {
			h.heap[p] = moved
			h.where[moved] = p + 1
			h.up(int(p))
			h.down(int(h.where[moved]) - 1)
		}
		return
	case p < 0:
		h.heap = append(h.heap, i)
		p = int32(len(h.heap) - 1)
		h.where[i] = p + 1
	case h.at[i] == t:
		return
	}
	h.at[i] = t
	h.up(int(p))
	h.down(int(h.where[i]) - 1)
}

// At is when i needs a look, or Never.
func (h *Heap) At(i uint32) clock.Instant {
	if h.where[i] == 0 {
		return clock.Never
	}
	return h.at[i]
}

// First is the earliest entry and its time, or Never.
func (h *Heap) First() (uint32, clock.Instant) {
	if len(h.heap) == 0 {
		return 0, clock.Never
	}
	return h.heap[0], h.at[h.heap[0]]
}

func (h *Heap) less(a, b uint32) bool {
	return h.at[a] < h.at[b] || h.at[a] == h.at[b] && a < b
}

func (h *Heap) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.where[h.heap[i]], h.where[h.heap[j]] = int32(i+1), int32(j+1)
}

func (h *Heap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(h.heap[i], h.heap[p]) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *Heap) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(h.heap) {
			return
		}
		if c+1 < len(h.heap) && h.less(h.heap[c+1], h.heap[c]) {
			c++
		}
		if !h.less(h.heap[c], h.heap[i]) {
			return
		}
		h.swap(i, c)
		i = c
	}
}
