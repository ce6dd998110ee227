package metrics

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/histogram"
)

// buckets reads a native histogram as Prometheus does: offsets and differences.
func buckets(h *dto.Histogram) map[int]int64 {
	out := map[int]int64{}
	at, n, d := 0, int64(0), 0
	for _, s := range h.PositiveSpan {
		at += int(s.GetOffset())
		for range s.GetLength() {
			n += h.PositiveDelta[d]
			if n != 0 {
				out[at] = n
			}
			at, d = at+1, d+1
		}
	}
	return out
}

func TestNativeAndClassicBucketsSayTheSame(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var h histogram.Histogram
		for range rng.IntN(400) {
			h.ObserveN(time.Duration(rng.Uint64()>>rng.IntN(63)>>1), 1+rng.Uint64N(1<<rng.IntN(40)))
		}
		v := value{d: &distribution{from: micros, to: hours}, h: h}
		var m dto.Metric
		if err := v.Write(&m); err != nil {
			t.Fatal(err)
		}
		want := map[int]int64{}
		for i, n := range h.Counts {
			if n != 0 {
				want[histogram.First+i] = int64(n)
			}
		}
		got := buckets(m.Histogram)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("native buckets (-want +got):\n%s", diff)
		}
		total := m.Histogram.GetZeroCount()
		for _, n := range got {
			total += uint64(n)
		}
		if total != m.Histogram.GetSampleCount() {
			t.Fatalf("the buckets hold %d, the count is %d", total, m.Histogram.GetSampleCount())
		}
		for _, b := range m.Histogram.Bucket {
			below := m.Histogram.GetZeroCount()
			for i, n := range got {
				if histogram.UpperBound(i) <= b.GetUpperBound() {
					below += uint64(n)
				}
			}
			if below != b.GetCumulativeCount() {
				t.Fatalf("le=%g: the classic bucket has %d, the native ones below %d", b.GetUpperBound(), b.GetCumulativeCount(), below)
			}
		}
	}
}

func TestAnEmptyHistogramIsNativeToo(t *testing.T) {
	v := value{d: &distribution{from: 0, to: 1}}
	var m dto.Metric
	if err := v.Write(&m); err != nil {
		t.Fatal(err)
	}
	if len(m.Histogram.PositiveSpan) != 1 || m.Histogram.GetZeroThreshold() == 0 {
		t.Errorf("%v looks like a classic one", m.Histogram)
	}
}

// An alert compares lateness with half an interval: beyond the last classic bucket a quantile could not tell.
func TestLatenessIsToldApartAtTheLongestLeases(t *testing.T) {
	const most = 24 * 3600 // s
	longest, err := core.ParseConfig(fmt.Appendf(nil, `{"kv_lease_duration":%d}`, most))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := core.ParseConfig(fmt.Appendf(nil, `{"kv_lease_duration":%d}`, most+1)); err == nil {
		t.Errorf("leases may be longer than %d s", most)
	}
	if last := math.Ldexp(1, distributions["beat_late"].to); last <= longest.Interval().Seconds()/2 {
		t.Errorf("the last bucket ends at %g s, half an interval is %g s", last, longest.Interval().Seconds()/2)
	}
}
