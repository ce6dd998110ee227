package cnixl

import (
	"testing"

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

// Sends alone: 64 at a time, taken in between off the clock.
func BenchmarkSend(b *testing.B) {
	s := newStepper(b, 1)
	b.ReportAllocs()
	for b.Loop() {
		s.send()
		if s.sent-s.seen == 64 {
			b.StopTimer()
			for s.seen < s.sent {
				s.poll()
			}
			b.StartTimer()
		}
	}
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
