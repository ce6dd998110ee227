package capacity

// heap is a queue in order of time; what is due at once comes in the order in which it was put in.
type heap[T any] struct {
	items []timed[T]
	seq   uint64
}

type timed[T any] struct {
	at   int64
	seq  uint64
	what T
}

func (a *timed[T]) before(b *timed[T]) bool { return a.at < b.at || a.at == b.at && a.seq < b.seq }

func (h *heap[T]) push(at int64, what T) {
	h.seq++
	e := timed[T]{at, h.seq, what}
	h.items = append(h.items, e)
	i := len(h.items) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h.items[up].at <= at {
			break
		}
		h.items[i] = h.items[up]
		i = up
	}
	h.items[i] = e
}

func (h *heap[T]) top() (timed[T], bool) {
	if len(h.items) == 0 {
		return timed[T]{}, false
	}
	return h.items[0], true
}

// pop takes the first. The heap is not empty.
func (h *heap[T]) pop() timed[T] {
	first := h.items[0]
	last := len(h.items) - 1
	e := h.items[last]
	h.items[last] = timed[T]{}
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

// wakes are the times at which engines step next, one each.
type wakes struct {
	order []int32 // heap of engines
	where []int32 // place of an engine in it, -1: none
	at    []int64
}

func newWakes(n int) *wakes {
	w := &wakes{where: make([]int32, n), at: make([]int64, n)}
	for i := range w.where {
		w.where[i] = -1
	}
	return w
}

func (w *wakes) less(a, b int32) bool { return w.at[a] < w.at[b] || w.at[a] == w.at[b] && a < b }

// first gives the engine that steps next. ok is false if none does.
func (w *wakes) first() (engine int32, at int64, ok bool) {
	if len(w.order) == 0 {
		return 0, 0, false
	}
	return w.order[0], w.at[w.order[0]], true
}

// set puts an engine at a time, whatever it stood at.
func (w *wakes) set(e int32, at int64) {
	w.at[e] = at
	i := w.where[e]
	if i < 0 {
		i = int32(len(w.order))
		w.order = append(w.order, e)
		w.where[e] = i
	}
	w.down(w.up(i))
}

// sooner is set if the engine stands at no time or at a later one.
func (w *wakes) sooner(e int32, at int64) {
	if w.where[e] < 0 || at < w.at[e] {
		w.set(e, at)
	}
}

func (w *wakes) drop(e int32) {
	i := w.where[e]
	if i < 0 {
		return
	}
	last := int32(len(w.order) - 1)
	w.swap(i, last)
	w.order = w.order[:last]
	w.where[e] = -1
	if i < last {
		w.down(w.up(i))
	}
}

func (w *wakes) up(i int32) int32 {
	for i > 0 {
		up := (i - 1) / 2
		if !w.less(w.order[i], w.order[up]) {
			break
		}
		w.swap(i, up)
		i = up
	}
	return i
}

func (w *wakes) down(i int32) {
	for {
		c := 2*i + 1
		if int(c) >= len(w.order) {
			return
		}
		if int(c)+1 < len(w.order) && w.less(w.order[c+1], w.order[c]) {
			c++
		}
		if !w.less(w.order[c], w.order[i]) {
			return
		}
		w.swap(i, c)
		i = c
	}
}

func (w *wakes) swap(i, k int32) {
	w.order[i], w.order[k] = w.order[k], w.order[i]
	w.where[w.order[i]], w.where[w.order[k]] = i, k
}
