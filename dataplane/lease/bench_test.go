package lease

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// benchID is an id of 64 bytes, as long as a stock one with a prefix and a suffix.
func benchID(buf []byte, i uint64) []byte {
	buf = append(buf[:0], "chatcmpl-0123456789abcdef0123456789abcdef-0123456789-8a"...)
	for len(buf) < 56 {
		buf = append(buf, '-')
	}
	return binary.BigEndian.AppendUint64(buf, i*0x9e3779b97f4a7c15)
}

// benchTable holds n leases with 64-byte ids.
func benchTable(tb testing.TB, n int) *rig {
	tb.Helper()
	r := newRig(tb, n)
	var id []byte
	g := record.Grant{Blocks: 8}
	for i := range n {
		h, _ := r.take(record.Granted)
		id = benchID(id, uint64(i))
		g.Lease, g.TTLNs = h, uint64(time.Hour)
		if o := r.t.Grant(&g, id, r.now); o != Applied {
			tb.Fatalf("grant %d: outcome %d", i, o)
		}
	}
	return r
}

var sizes = []int{1_000, 10_000, 100_000, 1_000_000}

// message is what one heartbeat names: 10,000 entries in random order.
const message = 10_000

// perID reports the time of one entry; an op is one message.
func perID(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/message, "ns/id")
}

func BenchmarkRenewIDs(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			r := benchTable(b, n)
			rng := rand.New(rand.NewPCG(1, 2))
			body := make([]byte, message*64)
			ids := make([][]byte, message)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for i := range ids { // just received, so the body is in the cache and the leases are not
					ids[i] = benchID(body[i*64:], uint64(rng.IntN(n)))
				}
				r.now += 1000
				b.StartTimer()
				for i := 0; i < message; i += batchMax {
					r.t.RenewIDs(ids[i:min(i+batchMax, message)], agentD, r.now, nil)
				}
			}
			perID(b)
			if r.c.UnknownRenew != 0 {
				b.Fatal("an id was not found")
			}
		})
	}
}

func BenchmarkRenewNative(b *testing.B) {
	for _, n := range sizes {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			r := benchTable(b, n)
			for i := range n {
				r.t.Renew(r.entry(record.NewHandle(uint32(i), 0)), engineD, r.now)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			entries := make([]Entry, message)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for i := range entries {
					entries[i] = r.entry(record.NewHandle(uint32(rng.IntN(n)), 0))
				}
				r.now += 1000
				b.StartTimer()
				r.t.RenewEntries(entries, engineD, r.now, nil)
			}
			perID(b)
			if r.c.BadKey != 0 {
				b.Fatal("a key was wrong")
			}
		})
	}
}

// BenchmarkSweepEnds ends 256 leases a step: grant, both looks, the events. Only the second look and the events are timed.
func BenchmarkSweepEnds(b *testing.B) {
	r := newRig(b, 10_000)
	var id []byte
	g := record.Grant{Blocks: 8, TTLNs: uint64(time.Second)}
	i := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for range 256 {
			i++
			g.Lease, _ = r.take(record.Granted)
			id = benchID(id, i)
			r.t.Grant(&g, id, r.now)
		}
		r.now = r.now.Add(time.Second + tick)
		r.t.Sweep(r.now, tick, 0, 0)
		r.now = r.now.Add(60 * time.Millisecond)
		b.StartTimer()
		if n := r.t.Sweep(r.now, tick, 0, 0); n != 256 {
			b.Fatalf("%d ends", n)
		}
		for {
			if _, ok := r.t.NextEnd(); !ok {
				break
			}
			r.t.PopEnd()
		}
	}
}

func BenchmarkSweepNothingDue(b *testing.B) {
	for _, n := range []int{10_000, 1_000_000} {
		b.Run(fmt.Sprintf("leases=%d", n), func(b *testing.B) {
			r := benchTable(b, n)
			r.run(r.now.Add(time.Second))
			b.ReportAllocs()
			for b.Loop() {
				r.now += 1000
				r.t.Sweep(r.now, 1000, 5, 5)
			}
			if r.t.Held() != n {
				b.Fatal("a lease ended")
			}
		})
	}
}

func BenchmarkGrantAndComplete(b *testing.B) {
	r := newRig(b, 1000)
	var id []byte
	g := record.Grant{Blocks: 8}
	i := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		i++
		g.Lease, _ = r.take(record.Granted)
		id = benchID(id, i)
		r.t.Grant(&g, id, r.now)
		r.t.CompleteID(id, []byte("agent"), 1, r.now)
		r.t.NextEnd()
		r.t.PopEnd()
	}
}
