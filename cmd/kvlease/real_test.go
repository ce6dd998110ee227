package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/pages"
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
	pids := regexp.MustCompile(`\(pid (\d+)\)`).FindAllStringSubmatch(story.String(), -1)
	if len(pids) < 8 {
		t.Errorf("%d processes in the story:\n%s", len(pids), story.String())
	}
	for _, found := range pids {
		pid, _ := strconv.Atoi(found[1])
		if left, err := pages.Numbered("", pid); err != nil || len(left) != 0 {
			t.Errorf("process %d, which the demo has ended, still shows itself: %v, %v", pid, left, err)
		}
	}
}
