package mutate

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestAChangeNeedsItsOldTextExactlyOnce(t *testing.T) {
	for _, tc := range []struct {
		name, text, old, new string
		want, wrong          string
	}{
		{name: "once", text: "a < b", old: "<", new: "<=", want: "a <= b"},
		{name: "never", text: "a > b", old: "<", new: "<=", wrong: "0 times"},
		{name: "twice", text: "a < b < c", old: "<", new: "<=", wrong: "2 times"},
		{name: "nothing to look for", text: "a", old: "", new: "b", wrong: "is empty"},
		{name: "nothing changed", text: "a", old: "a", new: "a", wrong: "is the old one"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Change{File: "x.go", Old: tc.old, New: tc.new}.Apply([]byte(tc.text))
			if tc.wrong != "" {
				if !errors.Is(err, ErrApply) || !strings.Contains(err.Error(), tc.wrong) || !strings.Contains(err.Error(), "x.go") {
					t.Fatalf("answered %q, %v; want an ErrApply that names the file and says %q", got, err, tc.wrong)
				}
				return
			}
			if err != nil || string(got) != tc.want {
				t.Errorf("answered %q, %v; want %q", got, err, tc.want)
			}
		})
	}
}

func TestWhatIsBuiltWithAnOverlayIsTheChangedFileAndTheTreeStaysAsItIs(t *testing.T) {
	root, dir := t.TempDir(), t.TempDir()
	const text = "package main\n\nfunc main() { print(\"first\", \"second\") }\n"
	for name, text := range map[string]string{"go.mod": "module m\n\ngo 1.26\n", "main.go": text} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	at, err := Overlay(root, dir, Change{File: "main.go", Old: "first", New: "one"}, Change{File: "main.go", Old: "second", New: "two"})
	if err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "run", "-overlay", at, ".")
	run.Dir = root
	out, err := run.CombinedOutput()
	if err != nil || string(out) != "onetwo" {
		t.Errorf("the program says %q, %v; want what both changes make of it", out, err)
	}
	if now, err := os.ReadFile(filepath.Join(root, "main.go")); err != nil || string(now) != text {
		t.Errorf("the tree holds %q, %v; want it as it was", now, err)
	}
}

func TestAnOverlayOfAFileThatIsNotThereDoesNotApply(t *testing.T) {
	if _, err := Overlay(t.TempDir(), t.TempDir(), Change{File: "gone.go", Old: "a", New: "b"}); !errors.Is(err, ErrApply) {
		t.Errorf("answered %v, want ErrApply", err)
	}
}
