package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/internal/fakelib"
	"github.com/kvlease/kvlease/internal/require"
)

func TestMain(m *testing.M) {
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

var built = fakelib.Once{Build: func(dir string) (string, error) { return fakenvml.Build(dir, "libfakenvml.so") }}

// rig is a machine in a folder on which all is well, and what its process says of itself.
type rig struct {
	*System
	t   *testing.T
	dir string
}

func newRig(t *testing.T, name string) *rig {
	t.Helper()
	library, err := built.Path()
	require.Compiled(t, err)
	m, err := machine.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.Build(dir); err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir}
	r.System = &System{
		Proc: dir + "/proc", Sys: dir + "/sys", Dev: dir + "/dev", Shm: "/dev/shm", Root: dir, PID: "self", Kernel: "6.8.0", Arch: cmp.Or(m.Arch, "amd64"), NVML: library, Watch: time.Nanosecond, Patience: time.Hour,
		Environ: func() ([]string, error) { return []string{"HOME=/root"}, nil },
		FindNIXL: func() (cnixl.Library, error) {
			return cnixl.Library{File: "/w/libnixl_capi.so", Plugins: "/w/plugins", Version: "1.5.1", How: "wheel"}, nil
		},
		CUDA: func() (*CUDA, error) {
			return &CUDA{Version: "12.4", File: "/lib/libcuda.so.1", Devices: []cuda.Features{
				{RDMA: true, RDMAWithVMM: true, FlushHost: true, Ordering: cuda.OrderingOwner, DMABuf: true, PCI: "0000:1b:00.0"},
			}}, nil
		},
		Trace: func() error { return nil }, Caveats: func() []string { return nil },
		Room:    func(string) (uint64, uint64, error) { return 8 << 30, 16 << 30, nil },
		TryFile: func(string, int64) error { return nil },
		Clock:   func() time.Duration { return 25 * time.Nanosecond },
		Ask:     func(context.Context, string) (*attach.Report, error) { return nil, errors.New("nobody is asked") },
	}
	r.Env = func(name string) (string, bool) { return r.lookup(name) }
	for _, line := range m.Script() {
		r.tell(line)
	}
	t.Cleanup(func() { r.tell("reset") })
	r.limits("unlimited", "65536", "1048576", "unlimited")
	r.status("0000000000000000", "0-15")
	r.put("proc/self/cgroup", "0::/engine.slice/p.service")
	r.put("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
	r.put("proc/self/maps", "7f00-7f01 r-xp 0 fe:00 1 /w/.nixl.mesonpy.libs/libnixl.so\n7f02-7f03 r-xp 0 fe:00 2 /w/nixl.libs/libucp-b39b3ed9.so.0.0.0\n7f04-7f05 r-xp 0 fe:00 2 /w/nixl.libs/libucp-b39b3ed9.so.0.0.0")
	r.put("proc/sys/kernel/core_pattern", "core.%p")
	r.put("proc/sys/kernel/numa_balancing", "0")
	r.put("sys/fs/cgroup/engine.slice/p.service/cpu.max", "max 100000")
	r.put("sys/fs/cgroup/engine.slice/memory.max", "max")
	r.put("sys/devices/system/cpu/online", "0-31")
	r.put("sys/devices/system/cpu/isolated", "")
	for c := range 2 {
		r.put(fmt.Sprintf("sys/devices/system/cpu/cpu%d/cpufreq/scaling_governor", c), "performance")
	}
	r.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc")
	r.put("sys/devices/system/clocksource/clocksource0/available_clocksource", "tsc hpet acpi_pm")
	r.put("dev/kmsg", "6,1,0,-;Linux version 6.8.0")
	return r
}

func (r *rig) put(name, text string) {
	r.t.Helper()
	name = filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text+"\n"), 0o644); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// limits are those of the process, as /proc has them.
func (r *rig) limits(locked, files, filesHard, core string) {
	r.t.Helper()
	r.put("proc/self/limits", fmt.Sprintf("%-25s %-20s %-20s %s\n%-25s %-20s %-20s %s\n%-25s %-20s %-20s %s\n%-25s %-20s %-20s %s", "Limit", "Soft Limit", "Hard Limit", "Units",
		"Max core file size", core, "unlimited", "bytes", "Max open files", files, filesHard, "files", "Max locked memory", locked, locked, "bytes"))
}

// tryFails lets no file be made in shared memory.
func (r *rig) tryFails(err error) {
	r.TryFile = func(dir string, _ int64) error { return &os.PathError{Op: "open", Path: dir, Err: err} }
}

func (r *rig) status(caps, cpus string) {
	r.t.Helper()
	r.put("proc/self/status", "Name:\tengine\nCapEff:\t"+caps+"\nCpus_allowed_list:\t"+cpus)
}

func (r *rig) tell(line string) {
	r.t.Helper()
	if _, err := fakenvml.Control(r.NVML, line); err != nil {
		r.t.Fatal(err)
	}
}

// rebuild makes the machine anew with ports that redirect.
func (r *rig) rebuild(redirect ...string) {
	r.t.Helper()
	m, err := machine.Load("eight-by-eight")
	if err != nil {
		r.t.Fatal(err)
	}
	m.Redirect = redirect
	bridges, err := filepath.Glob(filepath.Join(r.dir, "sys/devices/pci*"))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, dir := range append(bridges, filepath.Join(r.dir, "sys/bus"), filepath.Join(r.dir, "sys/class")) {
		if err := os.RemoveAll(dir); err != nil {
			r.t.Fatal(err)
		}
	}
	if err := m.Build(r.dir); err != nil {
		r.t.Fatal(err)
	}
}

// parts makes two instances of GPU 0, of which the second is not in the second place.
func (r *rig) parts() {
	r.tell("mig 0 1 1")
	r.tell("instance 0 0 NVIDIA_L40S_MIG_1g.12gb 10737418240")
	r.tell("instance 0 3 NVIDIA_L40S_MIG_3g.48gb 42949672960")
}

// devices are those that the driver's API tells of.
func (r *rig) devices(f ...cuda.Features) {
	r.CUDA = func() (*CUDA, error) { return &CUDA{Version: "12.4", File: "/lib/libcuda.so.1", Devices: f}, nil }
}

// environ is what the process has in its environment.
func (r *rig) environ(vars ...string) { r.Environ = func() ([]string, error) { return vars, nil } }

// line is the one of that name; of several the worst.
func (r *rig) line(name string) Result {
	r.t.Helper()
	rank := map[State]int{Skip: 0, Pass: 1, Warn: 2, Fail: 3}
	found := Result{State: "none"}
	report := Look(r.t.Context(), r.System)
	for _, l := range report.Results {
		if (l.State == Warn || l.State == Fail) && (l.Why == "" || l.Fix == "") {
			r.t.Errorf("no reason or no remedy: %+v", l)
		}
		if strings.Contains(l.Why+l.Fix+l.Value, "%!") {
			r.t.Errorf("a text that was not filled in: %+v", l)
		}
		if l.Name == name && (found.State == "none" || rank[l.State] > rank[found.State]) {
			found = l
		}
	}
	return found
}
