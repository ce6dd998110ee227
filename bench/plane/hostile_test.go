package plane

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/wire"
)

// The steps that one message of 4 MiB from nobody that P knows takes, among 10,000 leases: the longest that is read, filled with what makes a
// reader of heartbeats work most. An op is one message; none needs more steps than one of commas. The worst step is in the thread's processor time, since
// one of a hundred steps is always interrupted where others work.
func BenchmarkHostile4MiB(b *testing.B) {
	for _, tc := range []struct{ name, piece string }{
		{"commas", ","},
		{"ids of one byte", "x,"}, // each is looked up, and each run of neighbours as one id with commas
		{"ids of 50 bytes", requestID(1<<30) + ","},
		{"one id", "x"},
	} {
		b.Run(tc.name, func(b *testing.B) {
			p, send := stockReader(b, 10_000)
			msg := append([]byte("HB:"), bytes.Repeat([]byte(tc.piece), wire.ParseMax/len(tc.piece))...)[:wire.ParseMax]
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			worst := time.Duration(0)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				send(msg)
				b.StartTimer()
				for range wire.ParseMax>>15 + 2 { // 32,768 elements a step
					p.now = p.now.Add(time.Millisecond)
					start := threadTime(b)
					must(b, p.core.Step())
					worst = max(worst, threadTime(b)-start)
				}
			}
			b.ReportMetric(float64(worst), "ns/step-worst")
			applied(b, p, 0)
			if held := p.core.Held(); held != 10_000 {
				b.Fatalf("%d leases held", held)
			}
		})
	}
}

// threadTime is the processor time of the calling thread.
func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	must(b, unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t))
	return time.Duration(t.Nano())
}
