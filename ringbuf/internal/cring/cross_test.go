package cring

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/ringbuf"
	"github.com/kvlease/kvlease/ringbuf/internal/ringmodel"
)

// pairing is one choice of language per end.
type pairing struct {
	name     string
	format   func(t *testing.T, mem []byte, capacity uint32)
	producer func(t testing.TB, mem []byte) ringmodel.Producer
	consumer func(t testing.TB, mem []byte) ringmodel.Consumer
}

var pairings = []pairing{
	{"Go to C", formatGo, producerGo, consumerC},
	{"C to Go", formatC, producerC, consumerGo},
	{"C to C", formatGo, producerC, consumerC},
}

func formatGo(t *testing.T, mem []byte, capacity uint32) {
	if err := ringbuf.Format(mem, capacity); err != nil {
		t.Fatal(err)
	}
}

func formatC(t *testing.T, mem []byte, capacity uint32) {
	if !Format(mem, capacity) {
		t.Fatal("kvl_ring_format refused")
	}
}

func producerGo(t testing.TB, mem []byte) ringmodel.Producer {
	p, err := ringbuf.NewProducer(mem)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func consumerGo(t testing.TB, mem []byte) ringmodel.Consumer {
	c, err := ringbuf.NewConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func producerC(t testing.TB, mem []byte) ringmodel.Producer {
	p, ok := NewProducer(mem)
	if !ok {
		t.Fatal("kvl_ring_producer_init refused")
	}
	return p
}

func consumerC(t testing.TB, mem []byte) ringmodel.Consumer {
	c, ok := NewConsumer(mem)
	if !ok {
		t.Fatal("kvl_ring_consumer_init refused")
	}
	return c
}

func alloc(t testing.TB, capacity uint32) []byte {
	mem := Alloc(ringbuf.Bytes(capacity))
	t.Cleanup(func() { Free(mem) })
	return mem
}

func TestBothLanguagesAnswerLikeAPlainQueue(t *testing.T) {
	for _, pair := range pairings {
		for _, capacity := range []uint32{4096, 65536} {
			for seed := range uint64(4) {
				t.Run(fmt.Sprintf("%s capacity %d seed %d", pair.name, capacity, seed), func(t *testing.T) {
					mem := alloc(t, capacity)
					pair.format(t, mem, capacity)
					ringmodel.Run(t, seed, capacity, 10_000,
						func() ringmodel.Producer { return pair.producer(t, mem) },
						func() ringmodel.Consumer { return pair.consumer(t, mem) })
				})
			}
		}
	}
}

// TestBothLanguagesWriteTheSameBytes: wraps, padding, a discarded batch and refusals leave the same memory.
func TestBothLanguagesWriteTheSameBytes(t *testing.T) {
	write := func(p ringmodel.Producer, c ringmodel.Consumer) {
		for i := range 5_000 {
			n := i * 37 % 900
			if rec := p.Reserve(uint32(i), n); rec != nil {
				for j := range rec {
					rec[j] = byte(i + j)
				}
			}
			switch {
			case i%11 == 3:
				p.Discard()
			case i%2 == 0:
				p.Publish()
			}
			if i%4 == 0 {
				for _, _, ok := c.Next(); ok; _, _, ok = c.Next() {
				}
				c.Release()
			}
		}
		p.Publish()
	}
	const capacity = 4096
	a, b := alloc(t, capacity), alloc(t, capacity)
	formatGo(t, a, capacity)
	formatC(t, b, capacity)
	write(producerGo(t, a), consumerGo(t, a))
	write(producerC(t, b), consumerC(t, b))
	if diff := cmp.Diff(a[:ringbuf.HeaderBytes], b[:ringbuf.HeaderBytes]); diff != "" {
		t.Errorf("header (-Go +C):\n%s", diff)
	}
	if !bytes.Equal(a, b) {
		t.Error("the records differ")
	}
	if binary.LittleEndian.Uint64(a[72:]) == 0 {
		t.Error("no refusal: the run shows nothing of a full ring")
	}
}

func TestGoProducerAndCConsumerOnTwoThreads(t *testing.T) {
	const records = 20_000
	mem := alloc(t, 16_384)
	formatGo(t, mem, 16_384)
	p := producerGo(t, mem)
	c, ok := NewConsumer(mem)
	if !ok {
		t.Fatal("kvl_ring_consumer_init refused")
	}
	got := make(chan uint32)
	go func() { got <- c.Consume(records) }()
	for i := range uint32(records) {
		rec := p.Reserve(i, Len(i))
		for ; rec == nil; rec = p.Reserve(i, Len(i)) {
			p.Publish()
			runtime.Gosched()
		}
		for j := range rec {
			rec[j] = byte(i)
		}
		if i%7 == 0 || i == records-1 {
			p.Publish()
		}
	}
	if n := <-got; n != records {
		t.Errorf("record %d was wrong in C", n)
	}
}

func TestCProducerAndGoConsumerOnTwoThreads(t *testing.T) {
	const records = 20_000
	mem := alloc(t, 16_384)
	formatGo(t, mem, 16_384)
	p, ok := NewProducer(mem)
	if !ok {
		t.Fatal("kvl_ring_producer_init refused")
	}
	c := consumerGo(t, mem)
	done := make(chan struct{})
	go func() { p.Produce(records); close(done) }()
	for i := range uint32(records) {
		tag, rec, ok := c.Next()
		for ; !ok; tag, rec, ok = c.Next() {
			if c.Corrupt() {
				t.Fatalf("corrupt at record %d", i)
			}
			c.Release()
			runtime.Gosched()
		}
		if tag != i || len(rec) != Len(i) {
			t.Fatalf("record %d: tag %d, %d bytes, want %d bytes", i, tag, len(rec), Len(i))
		}
		if bytes.Count(rec, []byte{byte(i)}) != len(rec) { // a loop would cost the race detector seconds
			t.Fatalf("record %d holds a byte of another", i)
		}
		if i%5 == 0 {
			c.Release()
		}
	}
	c.Release()
	<-done
}

// FuzzConsumersAgree: whatever the memory says, both halves hand out the same records and call the same rings corrupt.
func FuzzConsumersAgree(f *testing.F) {
	f.Add(uint64(32), uint64(0), uint64(64), []byte("\x08\x00\x00\x00\x01\x00\x00\x00payload!\x04\x00\x00\x00\x02\x00\x00\x00word"))
	f.Add(uint64(4096+16), uint64(4088), uint64(0), []byte("\x08\x00\x00\x00\x01\x00\x00\x00"))
	f.Add(uint64(8192), uint64(8176), uint64(8200), []byte("\x08\x00\x00\x00\xff\xff\xff\xff"))
	f.Add(^uint64(7), ^uint64(4095), uint64(8), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add(^uint64(7), ^uint64(4007), uint64(178), []byte{})
	const capacity = 4096
	mem := alloc(f, capacity)
	f.Fuzz(func(t *testing.T, head, tail, later uint64, records []byte) {
		clear(mem)
		formatGo(t, mem, capacity)
		for i := 0; len(records) > 0 && i < capacity; i += len(records) {
			copy(mem[ringbuf.HeaderBytes+i:], records)
		}
		binary.LittleEndian.PutUint64(mem[64:], head)
		binary.LittleEndian.PutUint64(mem[128:], tail)
		goEnd, err := ringbuf.NewConsumer(mem)
		cEnd, ok := NewConsumer(mem)
		if (err == nil) != ok {
			t.Fatalf("attach: Go %v, C %v", err, ok)
		}
		if !ok {
			return
		}
		for pass := range 2 {
			for {
				goTag, goRec, goOK := goEnd.Next()
				cTag, cRec, cOK := cEnd.Next()
				if goTag != cTag || goOK != cOK || len(goRec) != len(cRec) || !bytes.Equal(goRec, cRec) {
					t.Fatalf("pass %d: Go %v %#x %d bytes, C %v %#x %d bytes", pass, goOK, goTag, len(goRec), cOK, cTag, len(cRec))
				}
				if !goOK {
					break
				}
			}
			if goEnd.Position() != cEnd.Position() || goEnd.Corrupt() != cEnd.Corrupt() || goEnd.Empty() != cEnd.Empty() {
				t.Fatalf("pass %d: Go at %d corrupt %v empty %v, C at %d corrupt %v empty %v", pass, goEnd.Position(),
					goEnd.Corrupt(), goEnd.Empty(), cEnd.Position(), cEnd.Corrupt(), cEnd.Empty())
			}
			goEnd.Release()
			cEnd.Release()
			binary.LittleEndian.PutUint64(mem[64:], later)
		}
	})
}
