package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFoldersOfKilledCommandsAreRemovedAndNoOthers(t *testing.T) {
	root, elsewhere := t.TempDir(), t.TempDir()
	t.Setenv("TMPDIR", root)
	long := time.Now().Add(-time.Hour)
	for name, old := range map[string]bool{
		"kvlease-demo-1": true, "kvlease-demo-2": false, "kvlease-other-3": true, "demo": true,
	} {
		dir := filepath.Join(root, name)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "P.sock"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if old {
			if err := os.Chtimes(dir, long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(elsewhere, "kept"), nil, 0o600), os.Chtimes(elsewhere, long, long),
		os.Symlink(elsewhere, filepath.Join(root, "kvlease-demo-4")), os.WriteFile(filepath.Join(root, "kvlease-demo-5"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	first, err := New("demo")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(first.Path, long, long); err != nil {
		t.Fatal(err)
	}
	second, err := New("demo")
	if err != nil {
		t.Fatal(err)
	}
	there := func(dir string) bool { _, err := os.Lstat(dir); return err == nil }
	if there(filepath.Join(root, "kvlease-demo-1")) {
		t.Error("what a killed command has left is still there")
	}
	for _, kept := range []string{first.Path, second.Path, filepath.Join(root, "kvlease-demo-2"), filepath.Join(root, "kvlease-other-3"), filepath.Join(root, "demo"),
		filepath.Join(root, "kvlease-demo-4"), filepath.Join(root, "kvlease-demo-5"), filepath.Join(elsewhere, "kept")} {
		if !there(kept) {
			t.Errorf("%s is gone", kept)
		}
	}
	first.Remove()
	second.Remove()
	if there(first.Path) || there(second.Path) {
		t.Error("a folder is left behind by its own command")
	}
}
