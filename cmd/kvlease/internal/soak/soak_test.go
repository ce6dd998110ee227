package soak

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/core"
)

func TestEveryDurationOfTheLadderIsAConfigurationThatOpens(t *testing.T) {
	for _, mode := range []string{"pump", "inline"} {
		s := &Spec{Mode: mode, Transport: "nixl", Leases: Ladder, Port: 40000, Pass: 5 * time.Millisecond}
		for _, side := range []string{"P", "D"} {
			for i := range len(Ladder) + 1 {
				if _, err := core.ParseConfig(s.config(side, i)); err != nil {
					t.Errorf("%s, %s, context %d: %v", mode, side, i, err)
				}
			}
		}
	}
}

func TestTheShortestLeaseIsTheLeastBelowWhichOneFailed(t *testing.T) {
	held := func(ms float64) Figures { return Figures{LeaseMs: ms, Completed: 10} }
	bad := func(ms float64) Figures { return Figures{LeaseMs: ms, Completed: 10, Expired: 1} }
	for _, tc := range []struct {
		name string
		p, d []Figures
		want float64
	}{
		{"all held", []Figures{held(50), held(100), held(200)}, nil, 50},
		{"the shortest failed", []Figures{bad(50), held(100), held(200)}, nil, 100},
		{"one in between failed, so a shorter one was lucky", []Figures{held(50), bad(100), held(200)}, nil, 200},
		{"the longest failed", []Figures{held(50), held(100), bad(200)}, nil, 0},
		{"nothing was read in time to say anything", []Figures{held(50), {LeaseMs: 100}}, nil, 0},
		{"P saw nothing, D was told that a lease is gone", []Figures{held(50), held(100)},
			[]Figures{{Failed: map[string]uint64{"lease gone": 1}}, {}}, 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := shortest(tc.p, tc.d); got != tc.want {
				t.Errorf("shortest %v ms, want %v", got, tc.want)
			}
		})
	}
}

func TestSharesOfTheMachineAddUp(t *testing.T) {
	busy, steal := (cpuTimes{busy: 130, idle: 260, steal: 20}).since(cpuTimes{busy: 100, idle: 200, steal: 10})
	if busy != 30 || steal != 10 {
		t.Errorf("busy %v %%, stolen %v %%, want 30 and 10", busy, steal)
	}
	if now := readTimes(); now.busy == 0 {
		t.Error("no time is read from /proc/stat")
	}
}

func TestAResultIsATableAndOneLine(t *testing.T) {
	r := &Result{Date: "2026-01-02T03:04:05Z", Commit: "abc+", Runs: []*Run{{
		Mode: "pump", Minutes: 1, ShortestMs: 100,
		P: Process{Contexts: []Figures{{LeaseMs: 100, Requests: 5, Completed: 5, Priority: "rr"}}},
		D: Process{Contexts: []Figures{{LeaseMs: 100, Failed: map[string]uint64{"stale": 2, "at risk": 9}}}},
	}}}
	var out bytes.Buffer
	r.Print(&out)
	for _, want := range []string{"shortest lease without a false expiry: 100 ms", "pump priority rr", "false expiries"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	path := r.File(t.TempDir())
	if filepath.Base(path) != "soak-2026-01-02-abc.json" {
		t.Errorf("saved as %q", path)
	}
	var saved bytes.Buffer
	if err := r.Save(&saved); err != nil {
		t.Fatal(err)
	}
	text := saved.Bytes()
	if bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("%d lines", bytes.Count(text, []byte("\n")))
	}
	var back Result
	if err := json.Unmarshal(text, &back); err != nil || back.Runs[0].ShortestMs != 100 || back.Runs[0].D.Contexts[0].Failed["stale"] != 2 {
		t.Errorf("read back: %+v, %v", back, err)
	}
}
