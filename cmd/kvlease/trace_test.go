package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/tracing"
	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/require"
)

func TestATraceThatCannotBeginSaysWhyInALine(t *testing.T) {
	for _, tc := range []struct{ args, names string }{
		{"trace 2147483647", "process 2147483647: there is no such process"},
		{"trace --lib /nowhere/lib.so", "/nowhere/lib.so"},
		{"trace --lib main.go", "no trace sites of kvlease"},
		{"trace --svg /nowhere/t.svg", "--svg"},
	} {
		code, stdout, stderr := invoke(t, "", strings.Fields(tc.args)...)
		missing := probe.Check()
		if missing != nil && !strings.Contains(tc.args, "--svg") {
			tc.names = missing.Error()
		}
		if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.names) {
			t.Errorf("%s: code %d, %s%s", tc.args, code, stdout, stderr)
		}
	}
}

// Engines in C, in Go and over both libraries, seen from outside while the demo plays a scene: hooks in one file meet their step in
// another one, messages of one process those of the next.
func TestEnginesOfTheDemoAreTracedFromOutside(t *testing.T) {
	if err := probe.Check(); err != nil {
		require.Skip(t, "ebpf", err.Error())
	}
	programs := builtPrograms(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var out bytes.Buffer
	traced := make(chan error, 1)
	go func() { traced <- tracing.Run(ctx, tracing.Config{JSON: true}, &out) }()

	var story strings.Builder
	result, err := demo.Run(t.Context(), demo.Config{
		Programs: programs,
		Lease:    1200 * time.Millisecond, Pass: 10 * time.Millisecond, Scenes: "a", Narrate: &story, Version: version,
	})
	if err = errors.Join(err, ctx.Err()); err != nil {
		t.Fatal(err)
	}
	if err := result.Verdict(); err != nil {
		t.Fatalf("%v\n%s", err, story.String())
	}
	stop()
	if err := <-traced; err != nil {
		t.Fatal(err)
	}
	var got struct {
		Files  []string
		Series []struct {
			Stage, From, To string
			N               uint64
		}
		Counters map[string]uint64
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	counts := map[string]uint64{}
	for _, s := range got.Series {
		counts[s.Stage] += s.N
	}
	for _, stage := range []probe.Stage{
		probe.Drained, probe.Posted, probe.Seen, probe.Extended, probe.Renewed, probe.Slack, probe.Arrived, probe.Fenced, probe.Reported, probe.Read, probe.Step,
	} {
		if counts[stage.Key()] == 0 {
			t.Errorf("%v: nothing was timed", stage)
		}
	}
	// Engines that run when they are found are attached to site by site: what is under way then has no beginning.
	if n := got.Counters["seen_mismatches"] + got.Counters["spans_lost"] + got.Counters["kernel_misses"]; n != 0 {
		t.Errorf("%v", got.Counters)
	}
	if t.Failed() {
		t.Logf("%s", out.String())
	}
}
