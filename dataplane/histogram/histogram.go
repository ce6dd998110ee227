// Package histogram counts spans of time in buckets that are, as they stand, those of a Prometheus native histogram of schema 2:
// bucket i takes what is above 2^((i-1)/4) s and at most 2^(i/4) s.
package histogram

import (
	"math"
	"math/bits"
	"time"
)

const (
	Schema  = 2                // of the native histogram: four buckets to a doubling
	First   = -95              // index of the first bucket
	Last    = 72               // index of the last one: up to 2^18 s, three days; what is longer is counted there, too
	Buckets = Last - First + 1 //
	Words   = Buckets + 2      // of a Histogram in memory
)

// ZeroMax is the longest span that the zero bucket takes, 2^-24 s: about 60 ns.
const ZeroMax = 59 * time.Nanosecond

// ZeroThreshold is the same in seconds, as the native histogram says it.
const ZeroThreshold = 1.0 / (1 << 24)

// Histogram is one distribution. The zero value is empty.
//
// Threads: one writes. Memory: 1.4 KB, none but its own.
type Histogram struct {
	Zero   uint64  // spans of at most ZeroMax, those below 0 too
	Sum    float64 // seconds, or things: whole ns would pass 64 bits within days
	Counts [Buckets]uint64
}

// bounds are the upper ends of the buckets in whole ns: a span of n ns is at most 2^(i/4) s if n is at most its floor.
var bounds = func() (b [Buckets]uint64) {
	for i := range b {
		b[i] = uint64(math.Exp2(float64(First+i)/4) * 1e9)
	}
	b[Buckets-1] = math.MaxUint64
	return b
}()

// starts are the buckets of 2^(k-1) ns: where the search for a span of k bits begins. Five steps at most are left.
var starts = func() (s [65]uint8) {
	at := 0
	for k := 1; k <= 64; k++ {
		for bounds[at] < 1<<(k-1) {
			at++
		}
		s[k] = uint8(at)
	}
	return s
}()

// Observe counts one span.
func (h *Histogram) Observe(d time.Duration) { h.ObserveN(d, 1) }

// ObserveN counts n equal spans.
func (h *Histogram) ObserveN(d time.Duration, n uint64) {
	if d <= ZeroMax {
		h.Zero += n
		h.Sum += float64(max(d, 0)) * float64(n) * 1e-9
		return
	}
	ns := uint64(d)
	i := starts[bits.Len64(ns)]
	for bounds[i] < ns {
		i++
	}
	h.Sum += float64(ns) * float64(n) * 1e-9
	h.Counts[i] += n
}

// ObserveCount counts a number of things as if it were as many seconds: for histograms whose unit is not time.
func (h *Histogram) ObserveCount(things int) {
	h.Observe(time.Duration(min(things, 1<<32)) * time.Second)
}

// Count is how many spans were counted.
func (h *Histogram) Count() uint64 {
	n := h.Zero
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// UpperBound is the upper end of bucket i (First to Last) in seconds.
func UpperBound(i int) float64 { return math.Exp2(float64(i) / 4) }

// Quantile gives the q-quantile in seconds, between the ends of its bucket by the share of it that is needed; 0 of none.
func (h *Histogram) Quantile(q float64) float64 {
	want := q * float64(h.Count())
	have := float64(h.Zero)
	if want <= have || h.Count() == 0 {
		return 0
	}
	for i, c := range h.Counts {
		if c == 0 {
			continue
		}
		if have += float64(c); want <= have {
			return math.Exp2((float64(First+i) - (have-want)/float64(c)) / 4)
		}
	}
	return UpperBound(Last)
}
