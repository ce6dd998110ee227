package simnet

import "github.com/kvlease/kvlease/dataplane/clock"

const (
	evMessage uint8 = iota // a notification arrives
	evRead                 // a read goes on
	evConn                 // a connection that got nothing through is lost
)

type event struct {
	at    clock.Instant
	seq   uint64 // in order of making: what is due at once happens in this order
	index int32
	kind  uint8
}

// events is a heap with four children a node: the soonest first.
type events struct {
	items []event
	seq   uint64
}

// push adds an event and gives its number, by which its subject knows whether it still counts.
func (h *events) push(at clock.Instant, kind uint8, index int32) uint64 {
	h.seq++
	e := event{at, h.seq, index, kind}
	h.items = append(h.items, e)
	i := len(h.items) - 1
	for i > 0 {
		up := (i - 1) / 4
		if h.items[up].at <= at { // an older one of the same time stays above
			break
		}
		h.items[i] = h.items[up]
		i = up
	}
	h.items[i] = e
	return e.seq
}

// pop takes the soonest. The heap is not empty.
func (h *events) pop() event {
	top := h.items[0]
	last := len(h.items) - 1
	e := h.items[last]
	h.items = h.items[:last]
	if last == 0 {
		return top
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
	return top
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }
