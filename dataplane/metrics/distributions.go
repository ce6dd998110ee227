package metrics

import (
	"math"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/kvlease/kvlease/dataplane/histogram"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// distribution is a histogram of a page as a metric. Its native buckets are all that the page has; classic ones are a part of their
// bounds, powers of two, so that both say the same.
type distribution struct {
	name     string // without kvlease_
	of       contexts
	help     string
	from, to int // classic buckets: the exponents of the first and the last bound
}

// distributions by their names on pages.
var distributions = map[string]*distribution{}

func init() {
	for i := range distributionTable {
		distributions[distributionTable[i].page] = &distributionTable[i].distribution
		distributions[distributionTable[i].name] = &distributionTable[i].distribution
	}
}

// value is one histogram with the labels of its context.
type value struct {
	desc  *prometheus.Desc
	pairs []*dto.LabelPair
	d     *distribution
	h     histogram.Histogram
}

func (e *emitter) histogram(h *watch.Histogram) {
	d := distributions[h.Name]
	if d == nil || !d.of.has(e.snap.Role) {
		return
	}
	desc := descOf(d.name, e.labels())
	e.out <- &value{desc: desc, pairs: prometheus.MakeLabelPairs(desc, e.base), d: d, h: h.Histogram}
}

// Desc is that of the metric.
func (v *value) Desc() *prometheus.Desc { return v.desc }

// Write fills the native histogram, and the classic one for whoever does not know that.
func (v *value) Write(out *dto.Metric) error {
	out.Label = v.pairs
	h := &dto.Histogram{
		SampleCount:   proto.Uint64(v.h.Count()),
		SampleSum:     proto.Float64(v.h.Sum),
		Schema:        proto.Int32(histogram.Schema),
		ZeroThreshold: proto.Float64(histogram.ZeroThreshold),
		ZeroCount:     proto.Uint64(v.h.Zero),
	}
	h.PositiveSpan, h.PositiveDelta = spans(&v.h)
	h.Bucket = classic(&v.h, v.d.from, v.d.to)
	out.Histogram = h
	return nil
}

// gapMax is how many empty buckets cost less as entries than a new span does.
const gapMax = 2

// spans writes the buckets as differences, each to the one before, in runs that begin after an offset.
func spans(h *histogram.Histogram) (list []*dto.BucketSpan, deltas []int64) {
	var last int64
	end := 0 // index behind the last run
	put := func(n int64) {
		*list[len(list)-1].Length++
		deltas = append(deltas, n-last)
		last = n
	}
	for i, n := range h.Counts {
		if n == 0 {
			continue
		}
		at := histogram.First + i
		if len(list) == 0 || at-end > gapMax {
			offset := int32(at)
			if len(list) > 0 {
				offset = int32(at - end)
			}
			list = append(list, &dto.BucketSpan{Offset: proto.Int32(offset), Length: proto.Uint32(0)})
		} else {
			for ; end < at; end++ {
				put(0)
			}
		}
		put(int64(n))
		end = at + 1
	}
	if len(list) == 0 { // else it would look like a classic one to some
		list = []*dto.BucketSpan{{Offset: proto.Int32(0), Length: proto.Uint32(0)}}
	}
	return list, deltas
}

// perOctave is how many native buckets lie between two powers of two.
const perOctave = 1 << histogram.Schema

// classic gives the cumulative buckets at 2^from to 2^to.
func classic(h *histogram.Histogram, from, to int) []*dto.Bucket {
	list := make([]*dto.Bucket, 0, to-from+2)
	sum, at := h.Zero, 0
	for exp := from; exp <= to; exp++ {
		for ; at < len(h.Counts) && histogram.First+at <= exp*perOctave; at++ {
			sum += h.Counts[at]
		}
		list = append(list, &dto.Bucket{UpperBound: proto.Float64(math.Ldexp(1, exp)), CumulativeCount: proto.Uint64(sum)})
	}
	return slices.Clip(list)
}
