package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/faults"
)

// A module whose TestOnce passes from the second play on, and only alone. TestTwice never does.
const flaky = `package flaky

import (
	"os"
	"testing"
)

var others int

func TestBefore(*testing.T) { others++ }

func TestOnce(t *testing.T) {
	_, err := os.Stat("played")
	os.WriteFile("played", nil, 0o600)
	if err != nil || others > 0 {
		t.Error("the first time")
	}
}

func TestTwice(t *testing.T) {
	if os.Getenv("FLAKY_TWICE") != "" {
		t.Error("each time")
	}
}
`

func TestARealGoTestIsPlayedOnceMore(t *testing.T) {
	for name, tc := range map[string]struct{ twice, flag, err string }{
		"what holds alone passes": {},
		"what fails twice fails":  {twice: "1", err: "1 test failed: flaky TestTwice, also when played once more"},
		"a flag that is none":     {flag: "-p=none", err: "exit status 2"},
		"a package that is none":  {flag: "./nosuch", err: "none is played once more: ./nosuch: it was not built"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range map[string]string{"go.mod": "module flaky\n", "flaky_test.go": flaky} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Chdir(dir)
			t.Setenv("FLAKY_TWICE", tc.twice)
			command := []string{"go", "test", "-json", "-count=1"}
			if tc.flag != "" {
				command = append(command, tc.flag)
			}
			var log, out bytes.Buffer
			err := faults.PlayTests(player(command), []string{"."}, &log, &out)
			if err == nil && tc.err != "" || err != nil && (tc.err == "" || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			const held = "1 test held only when played once more: flaky TestOnce\n"
			if got := strings.HasSuffix(out.String(), held); got != (tc.flag == "") {
				t.Errorf("says that one held: %v\n%s", got, strings.ReplaceAll(out.String(), "---", ""))
			}
		})
	}
}

// TestThePageIsReplacedWhole: what had the old one open, or was to be compared with it, keeps it.
func TestThePageIsReplacedWhole(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, faults.DocFile)
	registry, err := os.ReadFile(filepath.Join("..", "..", "..", faults.RegistryFile))
	if err == nil {
		err = os.Mkdir(filepath.Dir(page), 0o700)
	}
	for file, text := range map[string][]byte{page: []byte("old"), filepath.Join(dir, faults.RegistryFile): registry} {
		if err == nil {
			err = os.WriteFile(file, text, 0o600)
		}
	}
	if err == nil {
		err = os.Link(page, page+".was")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	if err := run([]string{"doc"}); err != nil {
		t.Fatal(err)
	}
	was, _ := os.ReadFile(page + ".was")
	now, _ := os.ReadFile(page)
	if string(was) != "old" || len(now) <= len(was) {
		t.Errorf("the old page is %.20q, the new one %.20q", was, now)
	}
}
