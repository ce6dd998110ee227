package probe

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/trace"
)

func TestEveryValueLiesInItsBucket(t *testing.T) {
	for i := range Buckets {
		if got := Bucket(Lower(i)); got != i {
			t.Errorf("the least value of bucket %d is in %d", i, got)
		}
		if got := Bucket(Lower(i+1) - 1); got != i {
			t.Errorf("the greatest value of bucket %d is in %d", i, got)
		}
	}
	if Bucket(1<<63) != Buckets-1 {
		t.Error("a huge value is not in the last bucket")
	}
}

// The kernel's half counts in the same buckets: values go through it.
func TestTheKernelCountsInTheSameBuckets(t *testing.T) {
	p, fs := open(t, Config{}), newFiles(t)
	d := startHost(t)
	attach(t, p, fs, d.pid)
	var want Histogram
	values := []uint64{0, 1<<41 - 1, 1 << 41, 1<<62 + 1}
	for i := range 44 {
		values = append(values, Lower(4*i), Lower(4*i+1)-1, Lower(4*i+3))
	}
	for _, v := range values {
		d.fire(trace.StallGap, 1, v, 0, 0)
		want.Count++
		want.Sum += v
		want.Max = max(want.Max, v)
		want.Counts[Bucket(v)]++
	}
	if got := read(t, p).series(Stall, uint64(d.pid)<<32|1, 0).Histogram; got != want {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

func TestQuantilesAreInsideTheirBucket(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 100 {
		var h Histogram
		values := make([]uint64, 1+rnd.IntN(300))
		for i := range values {
			values[i] = rnd.Uint64N(1 << (1 + rnd.IntN(40)))
			h.Add(&Histogram{Count: 1, Sum: values[i], Max: values[i]})
			h.Counts[Bucket(values[i])]++
		}
		slices.Sort(values)
		for _, q := range []float64{0, 0.5, 0.9, 0.99, 1} {
			exact := values[max(0, int(q*float64(len(values))+0.999999)-1)]
			got, b := uint64(h.Quantile(q)), Bucket(exact)
			if got < Lower(b) || got > Lower(b+1) || got > h.Max {
				t.Errorf("quantile %v of %d values is %d, exactly %d", q, len(values), got, exact)
			}
		}
	}
	var none Histogram
	if none.Quantile(0.5) != 0 || none.Mean() != 0 {
		t.Error("nothing has a quantile")
	}
}

func TestHistogramsFitTheirMemoryOnManyCPUs(t *testing.T) {
	for cpus, want := range map[int]uint32{1: 4096, 2: 4096, 128: 804, 512: 208, 8192: 208} {
		if got := histogramsMax(cpus); got != want {
			t.Errorf("%d CPUs: %d histograms, wanted %d", cpus, got, want)
		}
	}
}
