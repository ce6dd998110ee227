package demo

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/scratch"
)

func testStage(c cast) *stage {
	return &stage{
		cfg: &Config{Lease: time.Second, Pass: 5 * time.Millisecond}, scene: sceneDef{key: "z", cast: c},
		variant: variant{drive: "pump", ucxTLS: "tcp", p: "node", d: "node"}, folder: &scratch.Folder{Path: "/f"},
	}
}

func TestAnEngineOfOneRankIsAProcessAndOneOfTwoIsThree(t *testing.T) {
	keys := map[string]any{"read_timeout": 1.0}
	s := testStage(cast{})
	base := spec{
		run: s.name(), name: "P", role: "prefill", program: "node", drive: "pump", ucxTLS: "tcp", lease: time.Second, pass: 5 * time.Millisecond,
		context: "engine", tp: 1, keys: keys,
	}
	one, err := s.processes("P", "prefill", "node", 1, keys)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]spec{base}, one, cmp.AllowUnexported(spec{})); diff != "" {
		t.Errorf("one rank (-want +got):\n%s", diff)
	}

	s = testStage(cast{side: true})
	two, err := s.processes("P", "prefill", "node", 2, keys)
	if err != nil || len(two) != 3 || two[0].port == 0 {
		t.Fatalf("%+v, %v", two, err)
	}
	host := base
	host.context, host.tp, host.carrier, host.port = "host", 2, "/f/P.sock", two[0].port
	rank0, rank1 := host, host
	rank0.context, rank0.port = "rank", 0 // the host alone serves the side channel
	rank1.context, rank1.port, rank1.rank = "rank", 0, 1
	if diff := cmp.Diff([]spec{host, rank0, rank1}, two, cmp.AllowUnexported(spec{})); diff != "" {
		t.Errorf("two ranks (-want +got):\n%s", diff)
	}
}
