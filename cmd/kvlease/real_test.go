package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/internal/require"
)

// TestTheScenesHoldBetweenProcessesOverRealNIXL runs what `make build` has made, as the demo does. The whole demo is
// `make demo`; here are the two scenes in which a process dies or stops.
func TestTheScenesHoldBetweenProcessesOverRealNIXL(t *testing.T) {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	build := filepath.Join(root, "build")
	tool, prefill, decode := filepath.Join(build, "kvlease"), filepath.Join(build, "examples", "prefill"), filepath.Join(build, "examples", "decode")
	core, wheel := filepath.Join(build, "libkvlease-core.so"), filepath.Join(root, "third_party", "nixl", ".kvlease-wheel")
	for _, file := range []string{tool, prefill, decode, core, wheel} {
		if _, err := os.Stat(file); err != nil {
			require.Skip(t, "nixl", "no "+file+": run make deps build")
		}
	}
	if os.Getenv("KVLEASE_CORE") == "" {
		t.Setenv("KVLEASE_CORE", core)
	}
	if os.Getenv("KVLEASE_NIXL") == "" {
		t.Setenv("KVLEASE_NIXL", filepath.Dir(wheel))
	}
	var story strings.Builder
	result, err := demo.Run(t.Context(), demo.Config{
		Programs: demo.Programs{Prefill: []string{prefill}, Decode: []string{decode}, Node: []string{tool, "node"}},
		Lease:    1200 * time.Millisecond, Pass: 10 * time.Millisecond, Scenes: "bc", Narrate: &story, Version: version,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Verdict(); err != nil {
		t.Fatalf("%v\n%s", err, story.String())
	}
}
