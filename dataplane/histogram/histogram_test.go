package histogram

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// exact is the bucket of a span: the least i with (ns / 1e9)^4 <= 2^i, in whole numbers.
func exact(ns uint64) int {
	left := new(big.Int).Exp(new(big.Int).SetUint64(ns), big.NewInt(4), nil)
	right := new(big.Int).Exp(big.NewInt(1e9), big.NewInt(4), nil)
	for i := First; i < Last; i++ {
		l, r := left, right
		if i < 0 {
			l = new(big.Int).Lsh(left, uint(-i))
		} else {
			r = new(big.Int).Lsh(right, uint(i))
		}
		if l.Cmp(r) <= 0 {
			return i
		}
	}
	return Last
}

func TestASpanFallsIntoTheNativeBucketOfSchemaTwo(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	spans := []uint64{60, 61, 1e9, 1e9 + 1, 1953125, 1953126, 1 << 62}
	for _, b := range bounds[:Buckets-1] {
		spans = append(spans, b, b+1)
	}
	for range 2000 {
		spans = append(spans, rng.Uint64()>>rng.IntN(58)>>1)
	}
	for _, ns := range spans {
		if ns <= uint64(ZeroMax) {
			continue
		}
		var h Histogram
		h.Observe(time.Duration(ns))
		got := 0
		for i, c := range h.Counts {
			if c == 1 {
				got = First + i
			}
		}
		if want := exact(ns); got != want {
			t.Errorf("%d ns are in bucket %d, want %d", ns, got, want)
		}
		if math.Abs(h.Sum*1e9/float64(ns)-1) > 1e-12 || h.Count() != 1 {
			t.Errorf("%d ns: sum %g s, count %d", ns, h.Sum, h.Count())
		}
	}
}

func TestTheZeroBucketEndsWhereTheFirstOneBegins(t *testing.T) {
	if below := math.Exp2(float64(First-1) / 4); below != ZeroThreshold {
		t.Errorf("the first bucket begins at %g s, the zero bucket ends at %g s", below, ZeroThreshold)
	}
	if ns := ZeroThreshold * 1e9; float64(ZeroMax) > ns || float64(ZeroMax+1) <= ns {
		t.Errorf("ZeroMax is %v, the threshold %g ns", ZeroMax, ns)
	}
	var h Histogram
	h.Observe(ZeroMax)
	h.Observe(0)
	h.Observe(-time.Second)
	if h.Zero != 3 || math.Abs(h.Sum/ZeroMax.Seconds()-1) > 1e-12 {
		t.Errorf("zero bucket %d, sum %g s, want 3 and %v", h.Zero, h.Sum, ZeroMax)
	}
}

func TestAQuantileLiesInItsBucket(t *testing.T) {
	var h Histogram
	for range 90 {
		h.Observe(time.Millisecond)
	}
	h.ObserveN(time.Second, 10)
	if p := h.Quantile(0.5); p < 0.000976 || p > 0.001162 {
		t.Errorf("the median of 90 x 1 ms and 10 x 1 s is %g s", p)
	}
	if p := h.Quantile(0.99); p < 0.84 || p > 1 {
		t.Errorf("its 0.99-quantile is %g s", p)
	}
	if p := new(Histogram).Quantile(0.5); p != 0 {
		t.Errorf("the median of nothing is %g s", p)
	}
}

func TestObserveAllocatesNothing(t *testing.T) {
	var h Histogram
	if n := testing.AllocsPerRun(1000, func() { h.Observe(12345 * time.Microsecond) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkObserve(b *testing.B) {
	var h Histogram
	d := time.Duration(60)
	for b.Loop() {
		h.Observe(d)
		d = d*5/4 + 1
		if d > time.Hour {
			d = 60
		}
	}
}
