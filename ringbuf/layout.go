package ringbuf

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

const (
	// Magic is "kvlR" in memory.
	Magic = 0x526c766b
	// Version of the memory's layout.
	Version = 1

	// HeaderBytes stand before the records.
	HeaderBytes = 256
	// CapacityMin is the smallest capacity: one record of the greatest size.
	CapacityMin = 4096
	// CapacityMax is the greatest power of two that the header can hold.
	CapacityMax = 1 << 31

	// RecordBytesMax bounds a whole record, its header and its fill.
	RecordBytesMax = 4096
	// PayloadBytesMax is what remains for the payload.
	PayloadBytesMax = RecordBytesMax - recordHeaderBytes
	// TagPad marks the padding record at the end of the ring; no other record may carry it.
	TagPad = 0xFFFFFFFF

	recordHeaderBytes = 8
)

const (
	offMagic    = 0
	offVersion  = 4
	offCapacity = 8
	offHead     = 64
	offRefused  = 72
	offTail     = 128
)

var (
	// ErrMemory: the memory is too short or not 8-byte aligned.
	ErrMemory = errors.New("ringbuf: memory does not fit")
	// ErrFormat: the memory holds no ring of this version, or one whose own words contradict each other.
	ErrFormat = errors.New("ringbuf: not a ring")
	// ErrCapacity: not a power of two between CapacityMin and CapacityMax.
	ErrCapacity = errors.New("ringbuf: bad capacity")
)

// Bytes is how much memory a ring of this capacity takes.
func Bytes(capacity uint32) int { return HeaderBytes + int(capacity) }

// Format makes an empty ring in mem. Nobody may be attached.
func Format(mem []byte, capacity uint32) error {
	if !capacityOK(capacity) {
		return fmt.Errorf("%w: %d", ErrCapacity, capacity)
	}
	if err := checkMemory(mem, capacity); err != nil {
		return err
	}
	clear(mem[:HeaderBytes])
	m := viewOf(mem)
	*m.word32(offCapacity) = capacity
	*m.word32(offVersion) = Version
	*m.word32(offMagic) = Magic
	return nil
}

// attach checks the header once and gives the capacity, which no end reads from the shared memory again.
func attach(mem []byte) (view, uint64, error) {
	if len(mem) < HeaderBytes {
		return view{}, 0, fmt.Errorf("%w: %d bytes", ErrMemory, len(mem))
	}
	m := viewOf(mem)
	if !m.aligned() {
		return view{}, 0, fmt.Errorf("%w: not 8-byte aligned", ErrMemory)
	}
	magic, version, capacity := *m.word32(offMagic), *m.word32(offVersion), *m.word32(offCapacity)
	if magic != Magic || version != Version || !capacityOK(capacity) {
		return view{}, 0, fmt.Errorf("%w: magic %#x, version %d, capacity %d", ErrFormat, magic, version, capacity)
	}
	if err := checkMemory(mem, capacity); err != nil {
		return view{}, 0, err
	}
	return m, uint64(capacity), nil
}

// startAt reads an end's own index, from which it goes on.
func startAt(word *uint64, name string) (uint64, error) {
	at := atomic.LoadUint64(word)
	if at%8 != 0 {
		return 0, fmt.Errorf("%w: %s %d is no multiple of 8", ErrFormat, name, at)
	}
	return at, nil
}

func capacityOK(capacity uint32) bool {
	return capacity >= CapacityMin && bits.OnesCount32(capacity) == 1
}

func checkMemory(mem []byte, capacity uint32) error {
	if len(mem) < Bytes(capacity) {
		return fmt.Errorf("%w: %d bytes, capacity %d takes %d", ErrMemory, len(mem), capacity, Bytes(capacity))
	}
	if !viewOf(mem).aligned() {
		return fmt.Errorf("%w: not 8-byte aligned", ErrMemory)
	}
	return nil
}

// lapEnd is the first position after pos at which the ring starts again.
func lapEnd(pos, mask uint64) uint64 { return (pos | mask) + 1 }
