package heartbeat

import "github.com/kvlease/kvlease/dataplane/clock"

// dueHeap orders engines by when they need a look. It is a binary heap of indexes; where[i] is the place of engine i, -1 if
// it needs none. Equal times are ordered by index, so that a run is repeatable.
type dueHeap struct {
	heap  []uint32
	where []int32
	at    []clock.Instant
}

func newDueHeap(n int) dueHeap {
	h := dueHeap{heap: make([]uint32, 0, n), where: make([]int32, n), at: make([]clock.Instant, n)}
	for i := range h.where {
		h.where[i] = -1
	}
	return h
}

// set moves i to t; clock.Never takes it out.
func (h *dueHeap) set(i uint32, t clock.Instant) {
	p := h.where[i]
	switch {
	case t == clock.Never:
		if p < 0 {
			return
		}
		last := len(h.heap) - 1
		moved := h.heap[last]
		h.heap = h.heap[:last]
		h.where[i] = -1
		if int(p) < last {
			h.heap[p] = moved
			h.where[moved] = p
			h.up(int(p))
			h.down(int(h.where[moved]))
		}
		return
	case p < 0:
		h.heap = append(h.heap, i)
		p = int32(len(h.heap) - 1)
		h.where[i] = p
	case h.at[i] == t:
		return
	}
	h.at[i] = t
	h.up(int(p))
	h.down(int(h.where[i]))
}

// first is the earliest engine and its time, or Never.
func (h *dueHeap) first() (uint32, clock.Instant) {
	if len(h.heap) == 0 {
		return 0, clock.Never
	}
	return h.heap[0], h.at[h.heap[0]]
}

func (h *dueHeap) less(a, b uint32) bool {
	return h.at[a] < h.at[b] || h.at[a] == h.at[b] && a < b
}

func (h *dueHeap) swap(i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	h.where[h.heap[i]], h.where[h.heap[j]] = int32(i), int32(j)
}

func (h *dueHeap) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !h.less(h.heap[i], h.heap[p]) {
			return
		}
		h.swap(i, p)
		i = p
	}
}

func (h *dueHeap) down(i int) {
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
