package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/attach"
	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/probe"
)

func TestAMachineOnWhichAllIsWellPasses(t *testing.T) {
	for _, name := range []string{"eight-by-eight", "grace-hopper"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, name)
			r.status("0000000000000000", "0-15")
			if name == "grace-hopper" {
				r.remove("sys/class/infiniband/mlx5_1") // its port is down
			}
			report := Look(t.Context(), r.System)
			for _, l := range report.Results {
				if l.State == Warn || l.State == Fail {
					t.Errorf("%+v", l)
				}
			}
			if report.Counts[Pass] < 18 {
				t.Errorf("only %d lines pass", report.Counts[Pass])
			}
		})
	}
}

func TestTheDocumentHasEachLine(t *testing.T) {
	document, err := os.ReadFile("../../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var lines []Result
	for _, name := range []string{"far-socket", "eight-by-eight"} {
		r := newRig(t, name)
		r.put("proc/sys/kernel/numa_balancing", "1")
		r.parts()
		lines = append(lines, Look(t.Context(), r.System).Results...)
	}
	if len(lines) < 60 {
		t.Errorf("only %d lines", len(lines))
	}
	number := regexp.MustCompile("[0-9]+")
	for _, l := range lines {
		if name := "`" + number.ReplaceAllString(l.Name, "N") + "`"; !strings.Contains(string(document), name) {
			t.Errorf("docs/doctor.md says nothing of %s", name)
		}
	}
}

func TestEachHarmIsNamedWithItsRemedy(t *testing.T) {
	for _, tc := range []harmed{
		{"little locked memory with NICs", "eight-by-eight", func(r *rig) { r.limits("8388608", "65536", "1048576", "0") }, "locked memory", Fail, "8.0MB, with 10 RDMA NICs", "LimitMEMLOCK=infinity"},
		{"some locked memory with NICs", "eight-by-eight", func(r *rig) { r.limits("68719476736", "65536", "1048576", "0") }, "locked memory", Warn, "64GB", "memlock=-1"},
		{"little locked memory and the right to lock", "eight-by-eight", func(r *rig) { r.limits("65536", "65536", "1048576", "0"); r.status("0000000000004000", "0-15") }, "locked memory", Pass, "CAP_IPC_LOCK", ""},
		{"little locked memory without NICs", "no-nic", func(r *rig) { r.limits("65536", "65536", "1048576", "0") }, "locked memory", Pass, "no RDMA NIC", ""},
		{"limits that cannot be read", "no-nic", func(r *rig) { r.remove("proc/self/limits") }, "open files", Skip, "no such file", ""},
		{"little locked memory with one NIC for UCX", "eight-by-eight", func(r *rig) {
			r.limits("8388608", "65536", "1048576", "0")
			r.environ("UCX_NET_DEVICES=mlx5_3:1")
		}, "locked memory", Fail, "8.0MB, with 1 RDMA NIC", ""},
		{"little locked memory where UCX uses no NIC", "eight-by-eight", func(r *rig) {
			r.limits("8388608", "65536", "1048576", "0")
			r.environ("UCX_TLS=tcp")
		}, "locked memory", Pass, "no RDMA NIC", ""},
		{"limits without the line", "no-nic", func(r *rig) { r.put("proc/self/limits", "Limit Soft Hard") }, "locked memory", Skip, "Max locked memory", ""},
		{"few descriptors", "no-nic", func(r *rig) { r.limits("0", "1024", "4096", "0") }, "open files", Warn, "4,096, the hard limit", "65536"},
		{"very few descriptors", "no-nic", func(r *rig) { r.limits("0", "256", "256", "0") }, "open files", Fail, "256", "nofile=65536"},
		{"a soft limit that the core raises", "no-nic", func(r *rig) { r.limits("0", "1024", "524288", "0") }, "open files", Pass, "524,288", ""},
		{"the same limit in an engine that runs", "no-nic", func(r *rig) {
			r.limits("0", "1024", "524288", "0")
			if err := unixRename(r, "proc/self", "proc/77"); err != nil {
				r.t.Fatal(err)
			}
			r.PID = "77"
		}, "open files", Warn, "1,024", "65536"},
		{"no core files", "no-nic", func(r *rig) { r.limits("0", "65536", "65536", "0") }, "core files", Warn, "no core is written", "ulimit -c unlimited"},
		{"core files through a pipe", "no-nic", func(r *rig) {
			r.limits("0", "65536", "65536", "0")
			r.put("proc/sys/kernel/core_pattern", "|/lib/systemd/systemd-coredump %P")
		}, "core files", Pass, "/lib/systemd/systemd-coredump", ""},
		{"processors of a machine without sysfs", "no-nic", func(r *rig) { r.status("0", "3-4"); r.remove("sys") }, "processors", Warn, "2; the kernel", "cpuset"},
		{"two processors", "no-nic", func(r *rig) { r.status("0", "3-4") }, "processors", Warn, "2 of 32", "cpuset"},
		{"a quota, v2", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/cpu.max", "150000 100000")
			r.put("sys/fs/cgroup/engine.slice/cpu.stat", "usage_usec 5\nnr_periods 10\nnr_throttled 7")
		}, "cgroup processor time", Warn, "1.5 processors", "cpuset"},
		{"the tightest of several quotas", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/cpu.max", "400000 100000")
			r.put("sys/fs/cgroup/engine.slice/p.service/cpu.max", "100000 50000")
		}, "cgroup processor time", Warn, "2 processors", "cpuset"},
		{"how often a quota has held it up", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/cpu.max", "150000 100000")
			r.put("sys/fs/cgroup/engine.slice/cpu.stat", "nr_throttled 7")
		}, "cgroup processor time", Warn, "held up 7 times", "quota"},
		{"a quota, v1", "no-nic", func(r *rig) {
			v1(r)
			r.put("sys/fs/cgroup/cpu/p/cpu.cfs_quota_us", "50000")
			r.put("sys/fs/cgroup/cpu/p/cpu.cfs_period_us", "100000")
		}, "cgroup processor time", Warn, "0.5 processors", "cpuset"},
		{"no quota, v1", "no-nic", func(r *rig) {
			v1(r)
			r.put("sys/fs/cgroup/cpu/p/cpu.cfs_quota_us", "-1")
			r.put("sys/fs/cgroup/cpu/p/cpu.cfs_period_us", "100000")
		}, "cgroup processor time", Pass, "no limit", ""},
		{"no cgroup mounted", "no-nic", func(r *rig) { r.put("proc/self/mountinfo", "") }, "cgroup memory", Skip, "no cgroup", ""},
		{"a container whose path lies elsewhere", "no-nic", func(r *rig) {
			r.put("proc/self/cgroup", "0::/../../other")
			r.put("sys/fs/cgroup/memory.max", "1073741824")
			r.put("sys/fs/cgroup/memory.current", "536870912")
		}, "cgroup memory", Warn, "512MB of 1.0GB", "MemoryMax"},
		{"a memory limit of an engine in a container of its own", "no-nic", func(r *rig) {
			r.put("proc/77/cgroup", "0::/engine.slice/p.service") // as whoever looks sees it, and so is the root of its mount
			r.put("proc/77/mountinfo", "30 23 0:26 /engine.slice/p.service /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
			r.put("sys/fs/cgroup/engine.slice/p.service/memory.max", "1073741824")
			r.put("sys/fs/cgroup/engine.slice/p.service/memory.current", "536870912")
			r.PID = "77"
		}, "cgroup memory", Warn, "512MB of 1.0GB", "MemoryMax"},
		{"a cgroup that is not there", "no-nic", func(r *rig) { r.remove("sys/fs/cgroup") }, "cgroup memory", Skip, "not seen", ""},
		{"a cgroup of processors that is not there", "no-nic", func(r *rig) { r.remove("sys/fs/cgroup") }, "cgroup processor time", Skip, "not seen", ""},
		{"a memory limit that is no number", "no-nic", func(r *rig) { r.put("sys/fs/cgroup/engine.slice/memory.max", "-1") }, "cgroup memory", Skip, "not seen", ""},
		{"a quota that is no number", "no-nic", func(r *rig) { r.put("sys/fs/cgroup/engine.slice/cpu.max", "much 100000") }, "cgroup processor time", Skip, "not seen", ""},
		{"a quota of no period", "no-nic", func(r *rig) { r.put("sys/fs/cgroup/engine.slice/cpu.max", "5000") }, "cgroup processor time", Skip, "not seen", ""},
		{"a memory limit that cannot be read beside one that is far", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/memory.max/x", "a folder is read by nobody")
			r.put("sys/fs/cgroup/engine.slice/memory.max", "68719476736")
			r.put("sys/fs/cgroup/engine.slice/memory.current", "1073741824")
		}, "cgroup memory", Skip, "1.0GB of 64GB", ""},
		{"a memory limit of which nobody knows what is used", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/memory.max", "68719476736")
		}, "cgroup memory", Skip, "not seen", ""},
		{"the tightest of several memory limits", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/memory.max", "68719476736")
			r.put("sys/fs/cgroup/engine.slice/p.service/memory.max", "1073741824")
			r.put("sys/fs/cgroup/engine.slice/p.service/memory.current", "536870912")
		}, "cgroup memory", Warn, "512MB of 1.0GB", "MemoryMax"},
		{"isolated processors among the process's", "no-nic", func(r *rig) { r.put("sys/devices/system/cpu/isolated", "8-31") }, "isolated processors", Warn, "8 of the process's 16", "taskset"},
		{"isolated processors that are not told", "no-nic", func(r *rig) { r.remove("sys/devices/system/cpu/isolated") }, "isolated processors", Skip, "not seen", ""},
		{"isolated processors that are no list", "no-nic", func(r *rig) { r.put("sys/devices/system/cpu/isolated", "all") }, "isolated processors", Skip, "no list of processors", ""},
		{"isolated processors of others", "no-nic", func(r *rig) { r.put("sys/devices/system/cpu/isolated", "16-31") }, "isolated processors", Pass, "16 are isolated", ""},
		{"one isolated processor for one loop", "no-nic", func(r *rig) { r.put("sys/devices/system/cpu/isolated", "8-31"); r.status("0", "9") }, "isolated processors", Pass, "only one", ""},
		{"a slow governor", "no-nic", func(r *rig) { r.put("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave") }, "frequency governor", Warn, "performance on 1, powersave on 1", "cpupower"},
		{"no governor", "no-nic", func(r *rig) { r.remove("sys/devices/system/cpu/cpu0"); r.remove("sys/devices/system/cpu/cpu1") }, "frequency governor", Skip, "does not control", ""},
		{"a governor where sysfs is not mounted", "no-nic", func(r *rig) { r.remove("sys") }, "frequency governor", Skip, "not seen", ""},
		{"a slow clock source", "no-nic", func(r *rig) { r.put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet") }, "clock source", Warn, "hpet", "tsc hpet acpi_pm"},
		{"a fast clock source that is slow here", "no-nic", func(r *rig) { r.Clock = func() time.Duration { return 2 * time.Microsecond } }, "clock source", Warn, "tsc, 2000 ns", "dmesg"},
		{"a memory limit that is near", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/memory.max", "8589934592")
			r.put("sys/fs/cgroup/engine.slice/memory.current", "7516192768")
		}, "cgroup memory", Warn, "7.0GB of 8.0GB", "MemoryMax"},
		{"a memory limit that is far", "no-nic", func(r *rig) {
			r.put("sys/fs/cgroup/engine.slice/memory.max", "68719476736")
			r.put("sys/fs/cgroup/engine.slice/memory.current", "1073741824")
		}, "cgroup memory", Pass, "1.0GB of 64GB", ""},
		{"no memory limit, v1", "no-nic", func(r *rig) { v1(r); r.put("sys/fs/cgroup/memory/p/memory.limit_in_bytes", "9223372036854771712") }, "cgroup memory", Pass, "no limit", ""},
		{"a memory limit, v1", "no-nic", func(r *rig) {
			v1(r)
			r.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824")
			r.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "10485760")
		}, "cgroup memory", Warn, "10MB of 1.0GB", "--memory"},
		{"a memory limit of v1 that is not mounted here", "no-nic", func(r *rig) {
			v1(r)
			r.put("sys/fs/cgroup/unified/cgroup.procs", "")
			r.put("proc/self/mountinfo", "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")
		}, "cgroup memory", Skip, "no cgroup", ""},
		{"docker's shared memory", "no-nic", func(r *rig) { r.Room = func(string) (uint64, uint64, error) { return 60 << 20, 64 << 20, nil } }, "/dev/shm", Fail, "60MB free of 64MB", "--shm-size"},
		{"little shared memory", "no-nic", func(r *rig) { r.Room = func(string) (uint64, uint64, error) { return 600 << 20, 2 << 30, nil } }, "/dev/shm", Warn, "600MB free", "remount"},
		{"no shared memory", "no-nic", func(r *rig) { r.Room = func(string) (uint64, uint64, error) { return 0, 0, unix.ENOENT } }, "/dev/shm", Fail, "no such file", "mount -t tmpfs"},
		{"shared memory of another user's process", "no-nic", func(r *rig) { r.Room = func(string) (uint64, uint64, error) { return 0, 0, unix.EACCES } }, "/dev/shm", Skip, "permission denied", ""},
		{"shared memory without a limit", "no-nic", func(r *rig) { r.Room = func(string) (uint64, uint64, error) { return 0, 0, nil } }, "/dev/shm", Pass, "no limit", ""},
		{"shared memory that is only read", "no-nic", func(r *rig) { r.tryFails(unix.EROFS) }, "/dev/shm", Fail, "read-only file system", "remount,rw"},
		{"shared memory with as many files as it takes", "no-nic", func(r *rig) { r.tryFails(unix.ENOSPC) }, "/dev/shm", Fail, "no file of 16MB", "nr_inodes"},
		{"shared memory of others", "no-nic", func(r *rig) { r.tryFails(unix.EACCES) }, "/dev/shm", Fail, "permission denied", "1777"},
		{"a limit of files", "no-nic", func(r *rig) { r.tryFails(unix.EFBIG) }, "/dev/shm", Fail, "file too large", "LimitFSIZE"},
		{"shared memory without unnamed files", "no-nic", func(r *rig) { r.tryFails(unix.EOPNOTSUPP) }, "/dev/shm", Fail, "not supported", "O_TMPFILE"},
		{"another process's shared memory that is only read", "no-nic", func(r *rig) { r.PID = "77"; r.tryFails(unix.EROFS) }, "/dev/shm", Fail, "read-only file system", "remount,rw"},
		{"another process's that this one may not write to", "no-nic", func(r *rig) { r.PID = "77"; r.tryFails(unix.EACCES) }, "/dev/shm", Skip, "permission denied; 8.0GB free", ""},
		{"a process on both sockets", "far-socket", func(r *rig) { r.status("0", "0-127") }, "NUMA", Warn, "node 0,1", "numactl --cpunodebind=N --preferred=N (GPU 0: 0"},
		{"a process on one socket", "far-socket", func(r *rig) { r.status("0", "32-39") }, "NUMA", Pass, "node 1", ""},
		{"pages that the kernel moves", "far-socket", func(r *rig) { r.put("proc/sys/kernel/numa_balancing", "1") }, "NUMA balancing", Warn, "on", "numa_balancing=0"},
		{"pages that the kernel moves between nodes and tiers", "far-socket", func(r *rig) { r.put("proc/sys/kernel/numa_balancing", "3") }, "NUMA balancing", Warn, "on", "numa_balancing=0"},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}

// hold does harm to a machine and looks at a line.
func hold(t *testing.T, machine string, harm func(*rig), line string, want State, value, fix string) {
	t.Helper()
	r := newRig(t, machine)
	harm(r)
	got := r.line(line)
	if got.State != want || !strings.Contains(got.Value, value) || !strings.Contains(got.Fix, fix) {
		t.Errorf("%+v\nwant %s with %q and %q", got, want, value, fix)
	}
}

// v1 mounts the controllers one by one, as older systems do.
func v1(r *rig) {
	r.put("sys/fs/cgroup/memory/p/memory.stat", "")
	r.put("sys/fs/cgroup/cpu/p/cpu.stat", "")
	r.put("proc/self/cgroup", "9:name=systemd:/\n4:memory:/p\n1:cpu,cpuacct:/p\n0::/")
	r.put("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"+
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")
}

func TestEachHarmToLibrariesAndPeersIsNamedWithItsRemedy(t *testing.T) {
	for _, tc := range []struct {
		name       string
		harm       func(r *rig)
		line       string
		want       State
		value, fix string
	}{
		{"no NIXL", func(r *rig) {
			r.FindNIXL = func() (cnixl.Library, error) { return cnixl.Library{}, errors.New("nothing at /x") }
		}, "NIXL", Fail, "nothing at /x", "pip install nixl"},
		{"a NIXL without plugins", func(r *rig) {
			r.FindNIXL = func() (cnixl.Library, error) { return cnixl.Library{File: "/w/libnixl_capi.so"}, nil }
		}, "NIXL", Fail, "no plugins", "NIXL_PLUGIN_DIR"},
		{"a NIXL that forgets reads", func(r *rig) {
			r.FindNIXL = func() (cnixl.Library, error) {
				return cnixl.Library{File: "/w/libnixl_capi.so", Plugins: "/w/plugins", Version: "1.4.1", How: "wheel"}, nil
			}
		}, "NIXL", Warn, "1.4.1, /w/libnixl_capi.so", "nixl>=1.5"},
		{"a NIXL of the next generation", func(r *rig) {
			r.FindNIXL = func() (cnixl.Library, error) {
				return cnixl.Library{File: "/w/libnixl_capi.so", Plugins: "/w/plugins", Version: "2.0.0", How: "wheel"}, nil
			}
		}, "NIXL", Pass, "2.0.0", ""},
		{"a NIXL that only the loader may know", func(r *rig) { r.FindNIXL = func() (cnixl.Library, error) { return cnixl.Library{}, nil } }, "NIXL", Skip, "loader", ""},
		{"a NIXL that does not load", func(r *rig) {
			r.LoadNIXL = func(cnixl.Library) error { return errors.New("libcudart.so.12: cannot open") }
			r.put("proc/self/maps", "")
		}, "UCX", Fail, "libcudart.so.12", "LD_DEBUG"},
		{"a UCX that was loaded and has no way", func(r *rig) {
			r.LoadNIXL = func(cnixl.Library) error { return errors.New("NIXL cannot make its UCX backend") }
			r.put("proc/self/maps", "7f02-7f03 r-xp 0 fe:00 2 /w/nixl.libs/libucp-b39b3ed9.so.0.0.0")
		}, "UCX", Fail, "UCX backend", "UCX_LOG_LEVEL"},
		{"a NIXL that was not loaded", func(*rig) {}, "UCX", Skip, "--no-load", ""},
		{"a NIXL without its UCX", func(r *rig) {
			r.put("proc/self/maps", "7f00-7f01 r-xp 0 fe:00 1 /w/.nixl.mesonpy.libs/libnixl.so")
		}, "copies", Pass, "one NIXL and no UCX", ""},
		{"a UCX without a NIXL", func(r *rig) {
			r.put("proc/self/maps", "7f02-7f03 r-xp 0 fe:00 2 /w/nixl.libs/libucp-b39b3ed9.so.0.0.0")
		}, "copies", Pass, "one UCX and no NIXL", ""},
		{"a second UCX", func(r *rig) {
			r.put("proc/self/maps", "7f02-7f03 r-xp 0 fe:00 2 /w/nixl.libs/libucp-b39b3ed9.so.0.0.0\n7f04-7f05 r-xp 0 fe:00 3 /opt/hpcx/ucx/lib/libucp.so.0.0.0")
		}, "copies", Fail, "/opt/hpcx/ucx/lib/libucp.so.0.0.0", "KVLEASE_NIXL"},
		{"a second NIXL", func(r *rig) {
			r.put("proc/self/maps", "1-2 r-xp 0 fe:00 2 /a/libnixl.so\n3-4 r-xp 0 fe:00 3 /b/libnixl.so (deleted)")
		}, "copies", Fail, "/b/libnixl.so", "remove the other"},
		{"one of each", func(*rig) {}, "copies", Pass, "one NIXL and one UCX in this process", ""},
		{"neither", func(r *rig) { r.put("proc/self/maps", "1-2 r-xp 0 fe:00 2 /lib/libc.so.6") }, "copies", Skip, "neither", ""},
		{"maps of another user's process", func(r *rig) { r.remove("proc/self/maps") }, "copies", Skip, "may not be seen", ""},
		{"an environment of another user's process", func(r *rig) { r.Environ = func() ([]string, error) { return nil, unix.EACCES } }, "environment", Skip, "permission denied", ""},
		{"no right to trace", func(r *rig) {
			r.Trace = func() error {
				return &probe.Missing{What: "this process lacks CAP_BPF", Remedy: "setcap cap_bpf,cap_perfmon+ep kvlease"}
			}
		}, "kvlease trace", Warn, "lacks CAP_BPF", "setcap"},
		{"a kernel that traces slowly", func(r *rig) { r.Caveats = func() []string { return []string{"each hit costs 5 us"} } }, "kvlease trace", Pass, "5 us", ""},
		{"a peer that nobody is", func(r *rig) {
			r.peer("h:1", nil, &attach.Explained{Err: errors.New("dial h:1: refused"), Hint: "nobody listens there: the side channel of a stock engine"})
		}, "h:1", Fail, "dial h:1: refused", "nobody listens there: the side channel of a stock engine"},
		{"a peer that is silent", func(r *rig) { r.peer("h:1", nil, errors.New("no answer")) }, "h:1", Fail, "no answer", "kvlease attach h:1"},
		{"a peer of ours", func(r *rig) {
			r.peer("h:1", &attach.Report{EngineID: "P", Speaks: "kvlease", TP: 2, PP: 1, RoundTrip: attach.Spread{N: 3, LeastMs: 0.12}, AheadMs: -1.5}, nil)
		}, "h:1", Pass, "engine P, kvlease, TP 2, PP 1; handshake in 0.120 ms (least of 3), clock -1.500 ms", ""},
		{"a peer with something to say", func(r *rig) { r.peer("h:1", &attach.Report{EngineID: "P", Notes: []string{"100% odd"}}, nil) }, "h:1", Warn, "engine P", "kvlease attach h:1"},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, "no-nic", tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}

// peer makes an engine answer.
func (r *rig) peer(addr string, report *attach.Report, err error) {
	r.Peers = append(r.Peers, addr)
	r.Ask = func(context.Context, string) (*attach.Report, error) { return report, err }
}

// unixRename moves a file of the rig.
func unixRename(r *rig, from, to string) error { return unix.Rename(r.dir+"/"+from, r.dir+"/"+to) }

// TestALibraryThatStandsStillIsSaidAndTheRestIsLookedAt: a driver that waits for its GPU waits for ever, and that is when its machine is looked at.
func TestALibraryThatStandsStillIsSaidAndTheRestIsLookedAt(t *testing.T) {
	r := newRig(t, "eight-by-eight")
	never := t.Context().Done()
	r.CUDA = func() (*CUDA, error) { <-never; return nil, nil }
	r.LoadNIXL = func(cnixl.Library) error { <-never; return nil }
	r.look(t.Context())
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx      context.Context
		patience time.Duration
		state    State
		value    string
	}{{t.Context(), time.Nanosecond, Fail, "no answer in 1ns"}, {cancelled, time.Hour, Skip, "interrupted"}} {
		r.Patience = tc.patience
		for fix, check := range map[string]check{"gpu-reset": driverAPI, "UCX_LOG_LEVEL": nixlLoads} {
			l := check(tc.ctx, r.System)[0]
			if l.State != tc.state || !strings.Contains(l.Value, tc.value) || tc.state == Fail && !strings.Contains(l.Fix, fix) {
				t.Errorf("%+v, want %s with %q", l, tc.state, tc.value)
			}
		}
	}
	r.host.GPUErr = fmt.Errorf("%w in 1ns", errSilent)
	if l := gpuDriver(t.Context(), r.System)[0]; l.State != Fail || !strings.Contains(l.Value, "no answer in 1ns; 8 NVIDIA GPUs on the bus") || !strings.Contains(l.Fix, "gpu-reset") {
		t.Errorf("%+v", l)
	}
}

func TestTheReportIsForPeopleAndPrograms(t *testing.T) {
	r := newRig(t, "eight-by-eight")
	r.limits("8388608", "65536", "65536", "0")
	r.environ("UCX_NET_DEVICES=mlx5_0:1")
	report := Look(t.Context(), r.System)
	var text bytes.Buffer
	if err := report.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"limits\n  fail  locked memory ", "        why  each NIC locks", "        fix  ulimit -l unlimited", "settings for the rank on GPU 7\n",
		"  # UCX_NET_DEVICES is mlx5_0:1 already, and stays so\n", "  export UCX_IB_GPU_DIRECT_RDMA=yes\n", fmt.Sprintf("%d pass, %d warn, 1 fail", report.Counts[Pass], report.Counts[Warn]),
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	out, err := json.Marshal(report)
	var back Report
	if err := errors.Join(err, json.Unmarshal(out, &back)); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != len(report.Results) || back.Counts[Fail] != 1 || len(back.Settings) != 8 || back.Settings[3].NICs[0] != "mlx5_3" {
		t.Errorf("%s", out)
	}
}

func TestSettingsOfOneGPUAreLinesForAShell(t *testing.T) {
	r := newRig(t, "eight-by-eight")
	set, err := SettingsOf(t.Context(), r.System, 3)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if err := set.WriteShell(&text); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text.String()) {
		if l := strings.TrimSpace(line); !strings.HasPrefix(l, "#") && !strings.HasPrefix(l, "export UCX_") {
			t.Errorf("%q", l)
		}
	}
	if !strings.Contains(text.String(), "export UCX_NET_DEVICES=mlx5_3:1\n") {
		t.Errorf("%s", text.String())
	}
	if _, err := SettingsOf(t.Context(), r.System, 8); err == nil || !strings.Contains(err.Error(), "no GPU 8") {
		t.Errorf("%v", err)
	}
	for value, want := range map[string]string{"mlx5_0:1,mlx5_1:1": "mlx5_0:1,mlx5_1:1", "": "''", "a b": "'a b'", "it's": `'it'\''s'`, "$(x)": "'$(x)'", "a\nb": `'"a\nb"'`} {
		if got := shellQuote(value); got != want {
			t.Errorf("%q is %s, want %s", value, got, want)
		}
	}
}
