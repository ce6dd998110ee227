package ringbuf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/kvlease/kvlease/ringbuf/internal/ringmodel"
)

func newRing(t testing.TB, capacity uint32) ([]byte, *Producer, *Consumer) {
	t.Helper()
	mem := make([]byte, Bytes(capacity))
	if err := Format(mem, capacity); err != nil {
		t.Fatal(err)
	}
	return mem, attachProducer(t, mem), attachConsumer(t, mem)
}

func attachProducer(t testing.TB, mem []byte) *Producer {
	t.Helper()
	p, err := NewProducer(mem)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func attachConsumer(t testing.TB, mem []byte) *Consumer {
	t.Helper()
	c, err := NewConsumer(mem)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRingAnswersLikeAPlainQueue(t *testing.T) {
	for _, capacity := range []uint32{4096, 8192, 65536} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprintf("capacity %d seed %d", capacity, seed), func(t *testing.T) {
				mem := make([]byte, Bytes(capacity))
				if err := Format(mem, capacity); err != nil {
					t.Fatal(err)
				}
				ringmodel.Run(t, seed, capacity, 10_000,
					func() ringmodel.Producer { return attachProducer(t, mem) },
					func() ringmodel.Consumer { return attachConsumer(t, mem) })
			})
		}
	}
}

func TestGreatestRecordPassesThroughTheSmallestRingFromAnyOffset(t *testing.T) {
	for off := 0; off < CapacityMin; off += 8 {
		_, p, c := newRing(t, CapacityMin)
		for left := off; left > 0; {
			n := min(left, 1024)
			p.Reserve(1, n-recordHeaderBytes)
			left -= n
		}
		p.Publish()
		got := -1
		for try := 0; got < 0 && try < 3; try++ {
			for {
				if _, _, ok := c.Next(); !ok {
					break
				}
			}
			c.Release()
			if rec := p.Reserve(2, PayloadBytesMax); rec != nil {
				p.Publish()
				_, rec, _ := c.Next()
				got = len(rec)
			}
		}
		if got != PayloadBytesMax || c.Corrupt() {
			t.Errorf("from offset %d: %d bytes, corrupt %v, want %d", off, got, c.Corrupt(), PayloadBytesMax)
		}
	}
}

func TestWhatIsUntakenIsWhatWasPublishedAndNotGivenBack(t *testing.T) {
	mem, p, c := newRing(t, CapacityMin)
	want := func(n uint64) {
		t.Helper()
		if got := c.Untaken(); got != n {
			t.Errorf("%d bytes, want %d", got, n)
		}
	}
	p.Reserve(1, 100)
	want(0)
	p.Publish()
	want(recordBytes(100))
	c.Next()
	want(recordBytes(100))
	c.Release()
	want(0)
	binary.LittleEndian.PutUint64(mem[offHead:], 1<<40)
	want(CapacityMin)
}

func TestMemoryThatDoesNotFitIsRefused(t *testing.T) {
	ring := func(change func(mem []byte)) []byte {
		mem := make([]byte, Bytes(4096))
		if err := Format(mem, 4096); err != nil {
			t.Fatal(err)
		}
		change(mem)
		return mem
	}
	for _, tc := range []struct {
		name string
		mem  []byte
		want error
	}{
		{"no memory", nil, ErrMemory},
		{"header only half there", make([]byte, 128), ErrMemory},
		{"one byte short of its capacity", ring(func([]byte) {})[:Bytes(4096)-1], ErrMemory},
		{"never formatted", make([]byte, Bytes(4096)), ErrFormat},
		{"another magic", ring(func(m []byte) { m[0]++ }), ErrFormat},
		{"a later version", ring(func(m []byte) { m[4]++ }), ErrFormat},
		{"capacity no power of two", ring(func(m []byte) { m[8]++ }), ErrFormat},
		{"capacity 0", ring(func(m []byte) { m[9] = 0 }), ErrFormat},
		{"capacity past the memory", ring(func(m []byte) { m[9] <<= 1 }), ErrMemory},
		{"indexes between records", ring(func(m []byte) { m[offHead], m[offTail] = 4, 4 }), ErrFormat},
		{"not aligned", append(make([]byte, 0, 8192), ring(func([]byte) {})...)[1:], ErrMemory},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := NewProducer(tc.mem); !errors.Is(err, tc.want) {
				t.Errorf("producer: %v, want %v", err, tc.want)
			}
			if _, err := NewConsumer(tc.mem); !errors.Is(err, tc.want) {
				t.Errorf("consumer: %v, want %v", err, tc.want)
			}
		})
	}
	for _, capacity := range []uint32{0, 1, 2048, 4097, 1<<32 - 1} {
		if err := Format(make([]byte, 8192), capacity); !errors.Is(err, ErrCapacity) {
			t.Errorf("Format with capacity %d: %v, want %v", capacity, err, ErrCapacity)
		}
	}
	if err := Format(make([]byte, 4096), 4096); !errors.Is(err, ErrMemory) {
		t.Errorf("Format of memory without room for the header: %v, want %v", err, ErrMemory)
	}
}

func TestConsumerOfALyingRingHandsOutNothingMore(t *testing.T) {
	put := func(mem []byte, off int, n, tag uint32) {
		binary.LittleEndian.PutUint64(mem[HeaderBytes+off:], uint64(tag)<<32|uint64(n))
	}
	head := func(mem []byte, v uint64) { binary.LittleEndian.PutUint64(mem[offHead:], v) }
	for _, tc := range []struct {
		name string
		lie  func(mem []byte) // the ring stands at 4,000 of 4,096, one record of 8 bytes given back before
		good int
	}{
		{"head behind what was read", func(m []byte) { head(m, 3992) }, 0},
		{"head far behind", func(m []byte) { head(m, 0) }, 0},
		{"head one capacity and 8 ahead", func(m []byte) { head(m, 4000+4096+8) }, 0},
		{"head at the end of numbers", func(m []byte) { head(m, ^uint64(7)) }, 0},
		{"head between records", func(m []byte) { head(m, 4004) }, 0},
		{"length above the maximum", func(m []byte) { put(m, 4000, PayloadBytesMax+1, 1); head(m, 4000+4096) }, 0},
		{"length of all ones", func(m []byte) { put(m, 4000, ^uint32(0), 1); head(m, 4016) }, 0},
		{"length past the head", func(m []byte) { put(m, 4000, 16, 1); head(m, 4016) }, 0},
		{"length past the end of the ring", func(m []byte) { put(m, 4000, 96, 1); head(m, 4000+512) }, 0},
		{"padding that stops before the end", func(m []byte) { put(m, 4000, 8, TagPad); head(m, 4096) }, 0},
		{"padding past the end", func(m []byte) { put(m, 4000, 96, TagPad); head(m, 4000+512) }, 0},
		{"padding past the head", func(m []byte) { put(m, 4000, 88, TagPad); head(m, 4088) }, 0},
		{"padding at the start", func(m []byte) {
			put(m, 4000, 88, TagPad)
			put(m, 0, PayloadBytesMax, TagPad)
			head(m, 4000+4096)
		}, 0},
		{"second record lies", func(m []byte) { put(m, 4000, 8, 1); put(m, 4016, 1<<20, 1); head(m, 4048) }, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mem, p, c := newRing(t, 4096)
			for range 250 {
				p.Reserve(1, 8)
				p.Publish()
				if _, _, ok := c.Next(); !ok {
					t.Fatal("no record before the lie")
				}
				c.Release()
			}
			tc.lie(mem)
			for i := range tc.good + 3 {
				if _, rec, ok := c.Next(); ok != (i < tc.good) {
					t.Fatalf("Next %d: ok %v (%d bytes), want %v", i, ok, len(rec), i < tc.good)
				}
			}
			if !c.Corrupt() || !c.Empty() {
				t.Errorf("corrupt %v, empty %v, want both", c.Corrupt(), c.Empty())
			}
			c.Release()
			head(mem, c.Position()+16) // even if the ring becomes plausible again
			if _, _, ok := c.Next(); ok {
				t.Error("a corrupt ring handed out a record")
			}
		})
	}
}

func TestProducerOfALyingTailStaysInTheRing(t *testing.T) {
	const guard = 0xA5
	seed := uint64(7)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	mem := make([]byte, Bytes(4096)+4096)
	if err := Format(mem, 4096); err != nil {
		t.Fatal(err)
	}
	behind := mem[Bytes(4096):]
	for i := range behind {
		behind[i] = guard
	}
	p := attachProducer(t, mem)
	refused := 0
	for range 100_000 {
		tail := rng.Uint64()
		if rng.IntN(2) == 0 {
			tail = p.Position() - uint64(rng.IntN(12_288)) + 4096
		}
		atomic.StoreUint64(p.tail, tail)
		if rec := p.Reserve(1, rng.IntN(PayloadBytesMax+1)); rec != nil {
			clear(rec)
		} else {
			refused++
		}
		p.Publish()
	}
	for i, b := range behind {
		if b != guard {
			t.Fatalf("byte %d behind the ring was written", i)
		}
	}
	if refused == 0 || refused == 100_000 {
		t.Errorf("%d of 100,000 refused: the run shows nothing", refused)
	}
}

func TestBatchIsSeenAtOnceOrNotAtAll(t *testing.T) {
	_, p, c := newRing(t, 4096)
	for i := range 3 {
		p.Reserve(uint32(i), 8)
		if !c.Empty() {
			t.Fatal("a reserved record was seen before Publish")
		}
	}
	p.Publish()
	for i := range 3 {
		if tag, _, ok := c.Next(); !ok || tag != uint32(i) {
			t.Fatalf("record %d: tag %d, ok %v", i, tag, ok)
		}
	}
	p.Reserve(9, 8)
	p.Discard()
	p.Publish()
	if tag, _, ok := c.Next(); ok {
		t.Errorf("discarded record %d was seen", tag)
	}
}

func TestFreeIsWhatTheConsumerHasGivenBackAndTellsATailThatLies(t *testing.T) {
	_, p, c := newRing(t, 4096)
	want := func(what string, free uint64) {
		t.Helper()
		if got, ok := p.Free(); got != free || !ok {
			t.Errorf("%s: %d, %v; want %d", what, got, ok, free)
		}
	}
	want("empty", 4096)
	p.Reserve(1, 100)
	want("one reserved", 4096-112)
	p.Publish()
	c.Next()
	want("one taken", 4096-112)
	c.Release()
	want("one given back", 4096)
	for _, tail := range []uint64{p.Position() + 8, ^uint64(8191), p.Position() - 4096 - 8} {
		atomic.StoreUint64(p.tail, tail)
		if free, ok := p.Free(); ok {
			t.Errorf("tail %d at %d: %d bytes, as if that could be", tail, p.Position(), free)
		}
	}
}

func TestTwoGoroutinesPassEveryRecordOnceAndInOrder(t *testing.T) {
	const records = 60_000
	_, p, c := newRing(t, 16_384)
	go func() {
		for i := range uint32(records) {
			for {
				if rec := p.Reserve(i, int(i%200)); rec != nil {
					for j := range rec {
						rec[j] = byte(i)
					}
					break
				}
				p.Publish()
				runtime.Gosched()
			}
			if i%5 == 0 || i == records-1 {
				p.Publish()
			}
		}
	}()
	for i := range uint32(records) {
		tag, rec, ok := c.Next()
		for ; !ok; tag, rec, ok = c.Next() {
			if c.Corrupt() {
				t.Fatalf("corrupt at record %d", i)
			}
			c.Release()
			runtime.Gosched()
		}
		if tag != i || len(rec) != int(i%200) {
			t.Fatalf("record %d: tag %d, %d bytes", i, tag, len(rec))
		}
		for _, b := range rec {
			if b != byte(i) {
				t.Fatalf("record %d holds a byte of another", i)
			}
		}
		if i%3 == 0 {
			c.Release()
		}
	}
}

func TestNoCallAllocates(t *testing.T) {
	_, p, c := newRing(t, 8192)
	if got := testing.AllocsPerRun(10_000, func() {
		for n := range 4 {
			if p.Reserve(1, n*700) == nil {
				break
			}
		}
		p.Publish()
		p.Reserve(1, 64)
		p.Discard()
		for !c.Empty() {
			c.Next()
		}
		c.Release()
	}); got != 0 {
		t.Errorf("%v allocations per run, want 0", got)
	}
	if c.Corrupt() || c.Position() == 0 {
		t.Errorf("corrupt %v, position %d: the run shows nothing", c.Corrupt(), c.Position())
	}
}
