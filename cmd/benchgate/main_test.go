package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/figures"
)

// result writes a file with one row, its peer as it ever is.
func result(t *testing.T, name string, ns float64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	const text = `{"date":"2026-11-30","commit":"%s","machine":{"cpu":"x","cores":2},"rows":[{"section":"hook","what":"kvl_track","unit":"ns",
		"ours":{"median":%g,"min":%g,"max":%g,"p99":%g,"n":7},"peers":[{"project":"vLLM","what":"","median":100,"min":90,"max":110,"p99":110,"n":7}]}]}`
	if err := os.WriteFile(path, fmt.Appendf(nil, text, name, ns, ns*0.95, ns*1.05, ns*1.05), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestItNamesWhatGotSlowerAndEndsWithOne(t *testing.T) {
	slow, fast := result(t, "slow", 30), result(t, "fast", 20)
	var out, errs bytes.Buffer
	if rc := run([]string{fast, slow}, &out, &errs); rc != 1 || errs.Len() > 0 {
		t.Errorf("ends with %d, says %s", rc, &errs)
	}
	for _, want := range []string{"slower, beyond the noise: 1\n", "hook: kvl_track: 20 ns (19 ns – 21 ns), now 30 ns (28.5 ns – 31.5 ns), × 1.5 (vLLM × 1)\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}
	out.Reset()
	if rc := run([]string{slow, fast}, &out, &errs); rc != 0 || !strings.Contains(out.String(), "faster, beyond the noise: 1\n") {
		t.Errorf("ends with %d\n%s", rc, &out)
	}
	out.Reset()
	if rc := run([]string{"--json", fast, slow}, &out, &errs); rc != 1 {
		t.Errorf("with --json it ends with %d", rc)
	}
	var c figures.Comparison
	if err := json.Unmarshal(out.Bytes(), &c); err != nil || len(c.Slower()) != 1 || c.Slower()[0].By != 1.5 || c.New.Commit != "slow" {
		t.Errorf("%v in %s", err, &out)
	}
}

func TestArgumentsAndFilesThatCannotBeUsedEndWithTwo(t *testing.T) {
	good := result(t, "good", 20)
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte(`{"rows":3}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		says string
	}{
		{nil, "0 files are named, it takes two\nusage:"},
		{[]string{good}, "1 files are named"},
		{[]string{good, good, good}, "3 files are named"},
		{[]string{"--fast", good, good}, "flag provided but not defined: -fast\nusage:"},
		{[]string{good, "nowhere.json"}, "nowhere.json: no such file"},
		{[]string{broken, good}, "broken: not a result file of bench/run.py: "},
	} {
		var out, errs bytes.Buffer
		if rc := run(tc.args, &out, &errs); rc != 2 || out.Len() > 0 || !strings.Contains(errs.String(), tc.says) {
			t.Errorf("%q ends with %d, prints %q, says %q", tc.args, rc, &out, &errs)
		}
	}
	var out, errs bytes.Buffer
	if rc := run([]string{"-h"}, &out, &errs); rc != 0 || !strings.HasPrefix(out.String(), "usage: benchgate") {
		t.Errorf("-h ends with %d, prints %q, says %q", rc, &out, &errs)
	}
}
