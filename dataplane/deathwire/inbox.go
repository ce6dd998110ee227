package deathwire

import "sync/atomic"

// said is what a rank has heard.
type said struct {
	name
	left bool
}

// inboxLen is how much of it may wait for the goroutine that takes it.
const inboxLen = 1024

// inbox is a ring from one goroutine at a time, a step, to one other.
type inbox struct {
	ring       [inboxLen]said
	head, tail atomic.Uint64 // written, taken
	asked      atomic.Bool   // a wake is on its way, and what is put now is looked at behind it
	wake       chan struct{}
	dropped    atomic.Uint64
}

func (b *inbox) init() { b.wake = make(chan struct{}, 1) }

func (b *inbox) put(m said) {
	head := b.head.Load()
	if head-b.tail.Load() == inboxLen { // I2: acquire; pairs with I2 in take
		b.dropped.Add(1)
		return
	}
	b.ring[head%inboxLen] = m
	b.head.Store(head + 1) // I1: release; pairs with I1 in take. The entry is written before head is seen.
	// I3: seq_cst, behind head; pairs with I4 in woken. A send that finds the channel full would order nothing.
	if !b.asked.Swap(true) {
		b.wake <- struct{}{} // there is room: the last one was taken before asked was cleared
	}
}

// woken is said behind each receive from wake, before take.
func (b *inbox) woken() {
	b.asked.Store(false) // I4: seq_cst, before head is looked at; pairs with I3 in put
}

func (b *inbox) take() (said, bool) {
	tail := b.tail.Load()
	if tail == b.head.Load() { // I1: acquire
		return said{}, false
	}
	m := b.ring[tail%inboxLen]
	b.tail.Store(tail + 1) // I2: release. The entry is read before its place is free.
	return m, true
}
