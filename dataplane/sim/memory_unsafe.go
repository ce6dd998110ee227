package sim

import (
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/ringbuf"
)

// words gives n bytes of memory, 8-byte aligned.
func words(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n]
}

func ring(capacity int) []byte {
	mem := words(ringbuf.Bytes(uint32(capacity)))
	if err := ringbuf.Format(mem, uint32(capacity)); err != nil {
		panic(err) // capacities are written here
	}
	return mem
}

// memory is that of a context.
func memory(slots, producers, events int, board bool) *record.Memory {
	m := &record.Memory{
		Control: record.AsControl(words(record.CtlLen)), Slots: record.Slots(words(slots * record.SlotLen)),
		Tracks: record.Tracks(words(slots * record.TrkLen)), Events: ring(events),
	}
	if board {
		m.Board = words(record.BoardHeadLen + slots*record.RowLen)
	}
	m.Control.LeaseFree, m.Control.TrackFree, m.Control.WakeFd, m.Control.EventFd = record.None, record.None, -1, -1
	for range producers {
		m.Rings = append(m.Rings, ring(1<<16))
		m.Overflows = append(m.Overflows, ring(1<<16))
	}
	return m
}
