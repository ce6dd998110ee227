package sim

import (
	"bytes"
	"testing"
	"time"
)

func plain() Schedule {
	s := Schedule{
		Seed: 1, Span: 60 * time.Second, Link: Link{Delay: time.Millisecond, Jitter: time.Millisecond, DescTime: 100 * time.Microsecond},
		Engines: []Engine{
			{ID: "P", Host: true, TP: 2, Carrier: "delta", Lease: 30 * time.Second},
			{ID: "Q", Lease: 30 * time.Second},
			{ID: "D", Lease: 30 * time.Second, Known: []string{"P", "Q"}},
			{ID: "E", Host: true, TP: 4, Known: []string{"P", "Q"}},
		},
	}
	for i, p := range []string{"P", "Q"} {
		for k, d := range []string{"D", "E"} {
			req := p + d
			at := time.Duration(2+i+k) * time.Second
			s.Actions = append(s.Actions,
				Action{At: at, Engine: p, Do: Grant, Req: req, Blocks: 4},
				Action{At: at + 100*time.Millisecond, Engine: d, Do: Track, Req: req, Peer: p},
				Action{At: at + 20*time.Second, Engine: d, Do: Read, Req: req, All: true},
			)
		}
	}
	return s
}

func TestAPlainRunReadsWhatWasGrantedAndLeavesNothing(t *testing.T) {
	r, err := Run(plain(), Options{Log: true})
	if err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Done != 4 {
		var b bytes.Buffer
		r.Log.WriteTo(&b)
		t.Errorf("%d reads done, %v failed, violations %v\n%s", r.Done, r.Failed, r.Violations, b.String())
	}
	t.Logf("%d steps, %d compared, freed %v", r.Steps, r.Compared, r.Freed)
}
