package demo

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
)

func testConfig(t *testing.T, scenes string, filter func(spec, []byte) []byte) Config {
	return Config{Lease: 900 * time.Millisecond, Pass: 5 * time.Millisecond, Scenes: scenes, Narrate: io.Discard, launch: inProcessLauncher(t, filter, nil), cut: cutLoopback, together: 4}
}

// kept plays a demo that has to keep its promises, and gives what it said.
func kept(t *testing.T, cfg Config) (result *Result, story string) {
	t.Helper()
	var said strings.Builder
	cfg.Narrate = &said
	result, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Verdict(); err != nil {
		t.Fatalf("%v\n%s", err, said.String())
	}
	return result, said.String()
}

// Not beside the others: engines with ranks meet in this process by their names.
func TestEverySceneKeepsItsPromisesOverLoopback(t *testing.T) {
	cfg := testConfig(t, "", nil)
	result, story := kept(t, cfg)
	if !result.Kept || len(result.Promises) < 130 {
		t.Errorf("kept %v, %d promises", result.Kept, len(result.Promises))
	}
	for _, word := range []string{"killed", "SIGSTOP", "fenced", "promised against measured", "fixed time-out of 8m0s"} {
		if !strings.Contains(story, word) {
			t.Errorf("the story does not mention %q", word)
		}
	}
	kinds := map[timeline.Kind]int{}
	for _, s := range result.chart.Scenes {
		for _, r := range s.Runs {
			for _, l := range r.Lanes {
				for _, m := range l.Marks {
					kinds[m.Kind]++
				}
			}
		}
	}
	for k := range timeline.Crash + 1 {
		if kinds[k] == 0 && k != timeline.Sent { // the simulation's: a demo sees what arrives
			t.Errorf("the picture has no mark of kind %d", k)
		}
	}
	var svg bytes.Buffer
	if err := result.WriteSVG(&svg); err != nil || !strings.Contains(svg.String(), "D is stopped") {
		t.Errorf("picture: %v", err)
	}
}

func TestAWrongByteBreaksThePromiseByName(t *testing.T) {
	t.Parallel()
	result, err := Run(t.Context(), testConfig(t, "a", func(s spec, line []byte) []byte {
		if s.drive == "pump" && s.ucxTLS == "" {
			return bytes.ReplaceAll(line, []byte(`"bad_bytes":0`), []byte(`"bad_bytes":7`))
		}
		return line
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := "broken promise: scene a, pump, UCX default: wrong bytes handed out: promised exactly 0, measured 7"
	if err := result.Verdict(); err == nil || err.Error() != want {
		t.Errorf("verdict %v, want %s", err, want)
	}
}

func TestDataThatIsHandedOutAfterAStopBreaksThePromise(t *testing.T) {
	t.Parallel()
	result, err := Run(t.Context(), testConfig(t, "c", func(s spec, line []byte) []byte {
		if s.role == "decode" && bytes.Contains(line, []byte(`"read_failed"`)) {
			line = bytes.ReplaceAll(line, []byte(`"read_failed"`), []byte(`"read_done"`))
			line = bytes.ReplaceAll(line, []byte(`"stale"`), []byte(`"ok"`))
		}
		return line
	}))
	if err != nil {
		t.Fatal(err)
	}
	broken, stale := 0, 0
	for _, p := range result.Promises { // a busy machine may have broken others, too
		broken += int(is(!p.Kept && p.What == "requests with wrong data handed out"))
		stale += int(is(!p.Kept && p.What == "reads of overwritten blocks refused as stale"))
	}
	if err := result.Verdict(); err == nil || stale != 4 {
		t.Errorf("verdict %v, %d runs broke the promise about the stale read, want 4", err, stale)
	}
	if broken != 4 {
		t.Errorf("%d runs broke the promise that no data is handed out, want 4", broken)
	}
}

func TestAnEngineThatDiesAtTheStartIsReportedWithItsLastWords(t *testing.T) {
	cfg := testConfig(t, "b", nil)
	cfg.launch = nil
	dies := []string{"/bin/sh", "-c", "echo no NIXL here >&2; exit 3"}
	cfg.Programs = Programs{Prefill: dies, Decode: dies, Node: dies}
	result, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = result.Verdict()
	if err == nil {
		t.Fatal("no failure")
	}
	for _, word := range []string{`"ready"`, "P (prefill", "exit status 3", "no NIXL here"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %q", err, word)
		}
	}
}

func TestARunInWhichTheMachineStoodStillIsPlayedAgainButWrongDataIsNot(t *testing.T) {
	late := jsonl.Report{Ev: "late", LateMS: 500}
	for _, tc := range []struct {
		name     string
		promises []Promise
		log      []jsonl.Report
		excused  bool
	}{
		{"all kept", []Promise{{Kept: true}}, []jsonl.Report{late}, false},
		{"broken without a stall", []Promise{{}}, nil, false},
		{"broken after a stall that the allowance covers", []Promise{{}}, []jsonl.Report{{Ev: "late", LateMS: 120}}, false},
		{"broken after a stall that the allowance does not cover twice", []Promise{{}}, []jsonl.Report{{Ev: "late", LateMS: 130}}, true},
		{"broken after a stall", []Promise{{Kept: true}, {}}, []jsonl.Report{late}, true},
		{"wrong data after a stall", []Promise{{}, {always: true}}, []jsonl.Report{late}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := &stage{cfg: &Config{Lease: 900 * time.Millisecond}, all: []*engine{{log: tc.log}}, promises: tc.promises}
			if got := s.excused(); got != tc.excused {
				t.Errorf("excused %v", got)
			}
		})
	}
	d := &engine{log: []jsonl.Report{late}}
	stopped := &stage{cfg: &Config{Lease: 900 * time.Millisecond}, d: d, all: []*engine{d}, promises: []Promise{{}}}
	for _, tc := range []struct {
		stopped time.Duration
		excused bool
	}{
		{505 * time.Millisecond, false}, // the stop of D in its scene is ours
		{495 * time.Millisecond, false},
		{300 * time.Millisecond, true}, // and for 200 ms more it did not run
	} {
		stopped.stopped = tc.stopped
		if got := stopped.excused(); got != tc.excused {
			t.Errorf("late by 500 ms in a pass with a stop of %v: excused %v", tc.stopped, got)
		}
	}
}

func TestTheEndOfTheContextEndsTheDemoAndItsEngines(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := testConfig(t, "b", func(s spec, line []byte) []byte {
		if s.role == "decode" && bytes.Contains(line, []byte(`"engine_up"`)) {
			cancel()
		}
		return line
	})
	result, err := Run(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := result.Verdict(); err == nil || !strings.Contains(err.Error(), "context canceled") {
		t.Errorf("verdict %v, want the context's end", err)
	}
}

func TestAnUnknownSceneIsRefused(t *testing.T) {
	for _, keys := range []string{"x", "az", ","} {
		if _, err := Run(t.Context(), testConfig(t, keys, nil)); err == nil || !strings.Contains(err.Error(), "abcdefghijk") {
			t.Errorf("%q: %v", keys, err)
		}
	}
}

func TestPromisesAreJudgedByTheirRule(t *testing.T) {
	for _, tc := range []struct {
		rule               string
		promised, measured float64
		kept               bool
	}{
		{atMost, 10, 10, true}, {atMost, 10, 10.1, false},
		{atLeast, 10, 10, true}, {atLeast, 10, 9.9, false},
		{exactly, 0, 0, true}, {exactly, 0, 1, false},
	} {
		p := Promise{Rule: tc.rule, Promised: tc.promised, Measured: tc.measured}
		if p.judge(); p.Kept != tc.kept {
			t.Errorf("%s %v, measured %v: kept %v", tc.rule, tc.promised, tc.measured, p.Kept)
		}
	}
}

func TestTheTableShowsRunsSideBySideAndNamesTheBrokenOne(t *testing.T) {
	promises := []Promise{
		{Scene: "a", Run: "inline", What: "wrong bytes", Rule: exactly, Kept: true},
		{Scene: "a", Run: "pump", What: "wrong bytes", Rule: exactly, Measured: 7},
		{Scene: "a", Run: "inline", What: "free after the read", Rule: atMost, Promised: 270, Measured: 8.25, Unit: "ms", Kept: true},
		{Scene: "a", Run: "pump", What: "free after the read", Rule: atMost, Promised: 270, Measured: 12, Unit: "ms", Kept: true},
	}
	var b strings.Builder
	table(&b, scenes, promises, false)
	lines := strings.Split(b.String(), "\n")
	find := func(what string) string {
		for _, l := range lines {
			if strings.Contains(l, what) {
				return strings.Join(strings.Fields(l), " ")
			}
		}
		return ""
	}
	if got, want := find("wrong bytes"), "wrong bytes exactly 0 0 · 7 BROKEN"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got, want := find("free after"), "free after the read at most 270 ms 8.25 · 12 ms kept"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("colour where there is no terminal")
	}
}
