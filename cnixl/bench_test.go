package cnixl

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// What one crossing costs, over the real NIXL with both agents in this process. README.md has the figures.

func BenchmarkPollThatFindsNothing(b *testing.B) {
	s := newStepper(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.poll()
	}
}

func BenchmarkSendUntilItArrives(b *testing.B) {
	s := newStepper(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		for s.send(); s.seen < s.sent; {
			s.poll()
		}
	}
}

// 64 sends in a row; the metric leaves out the polls that take them away afterwards.
func BenchmarkSend(b *testing.B) {
	s := newStepper(b, 1)
	var took time.Duration
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for range 64 {
			s.send()
		}
		took += time.Since(start)
		for s.seen < s.sent {
			s.poll()
		}
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N)/64, "ns/send")
}

func BenchmarkReadOf8Bytes(b *testing.B) {
	s := newStepper(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.read()
	}
}

func BenchmarkReadOf4096Descriptors(b *testing.B) {
	s := newStepper(b, 4096)
	b.ReportAllocs()
	for b.Loop() {
		s.read()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/4096, "ns/desc")
}

// The crossing alone: the reads have ended.
func BenchmarkPollReadsOf16(b *testing.B) {
	s := newStepper(b, 1)
	var xs []transport.Xfer
	for range 16 {
		x, err := s.a.PostRead(s.spec)
		if err != nil {
			b.Fatal(err)
		}
		xs = append(xs, x)
	}
	out := make([]transport.Status, len(xs))
	for range 100_000 {
		s.a.PollReads(xs, out, 0)
		s.poll()
	}
	b.ReportAllocs()
	for b.Loop() {
		s.a.PollReads(xs, out, 0)
	}
}
