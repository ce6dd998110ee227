package cnixl

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// wheel makes a folder as an unpacked wheel has it.
func wheel(t *testing.T, root, version string) (folder, file string) {
	t.Helper()
	folder = filepath.Join(root, "wheel [1]")
	libs := filepath.Join(folder, ".nixl_cu12.mesonpy.libs")
	for _, dir := range []string{filepath.Join(libs, "plugins"), filepath.Join(folder, "nixl_cu12-"+version+".dist-info"), filepath.Join(folder, "nixl-9.9.dist-info")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	file = filepath.Join(libs, capiName)
	for _, f := range []string{file, filepath.Join(libs, "plugins", "libplugin_UCX.so")} {
		if err := os.WriteFile(f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return folder, file
}

func TestTheSearchTakesTheFirstThatIsNamed(t *testing.T) {
	dir := t.TempDir()
	folder, file := wheel(t, dir, "1.5.1")
	found := func(how string) Library {
		return Library{File: file, Plugins: filepath.Join(filepath.Dir(file), "plugins"), Version: "1.5.1", How: how}
	}
	mapped := []string{"/lib/libc.so.6", filepath.Join(filepath.Dir(file), "libnixl.so")}
	hashed := []string{filepath.Join(filepath.Dir(file), "libnixl-0a1b2c3d.so.1.5")}
	alone := filepath.Join(dir, "alone.so")
	if err := os.WriteFile(alone, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, filepath.Join(dir, "nixl")); err != nil {
		t.Fatal(err)
	}
	linked := Library{
		File:    filepath.Join(dir, "nixl", ".nixl_cu12.mesonpy.libs", capiName),
		Plugins: filepath.Join(dir, "nixl", ".nixl_cu12.mesonpy.libs", "plugins"),
		Version: "1.5.1", How: "wheel",
	}
	for _, tc := range []struct {
		name string
		s    search
		want Library
	}{
		{"the configured file", search{path: file, env: "/nowhere"}, found("config")},
		{"the configured folder", search{path: folder, maps: mapped}, found("config")},
		{"a file without a wheel around it", search{path: alone}, Library{File: alone, Version: "unknown", How: "config"}},
		{"the environment before what is mapped", search{env: folder, maps: []string{"/x/libnixl.so"}}, found("KVLEASE_NIXL")},
		{"what is mapped before a folder", search{maps: mapped, folders: []string{"/nowhere"}}, found("mapped")},
		{"a mapped library with a hash in its name", search{maps: hashed}, found("mapped")},
		{"a folder", search{folders: []string{"/nowhere", folder}}, found("wheel")},
		{"nixl below a folder", search{folders: []string{dir}}, linked},
		{"the loader at the end", search{maps: []string{"/lib/libnixlbus.so"}, folders: []string{"/nowhere"}}, Library{Version: "unknown", How: "loader"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := find(tc.s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("found (-want +got):\n%s", diff)
			}
		})
	}
}

func TestANamedLibraryMustBeThere(t *testing.T) {
	folder, _ := wheel(t, t.TempDir(), "1.5.1")
	for _, s := range []search{
		{path: "/nowhere/libnixl_capi.so", env: folder, folders: []string{folder}},
		{env: "/nowhere", folders: []string{folder}},
		{maps: []string{"/elsewhere/libnixl.so"}, folders: []string{folder}},
	} {
		lib, err := find(s)
		named := s.path + s.env + strings.Join(s.maps, "")
		if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), named[:8]) {
			t.Errorf("%+v: found %+v, %v; want ErrUnavailable that names it", s, lib, err)
		}
	}
}

func TestWithoutNIXLTheErrorSaysWhereItWasLookedFor(t *testing.T) {
	if !alone(t, "KVLEASE_NIXL=", "LD_LIBRARY_PATH=") {
		return
	}
	_, err := Open(Config{Agent: "a", Folders: []string{"/opt/one", "/opt/two"}})
	if err == nil {
		t.Skip("the loader finds a NIXL on this machine")
	}
	for _, want := range []string{"KVLEASE_NIXL not set", "none mapped", "/opt/one, /opt/two", "loader: " + capiName} {
		if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), want) { // shows C72.1
			t.Errorf("%v\nwant ErrUnavailable that says %q", err, want)
		}
	}
}

func TestTheSymbolListIsTheShims(t *testing.T) {
	b, err := os.ReadFile("../third_party/nixl_symbols.txt")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			listed = append(listed, line)
		}
	}
	used := Symbols()
	slices.Sort(used)
	if diff := cmp.Diff(used, listed); diff != "" { // shows C72.3
		t.Errorf("third_party/nixl_symbols.txt (-used +listed):\n%s", diff)
	}
}

func TestOnlyNICsMakeAFenceFast(t *testing.T) {
	for tls, want := range map[string]bool{
		"": false, "all": false, "tcp": false, "rc": true, "rc,cuda": true, "rc_x,dc_x,self,cuda_copy,cuda_ipc,gdr_copy": true, "ib": true,
		"rc,tcp": false, "rc,sm": false, "rc,posix": false, "^tcp": false, "ud": false, "rc,ud_v": true, "self": false, " rc , self ": true,
	} {
		if got := fastFence(tls); got != want {
			t.Errorf("UCX_TLS=%q is fast: %v, want %v", tls, got, want)
		}
	}
}
