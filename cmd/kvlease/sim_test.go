package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim"
)

const caseFile = "../../dataplane/sim/testdata/C26.yaml"

func TestACaseIsRunAndEachExpectationIsTold(t *testing.T) {
	code, stdout, stderr := invoke(t, "", "sim", "--case", caseFile)
	if code != exitOK || stderr != "" {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{"ok     line", "read: a, outcome: stale", "(shows C26.1", "2 leases granted"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "FAILED") {
		t.Errorf("a failure in\n%s", stdout)
	}
}

func TestCasesThatAreBuiltInNeedNoFile(t *testing.T) {
	t.Chdir(t.TempDir())
	if code, stdout, stderr := invoke(t, "", "sim", "--case", "C26"); code != exitOK || !strings.Contains(stdout, "outcome: stale") {
		t.Errorf("code %d, stderr %q, stdout\n%s", code, stderr, stdout)
	}
	if code, _, stderr := invoke(t, "", "sim", "--case", "c26"); code != exitOK {
		t.Errorf("code %d, stderr %q", code, stderr)
	}
	code, stdout, _ := invoke(t, "", "sim", "--case", "list")
	if code != exitOK || !strings.Contains(stdout, "C26  A late read ") || strings.Count(stdout, "\n") < 60 {
		t.Errorf("code %d, stdout\n%s", code, stdout)
	}
}

func TestACaseThatIsNotMetFailsAndSaysWhatWasSeen(t *testing.T) {
	text, err := os.ReadFile(caseFile)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "wrong.yaml")
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), "outcome: stale", "outcome: ok", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := invoke(t, "", "sim", "--case", path)
	if code != exitFailed || !strings.Contains(stdout, "FAILED line") || !strings.Contains(stdout, "a has the outcome stale") || !strings.Contains(stdout, "1 of 5 expectations not met") {
		t.Errorf("code %d, stderr %q, stdout\n%s", code, stderr, stdout)
	}
}

func TestACaseFileWithAMistakeIsOneLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(path, []byte("span: 60\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"sim --case " + path:                path + ":1: span is 60, which has no unit: write 60s",
		"sim --replay " + path + ".missing": "there is no file " + path + ".missing",
	} {
		code, stdout, stderr := invoke(t, "", strings.Fields(args)...)
		if code != exitFailed || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, want) {
			t.Errorf("%s: code %d, stdout %q, stderr %q", args, code, stdout, stderr)
		}
	}
}

// What was drawn is written as a case file, and that file runs the same, to the last event.
func TestWhatWasDrawnRunsAgainFromItsFile(t *testing.T) {
	out := filepath.Join(t.TempDir(), "drawn.yaml")
	code, drawn, stderr := invoke(t, "", "sim", "--seed", "3", "--log", "--out", out)
	if code != exitOK || stderr != "" || strings.Count(drawn, "\n") < 100 {
		t.Fatalf("code %d, stderr %q, %d lines", code, stderr, strings.Count(drawn, "\n"))
	}
	code, again, stderr := invoke(t, "", "sim", "--replay", out, "--log")
	if want := strings.TrimSuffix(drawn, "written to "+out+"\n"); code != exitOK || stderr != "" || again != want {
		t.Errorf("code %d, stderr %q: another run", code, stderr)
	}
}

func TestAFileThatCannotBeWrittenIsNoBrokenRule(t *testing.T) {
	for _, args := range []string{"--svg /nowhere/a.svg", "--out /nowhere/a.yaml"} {
		code, stdout, stderr := invoke(t, "", append([]string{"sim", "--seed", "3"}, strings.Fields(args)...)...)
		if code != exitFailed || strings.Contains(stdout, "actions:") || !strings.Contains(stderr, "/nowhere/a.") {
			t.Errorf("%s: code %d, stderr %q, stdout\n%.2000s", args, code, stderr, stdout)
		}
	}
}

func TestASignalEndsARun(t *testing.T) {
	for _, args := range []string{"--seed 3", "--case C26", "--replay C26"} {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		code := run(append([]string{"sim"}, strings.Fields(args)...), world{ctx: ctx, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr})
		if code != exitFailed || stdout.Len() != 0 || stderr.String() != "kvlease: called off\n" {
			t.Errorf("%s: code %d, stdout %q, stderr %q", args, code, stdout.String(), stderr.String())
		}
	}
}

func TestAPictureHasALaneForWhatHappenedAndSaysWhatBroke(t *testing.T) {
	s := &sim.Schedule{Span: 10 * time.Second, Engines: []sim.Engine{{ID: "P"}}, Actions: []sim.Action{
		{At: 3 * time.Second, Engine: "P", Do: sim.Partition, Peer: "D", For: 4 * time.Second},
		{At: 3 * time.Second, Engine: "P", Do: sim.Suspend, For: 4 * time.Second},
	}}
	acted := func(req, what string) sim.Entry {
		return sim.Entry{At: time.Second, Kind: sim.Acted, Engine: "P", Rank: -1, Req: req, What: what}
	}
	var svg strings.Builder
	err := writeChart(&svg, s, &sim.Result{
		Violations: []sim.Violation{{Rule: sim.WrongData, Engine: "P", Req: "held", What: "first"}, {What: "second"}, {What: "third"}},
		Log: sim.Log{
			acted("held", "grant"), acted("cancelled", "expect"), acted("no room", "grant refused: full"),
			{At: 2 * time.Second, Kind: sim.Broke, Engine: "P", Rank: -1, Req: "held", What: "data: first"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"P partition D ends", "machine suspended", ">P  held<", "a rule is broken", "first. And 2 more.", "0 leases granted"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("no %q in the picture", want)
		}
	}
	for _, not := range []string{"cancelled", "no room", "SIGKILL", "second"} {
		if strings.Contains(svg.String(), not) {
			t.Errorf("%q is in the picture", not)
		}
	}
}

func TestTheTimelineOfARunIsAPicture(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.svg")
	if code, _, stderr := invoke(t, "", "sim", "--replay", strings.Replace(caseFile, "C26", "C46", 1), "--svg", path); code != exitOK {
		t.Fatalf("code %d, stderr %q", code, stderr)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	dec := xml.NewDecoder(strings.NewReader(string(text)))
	for {
		if _, err := dec.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{`<rect class="lease"`, `<line class="beat"`, ">P  x<", ">D  a<", "P killed", "P starts", "heartbeat batch sent to it"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the picture", want)
		}
	}
}
