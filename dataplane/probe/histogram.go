package probe

import (
	"math/bits"
	"time"

	"github.com/kvlease/kvlease/dataplane/probe/bpf"
)

// Buckets of a histogram: the values 0 to 3, then four between powers of two, the last with all above. bpf/values.h counts in them.
const Buckets = len(bpf.TraceHistogram{}.Buckets)

// Histogram is the spans of a stage, or of several added.
type Histogram struct {
	Count, Sum, Max uint64 // Sum and Max in ns, exact
	Counts          [Buckets]uint64
}

// Add takes in another one.
func (h *Histogram) Add(o *Histogram) {
	h.Count += o.Count
	h.Sum += o.Sum
	h.Max = max(h.Max, o.Max)
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
}

// Mean of all values; 0 without any.
func (h *Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return time.Duration(h.Sum / h.Count)
}

// Quantile is the value that a share q of all does not exceed, from inside its bucket: off by at most a quarter, never above Max. The
// smallest and the largest q give an end of the values' range.
func (h *Histogram) Quantile(q float64) time.Duration {
	var all uint64
	for _, n := range h.Counts { // not Count, which another CPU may just have raised
		all += n
	}
	if all == 0 {
		return 0
	}
	rank, below := q*float64(all), 0.0
	for i, n := range h.Counts {
		if n == 0 {
			continue
		}
		if below+float64(n) >= rank {
			low, high := Lower(i), min(Lower(i+1), h.Max)
			if low >= high {
				return time.Duration(min(low, h.Max))
			}
			return time.Duration(float64(low) + float64(high-low)*max(rank-below, 0)/float64(n))
		}
		below += float64(n)
	}
	return time.Duration(h.Max)
}

// Lower is the smallest value of a bucket.
func Lower(i int) uint64 {
	if i < 4 {
		return uint64(i)
	}
	return (4 + uint64(i)%4) << (i/4 - 1)
}

// Bucket is the one that a value is counted in.
func Bucket(v uint64) int {
	if v < 4 {
		return int(v)
	}
	e := bits.Len64(v) - 1
	return min(4*(e-1)+int(v>>(e-2)&3), Buckets-1)
}
