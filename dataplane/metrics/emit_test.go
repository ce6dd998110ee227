package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// fake hands what an emitter sends to a registry.
type fake struct {
	e    *emitter
	send func()
}

func (f *fake) Describe(chan<- *prometheus.Desc) {}

func (f *fake) Collect(out chan<- prometheus.Metric) {
	f.e.out = out
	f.send()
}

// collect gathers what one part of an emitter sends.
func collect(t *testing.T, e *emitter, send func()) []*dto.MetricFamily {
	t.Helper()
	e.base = []string{"E", e.snap.Role, "0"}
	r := prometheus.NewRegistry()
	r.MustRegister(&fake{e, send})
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}
