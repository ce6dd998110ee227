package flame

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
)

// profiler is bench/profile.py with this PATH.
func profiler(t *testing.T, path string, args ...string) (stderr string, status int) {
	t.Helper()
	python, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output() // python3 itself may be a script
	if err != nil {
		require.Skip(t, "python", err.Error())
	}
	var said strings.Builder
	cmd := exec.Command(strings.TrimSpace(string(python)), append([]string{"../../bench/profile.py"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+path)
	cmd.Stderr = &said
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return said.String(), cmd.ProcessState.ExitCode()
}

func TestWhereThereIsNoPerfOneLineSaysWhatToDo(t *testing.T) {
	for _, tc := range []struct{ name, perf, want string }{
		{"none at all", "", "apt-get install linux-perf"},
		{"not allowed", `echo "Access to performance monitoring is limited. Consider perf_event_paranoid setting" >&2; exit 255`, "sysctl kernel.perf_event_paranoid=1"},
		{"not in a container", `echo "perf_event_open(...): Operation not permitted" >&2; exit 255`, "--cap-add PERFMON"},
		{"not for this kernel", `echo "WARNING: perf not found for kernel 9.9.9" >&2; exit 2`, "linux-tools-$(uname -r)"},
		{"no counters", `echo "The cycles event is not supported." >&2; exit 255`, "EVENT=cpu-clock"},
		{"anything else", `echo "a fault" >&2; exit 1`, "perf cannot record: a fault"},
		{"nothing said", "exit 3", "perf cannot record: status 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.perf != "" {
				if err := os.WriteFile(filepath.Join(dir, "perf"), []byte("#!/bin/sh\n"+tc.perf+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			said, status := profiler(t, dir, "--out", filepath.Join(dir, "out"))
			if status != 2 || strings.Count(said, "\n") != 1 || !strings.Contains(said, tc.want) {
				t.Errorf("status %d, and %q; want 2 and one line with %q", status, said, tc.want)
			}
		})
	}
}

func TestWhatCannotBeProfiledIsSaidInALine(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"perf": "#!/bin/sh\n", "file": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out")
	for _, tc := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--out", filepath.Join(dir, "file", "out")}, 2, "remedy: --out DIR\n"},
		{[]string{"--out", out, "--build", dir}, 1, "there is no libkvlease.so in " + dir},
		{[]string{"--out", out, "--seconds", "0"}, 2, "--seconds"},
		{[]string{"--out", out, "--held", "-1"}, 2, "--held"},
	} {
		if said, status := profiler(t, dir, tc.args...); status != tc.status || strings.Contains(said, "Traceback") || !strings.Contains(said, tc.want) {
			t.Errorf("%v: status %d, and %q; want %d and %q", tc.args, status, said, tc.status, tc.want)
		}
	}
}

// The promise of make profile: of an engine in C one stack holds its own C, the core's Go, and the C that calls NIXL.
func TestOneStackHoldsGoAndCOfAnEngineInC(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds under load")
	}
	if _, err := exec.LookPath("cc"); err != nil {
		require.Skip(t, "cc", err.Error())
	}
	core := os.Getenv("KVLEASE_CORE")
	if core == "" {
		core = "../../build/libkvlease-core.so"
	}
	if _, err := os.Stat(core); err != nil {
		require.Skip(t, "core", "no libkvlease-core.so: run make build")
	}
	if found, _ := filepath.Glob("../../third_party/nixl/.nixl*.libs/libnixl_capi.so"); len(found) == 0 && os.Getenv("KVLEASE_NIXL") == "" {
		require.Skip(t, "nixl", "run make deps")
	}
	out := t.TempDir()
	said, status := profiler(t, os.Getenv("PATH"), "--build", filepath.Dir(core), "--out", out, "--only", "pair", "--seconds", "3", "--held", "500")
	if status == 2 {
		require.Skip(t, "perf", said)
	}
	if status != 0 {
		t.Fatalf("status %d: %s", status, said)
	}
	t.Log(said)
	for _, file := range []string{"pair.fp.script", "pair.folded"} {
		stacks := scriptOrFolded(t, filepath.Join(out, file))
		n, example := across(stacks)
		if n == 0 {
			t.Errorf("%s: no stack of %d has kvl_step, then dataplane.(*Plane).Step, then a kvlx_ function", file, len(stacks))
		} else {
			t.Logf("%s: %d stacks, as %s", file, n, example)
		}
	}
	picture, err := os.ReadFile(filepath.Join(out, "profile-pair.svg"))
	if err != nil {
		t.Fatal(err)
	}
	elements(t, picture)
}

func scriptOrFolded(t *testing.T, file string) []Stack {
	t.Helper()
	if !strings.HasSuffix(file, ".script") {
		return stacksOf(t, file)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stacks, err := ReadScript(f)
	if err != nil {
		t.Fatal(err)
	}
	return stacks
}

// across counts the stacks that go from libkvlease.so through the plane into the shim.
func across(stacks []Stack) (n int, example string) {
	for _, s := range stacks {
		c := slices.IndexFunc(s.Frames, func(f Frame) bool { return f.Name == "kvl_step" && strings.HasPrefix(f.File, "libkvlease.so") })
		plane := slices.IndexFunc(s.Frames, func(f Frame) bool { return f.Name == "dataplane.(*Plane).Step" })
		shim := slices.IndexFunc(s.Frames, func(f Frame) bool { return strings.HasPrefix(f.Name, "kvlx_") })
		if 0 <= c && c < plane && plane < shim {
			n++
			example = fmt.Sprint(s.Frames)
		}
	}
	return n, example
}
