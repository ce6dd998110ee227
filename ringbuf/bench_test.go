package ringbuf

import (
	"runtime"
	"testing"
)

// BenchmarkPushPop is one record of 64 bytes through the ring, both ends on one goroutine.
func BenchmarkPushPop(b *testing.B) {
	_, p, c := newRing(b, 1<<16)
	b.ReportAllocs()
	var sum uint64
	for b.Loop() {
		rec := p.Reserve(1, 64)
		rec[0] = 1
		p.Publish()
		_, got, _ := c.Next()
		sum += uint64(got[0])
		c.Release()
	}
	if sum == 0 {
		b.Fatal("nothing passed")
	}
}

// BenchmarkPushPopBatch publishes and releases 16 records of 64 bytes at once; ns/op is per batch.
func BenchmarkPushPopBatch(b *testing.B) {
	_, p, c := newRing(b, 1<<16)
	b.ReportAllocs()
	for b.Loop() {
		for range 16 {
			p.Reserve(1, 64)[0] = 1
		}
		p.Publish()
		for range 16 {
			c.Next()
		}
		c.Release()
	}
}

// BenchmarkTwoGoroutines is one record of 64 bytes from one goroutine to another, each published alone.
func BenchmarkTwoGoroutines(b *testing.B) {
	_, p, c := newRing(b, 1<<16)
	b.ReportAllocs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for spins := 0; ; {
			tag, _, ok := c.Next()
			c.Release()
			if tag == 2 {
				return
			}
			if !ok {
				if spins++; spins%1024 == 0 {
					runtime.Gosched()
				}
			}
		}
	}()
	push := func(tag uint32) {
		for spins := 0; ; {
			if rec := p.Reserve(tag, 64); rec != nil {
				rec[0] = 1
				p.Publish()
				return
			}
			if spins++; spins%1024 == 0 {
				runtime.Gosched()
			}
		}
	}
	for b.Loop() {
		push(1)
	}
	push(2)
	<-done
}
