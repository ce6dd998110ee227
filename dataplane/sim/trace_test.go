package sim

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
)

// Whoever is attached to trace sites changes nothing: not what happens, and not when.
func TestAttachedSitesChangeNothing(t *testing.T) {
	fired := map[trace.Site]int{}
	for seed := range uint64(10) {
		var logs [3]bytes.Buffer
		var results [3]Result
		for i := range logs {
			var rec tracetest.Recorder
			o := Options{Log: true}
			if i > 0 {
				o.Sites = rec.Sites()
			}
			if i > 1 {
				rec.AttachAll()
			}
			r, err := Run(Random(seed, nil), o)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Log.WriteTo(&logs[i]); err != nil {
				t.Fatal(err)
			}
			r.Log = nil
			results[i] = *r
			hits := rec.Take()
			if i < 2 && len(hits) != 0 {
				t.Fatalf("seed %d: %d hits with nobody attached", seed, len(hits))
			}
			for _, h := range hits {
				fired[h.Site]++
			}
		}
		for i := 1; i < 3; i++ {
			if !bytes.Equal(logs[0].Bytes(), logs[i].Bytes()) {
				t.Fatalf("seed %d: the run differs (1: not attached, 2: attached to all): %d", seed, i)
			}
			if diff := cmp.Diff(results[0], results[i]); diff != "" {
				t.Fatalf("seed %d, %d (-without sites +with):\n%s", seed, i, diff)
			}
		}
	}
	for s := range trace.Count {
		if s != trace.StepBegin && s != trace.StepEnd && fired[s] == 0 { // those two are the core's
			t.Errorf("nothing ran through %v", s)
		}
	}
	t.Logf("hits: %v", fired)
}
