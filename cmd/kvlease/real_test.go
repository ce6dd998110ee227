package main

import (
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
)

// TestTheScenesHoldBetweenProcessesOverRealNIXL runs what `make build` has made, as the demo does. The whole demo is
// `make demo`; here are the two scenes in which a process dies or stops.
func TestTheScenesHoldBetweenProcessesOverRealNIXL(t *testing.T) {
	programs := builtPrograms(t)
	var story strings.Builder
	result, err := demo.Run(t.Context(), demo.Config{
		Programs: programs,
		Lease:    1200 * time.Millisecond, Pass: 10 * time.Millisecond, Scenes: "bc", Narrate: &story, Version: version,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Verdict(); err != nil {
		t.Fatalf("%v\n%s", err, story.String())
	}
}
