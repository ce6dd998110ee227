package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/demo"
	"github.com/kvlease/kvlease/internal/require"
)

// builtPrograms are what `make deps build` has made, with the environment in which they find each other.
func builtPrograms(t *testing.T) demo.Programs {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	core, wheel := os.Getenv("KVLEASE_CORE"), filepath.Join(root, "third_party", "nixl", ".kvlease-wheel")
	if core == "" {
		core = filepath.Join(root, "build", "libkvlease-core.so")
		t.Setenv("KVLEASE_CORE", core)
	}
	build := filepath.Dir(core)
	tool, prefill, decode := filepath.Join(build, "kvlease"), filepath.Join(build, "examples", "prefill"), filepath.Join(build, "examples", "decode")
	for _, file := range []string{tool, prefill, decode, core, wheel} {
		if _, err := os.Stat(file); err != nil {
			require.Skip(t, "nixl", "no "+file+": run make deps build")
		}
	}
	if os.Getenv("KVLEASE_NIXL") == "" {
		t.Setenv("KVLEASE_NIXL", filepath.Dir(wheel))
	}
	return demo.Programs{Prefill: []string{prefill}, Decode: []string{decode}, Node: []string{tool, "node"}}
}

func TestNIXLIsLookedForOnceInEachFolder(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Dir(exe))
	want := []string{filepath.Dir(exe), filepath.Dir(filepath.Dir(exe))}
	if diff := cmp.Diff(want, nixlFolders()); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}
}
