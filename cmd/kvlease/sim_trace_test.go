package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// shortTrace is two seconds of requests, in a file.
func shortTrace(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	for i := range 20 {
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": 1600, "output_length": 40, "hash_ids": [%d]}`+"\n", 100*i, i)
	}
	path := filepath.Join(t.TempDir(), "trace.jsonl")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestATraceIsPlayedWithEachSettingAndWrittenInThreeForms(t *testing.T) {
	dir := t.TempDir()
	svg, out := filepath.Join(dir, "a.svg"), filepath.Join(dir, "a.json")
	code, stdout, stderr := invoke(t, "", "sim", "--trace", shortTrace(t), "--seed", "7", "--leases", "6s,30s", "--fixed", "480s",
		"--p", "2", "--d", "3", "--load", "2", "--crash-d", "1", "--stalls", "1", "--router", "round-robin", "--svg", svg, "--json", out)
	if code != exitOK {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, word := range []string{"lease 6 s", "lease 30 s", "fixed 480 s", "40 requests to 2 P and 3 D"} {
		if !strings.Contains(stdout, word) {
			t.Errorf("no %q in\n%s", word, stdout)
		}
	}
	var report struct {
		Machine, Trace string
		Config         struct {
			Seed uint64
			P, D int
			Load float64
		}
		Results []struct {
			Setting  string
			Requests int
			Finished int
		}
	}
	text, err := os.ReadFile(out)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		t.Fatal(err)
	}
	if c := report.Config; c.Seed != 7 || c.P != 2 || c.D != 3 || c.Load != 2 || len(report.Results) != 3 || !strings.Contains(report.Machine, "cores of") {
		t.Errorf("%+v", report)
	}
	for _, r := range report.Results {
		if r.Requests != 40 || r.Finished != 40 {
			t.Errorf("%s: %d of %d requests finished, want 40", r.Setting, r.Finished, r.Requests)
		}
	}
	if text, err = os.ReadFile(svg); err != nil || !bytes.HasPrefix(text, []byte("<svg ")) || !bytes.Contains(text, []byte("fixed 480 s")) {
		t.Errorf("%v, %d bytes", err, len(text))
	}
}

func TestAWrongArgumentOfATraceGetsOneClearLine(t *testing.T) {
	trace := shortTrace(t)
	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	if err := os.WriteFile(bad, []byte("{\"timestamp\": 0, \"input_length\": 5, \"output_length\": 5}\n{\"timestamp\": 1}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args  string
		code  int
		names string
	}{
		{"--trace /nowhere/trace.jsonl", exitFailed, "/nowhere/trace.jsonl"},
		{"--trace " + bad, exitFailed, "line 2 of the trace: input_length is missing"},
		{"--trace " + os.DevNull, exitUsage, "the trace holds no request"},
		{"--trace " + t.TempDir(), exitFailed, "is a directory"},
		{"--trace " + trace + " --load 0", exitUsage, "load 0, allowed: more than 0"},
		{"--trace " + trace + " --prefill-rate 0", exitUsage, "prefill speed 0"},
		{"--trace " + trace + " --link-rate 0", exitUsage, "link rate 0"},
		{"--trace " + trace + " --p 0", exitUsage, "prefill engines 0"},
		{"--trace " + trace + " --p x", exitUsage, "--p"},
		{"--trace " + trace + " --leases 6q", exitUsage, "--leases"},
		{"--trace " + trace + " --leases 10ms", exitUsage, "lease 0.01 s, allowed"},
		{"--trace " + trace + " --fixed 48h", exitUsage, "fixed 172800 s, allowed"},
		{"--trace " + trace + " --leases  --fixed ", exitUsage, ""},
		{"--trace " + trace + " --router random", exitUsage, "router \"random\", allowed: round-robin, least-loaded"},
		{"--trace " + trace + " --wired 2", exitUsage, "wired share 2, allowed: 0 to 1"},
		{"--trace " + trace + " --jobs -1", exitUsage, "--jobs"},
		{"--trace " + trace + " --seed x", exitUsage, "--seed is \"x\""},
		{"--trace " + trace + " --svg /nowhere/a.svg", exitFailed, "/nowhere/a.svg cannot be written: no such file or directory; make its folder first, or name another file by --svg"},
		{"--trace " + trace + " --json /nowhere/a.json", exitFailed, "/nowhere/a.json cannot be written: no such file or directory; make its folder first, or name another file by --json"},
		{"--trace " + trace + " --case a.yaml", exitUsage, "--case and --trace"},
	} {
		t.Run(strings.ReplaceAll(tc.args, "/", "_"), func(t *testing.T) {
			code, stdout, stderr := invoke(t, "", append([]string{"sim"}, strings.Fields(tc.args)...)...)
			if code != tc.code || stdout != "" {
				t.Errorf("code %d, want %d, stdout %q", code, tc.code, stdout)
			}
			if strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, tc.names) {
				t.Errorf("stderr %q, want one line that names %s", stderr, tc.names)
			}
		})
	}
}

func TestAWrongArgumentLeavesTheFilesAlone(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "a.svg")
	if err := os.WriteFile(svg, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"--load 0", "--router random", "--leases 10ms"} {
		invoke(t, "", append([]string{"sim", "--trace", shortTrace(t), "--svg", svg}, strings.Fields(args)...)...)
		if text, err := os.ReadFile(svg); err != nil || string(text) != "kept" {
			t.Errorf("%s: %q, %v", args, text, err)
		}
	}
}
