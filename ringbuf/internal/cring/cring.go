// Package cring is the C half of the ring for Go tests, which cannot use cgo themselves. Nothing else imports it.
package cring

// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror -I${SRCDIR}/../../include
// #include "cring.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// Alloc gives zeroed C memory: it outlives single calls, as memory that C keeps a pointer to must.
func Alloc(n int) []byte {
	p := C.cring_alloc(C.size_t(n))
	if p == nil {
		panic(fmt.Sprintf("cring: no %d bytes", n))
	}
	return unsafe.Slice((*byte)(p), n)
}

// Free returns what Alloc gave.
func Free(mem []byte) { C.free(unsafe.Pointer(unsafe.SliceData(mem))) }

// Format is kvl_ring_format.
func Format(mem []byte, capacity uint32) bool {
	return C.kvl_ring_format(unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)), C.uint32_t(capacity)) == 1
}

// Producer is a kvl_ring_producer_t.
type Producer struct{ c C.kvl_ring_producer_t }

// NewProducer attaches to a ring in memory of Alloc.
func NewProducer(mem []byte) (*Producer, bool) {
	p := new(Producer)
	ok := C.kvl_ring_producer_init(&p.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
	return p, ok == 1
}

// Reserve is kvl_ring_reserve.
func (p *Producer) Reserve(tag uint32, n int) []byte {
	at := C.kvl_ring_reserve(&p.c, C.uint32_t(tag), C.uint32_t(n))
	if at == nil {
		return nil
	}
	return unsafe.Slice((*byte)(at), n)
}

// Publish is kvl_ring_publish.
func (p *Producer) Publish() { C.kvl_ring_publish(&p.c) }

// Discard is kvl_ring_discard.
func (p *Producer) Discard() { C.kvl_ring_discard(&p.c) }

// Position is kvl_ring_producer_position.
func (p *Producer) Position() uint64 { return uint64(C.kvl_ring_producer_position(&p.c)) }

// Refused is kvl_ring_refused.
func (p *Producer) Refused() uint64 { return uint64(C.kvl_ring_refused(&p.c)) }

// Produce publishes n records of cring_len(i) bytes with tag i, waiting for room; it is for a goroutine of its own.
func (p *Producer) Produce(n uint32) { C.cring_produce(&p.c, C.uint32_t(n)) }

// Consumer is a kvl_ring_consumer_t.
type Consumer struct{ c C.kvl_ring_consumer_t }

// NewConsumer attaches to a ring in memory of Alloc.
func NewConsumer(mem []byte) (*Consumer, bool) {
	c := new(Consumer)
	ok := C.kvl_ring_consumer_init(&c.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem)))
	return c, ok == 1
}

// Next is kvl_ring_next.
func (c *Consumer) Next() (tag uint32, rec []byte, ok bool) {
	var n C.uint32_t
	var t C.uint32_t
	at := C.kvl_ring_next(&c.c, &t, &n)
	if at == nil {
		return 0, nil, false
	}
	return uint32(t), unsafe.Slice((*byte)(at), n), true
}

// Release is kvl_ring_release.
func (c *Consumer) Release() { C.kvl_ring_release(&c.c) }

// Position is kvl_ring_consumer_position.
func (c *Consumer) Position() uint64 { return uint64(C.kvl_ring_consumer_position(&c.c)) }

// Empty is kvl_ring_empty.
func (c *Consumer) Empty() bool { return C.kvl_ring_empty(&c.c) == 1 }

// Corrupt is kvl_ring_corrupt.
func (c *Consumer) Corrupt() bool { return C.kvl_ring_corrupt(&c.c) == 1 }

// Consume takes n records as Produce writes them, waiting for each, and gives the first that was wrong, or n.
// It is for a goroutine of its own.
func (c *Consumer) Consume(n uint32) uint32 { return uint32(C.cring_consume(&c.c, C.uint32_t(n))) }

// Len is the payload length of Produce's record i; its bytes are all uint8(i).
func Len(i uint32) int { return int(C.cring_len(C.uint32_t(i))) }
