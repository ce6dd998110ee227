package metrics

import (
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/core/coretest"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// open makes a context over the loopback transport.
func open(t testing.TB, config string) *core.Core {
	t.Helper()
	c, _ := coretest.Open(t, config, nil)
	return c
}

// pageOf writes one page with these values and opens it.
func pageOf(t testing.TB, spec *watch.Spec, fill func(w *watch.Writer)) *watch.Page {
	t.Helper()
	w, why, err := watch.New(spec)
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	t.Cleanup(w.Close)
	if fill != nil {
		fill(w)
	}
	w.Publish(&watch.Live{Stepped: core.Now()})
	p, err := w.Page()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func gather(t testing.TB, c *Collector) []*dto.MetricFamily {
	t.Helper()
	all, err := c.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// series are the values of a family by the labels that were asked for, joined by commas. Of a histogram it is the count.
func series(all []*dto.MetricFamily, name string, labels ...string) map[string]float64 {
	out := map[string]float64{}
	for _, f := range all {
		if f.GetName() != "kvlease_"+name {
			continue
		}
		for _, m := range f.Metric {
			var key []string
			for _, want := range labels {
				for _, l := range m.Label {
					if l.GetName() == want {
						key = append(key, l.GetValue())
					}
				}
			}
			switch {
			case m.Counter != nil:
				out[strings.Join(key, ",")] += m.Counter.GetValue()
			case m.Gauge != nil:
				out[strings.Join(key, ",")] += m.Gauge.GetValue()
			case m.Histogram != nil:
				out[strings.Join(key, ",")] += float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return out
}

func engineSpec(id string) *watch.Spec {
	return &watch.Spec{Head: watch.Head{Role: "engine", Engine: id, Provider: "loopback", Duration: 30 * time.Second, Interval: 5 * time.Second}}
}
