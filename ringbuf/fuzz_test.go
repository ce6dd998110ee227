package ringbuf

import (
	"encoding/binary"
	"testing"
)

// FuzzConsumer reads a ring whose every byte but the format comes from somewhere else, and changes the head midway.
func FuzzConsumer(f *testing.F) {
	f.Add(uint64(0), uint64(0), uint64(0), []byte{})
	f.Add(uint64(16), uint64(0), uint64(32), []byte("\x08\x00\x00\x00\x01\x00\x00\x00payload!\x04\x00\x00\x00\x02\x00\x00\x00word"))
	f.Add(uint64(4096+16), uint64(4088), uint64(0), []byte("\x08\x00\x00\x00\x01\x00\x00\x00"))
	f.Add(^uint64(7), ^uint64(4095), uint64(8), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add(^uint64(7), ^uint64(4007), uint64(178), []byte{}) // the ring's end is past the end of numbers
	f.Fuzz(func(t *testing.T, head, tail, later uint64, records []byte) {
		const capacity = 4096
		mem := make([]byte, Bytes(capacity))
		if err := Format(mem, capacity); err != nil {
			t.Fatal(err)
		}
		for i := 0; len(records) > 0 && i < capacity; i += len(records) {
			copy(mem[HeaderBytes+i:], records)
		}
		binary.LittleEndian.PutUint64(mem[offHead:], head)
		binary.LittleEndian.PutUint64(mem[offTail:], tail)
		c, err := NewConsumer(mem)
		if err != nil {
			if tail%8 == 0 {
				t.Fatal(err)
			}
			return
		}
		for pass := range 2 {
			start := c.Position()
			for n := 0; ; n++ {
				before := c.Position()
				_, rec, ok := c.Next()
				if !ok {
					break
				}
				if c.Position()-before < uint64(len(rec))+recordHeaderBytes || len(rec) > PayloadBytesMax {
					t.Fatalf("record of %d bytes moved the position by %d", len(rec), c.Position()-before)
				}
				if n > capacity/recordHeaderBytes {
					t.Fatal("more records than the ring can hold")
				}
				for i := range rec { // inside the memory, or this faults or trips checkptr
					rec[i]++
				}
			}
			if got := c.Position() - start; got > capacity {
				t.Fatalf("pass %d handed out %d bytes of a ring of %d", pass, got, capacity)
			}
			c.Release()
			binary.LittleEndian.PutUint64(mem[offHead:], later)
		}
		if !c.Corrupt() && !c.Empty() {
			t.Fatal("neither corrupt nor empty after Next found nothing")
		}
	})
}
