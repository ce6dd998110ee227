package capacity

import (
	"math/bits"
	"time"
)

// hist counts spans of time in buckets whose width is at most a 256th of their value, so it needs no memory for each.
type hist struct {
	counts    [64 << histBits]uint64
	n         uint64
	least, up time.Duration
}

const histBits = 8

func histBucket(v uint64) int {
	if v < 1<<histBits {
		return int(v)
	}
	shift := bits.Len64(v) - histBits - 1
	return (shift+1)<<histBits + int(v>>shift) - 1<<histBits
}

// histTop is the largest value of a bucket.
func histTop(b int) uint64 {
	if b < 1<<histBits {
		return uint64(b)
	}
	shift := b>>histBits - 1
	return (uint64(b&(1<<histBits-1))+1<<histBits+1)<<shift - 1
}

func (h *hist) add(d time.Duration) {
	d = max(d, 0)
	h.counts[histBucket(uint64(d))]++
	if h.n == 0 || d < h.least {
		h.least = d
	}
	h.up = max(h.up, d)
	h.n++
}

// quantile gives the value that the share q of all is not above, to within a 256th; 0 of none.
func (h *hist) quantile(q float64) time.Duration {
	left := uint64(q*float64(h.n) + 0.999999)
	if h.n == 0 {
		return 0
	}
	left = min(max(left, 1), h.n)
	for b, c := range h.counts {
		if left <= c {
			return min(time.Duration(histTop(b)), h.up)
		}
		left -= c
	}
	return h.up
}
