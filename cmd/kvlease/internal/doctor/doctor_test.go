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
	"github.com/kvlease/kvlease/cuda"
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

func TestEachHarmToGPUsAndNICsIsNamedWithItsRemedy(t *testing.T) {
	for _, tc := range []harmed{
		{"GPUs where sysfs is not mounted", "no-nic", func(r *rig) { r.remove("sys"); r.tell("fail Init_v2 1 12") }, "driver", Skip, "not seen", ""},
		{"NICs where sysfs is not mounted", "no-nic", func(r *rig) { r.remove("sys"); r.tell("fail Init_v2 1 12") }, "NICs", Skip, "not seen", ""},
		{"no GPU and no library", "no-nic", func(r *rig) { r.remove("sys/bus/pci/devices"); r.tell("fail Init_v2 1 12") }, "driver", Skip, "no NVIDIA GPU on the bus", ""},
		{"GPUs and no driver", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 9") }, "driver", Fail, "not loaded; 2 NVIDIA GPUs on the bus (0000:01:00.0", "modprobe nvidia"},
		{"a driver that was updated", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 18") }, "driver", Fail, "another version", "reboot"},
		{"no rights", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 4") }, "driver", Fail, "may not open", "/dev/nvidia"},
		{"an old driver", "no-nic", func(r *rig) { r.tell("driver 470.82.01 11040") }, "driver", Fail, "too old", "525.60.13"},
		{"something unheard of", "no-nic", func(r *rig) { r.tell("fail Init_v2 1 777") }, "driver", Fail, "777", "dmesg"},
		{"a driver of closed modules", "far-socket", func(*rig) {}, "driver", Pass, "535.161.07, CUDA 12.2, closed kernel modules; 4 GPUs", ""},
		{"a driver of open modules", "grace-hopper", func(*rig) {}, "driver", Pass, "CUDA 12.6, open kernel modules; 1 GPU", ""},
		{"a lost GPU", "far-socket", func(r *rig) { r.tell("lost 2 1") }, "GPU 2", Fail, "fallen off the bus", "reboot"},
		{"its neighbour", "far-socket", func(r *rig) { r.tell("lost 2 1") }, "GPU 1", Pass, "NVIDIA A100-PCIE-40GB at 0000:18:00.0, 40GB; BAR1 64GB, 64GB free; ECC on, 0 uncorrected; NUMA node 0", ""},
		{"uncorrected errors", "no-nic", func(r *rig) { r.tell("ecc 0 1 1 3") }, "GPU 0", Fail, "3 uncorrected", "gpu-reset -i 0"},
		{"a row that waits", "no-nic", func(r *rig) { r.tell("remap 0 1 0 1 0") }, "GPU 0", Warn, "waits to be remapped", "reset"},
		{"rows that were remapped", "no-nic", func(r *rig) { r.tell("remap 0 1 2 0 0") }, "GPU 0", Pass, "3 rows remapped", ""},
		{"no window", "no-nic", func(r *rig) { r.tell("bar1 1 0 0") }, "GPU 1", Warn, "BAR1 is 0B, 0B of it free, for 45GB", "Resizable BAR"},
		{"a window of which more is free than there is", "no-nic", func(r *rig) { r.tell("bar1 1 268435456 536870912") }, "GPU 1", Warn, "BAR1 is 256MB, 256MB of it free", "Resizable BAR"},
		{"a window of which nothing is told", "no-nic", func(r *rig) { r.tell("fail DeviceGetBAR1MemoryInfo 2 3") }, "GPU 1", Pass, "45GB; BAR1 not told", ""},
		{"two GPUs at one address", "no-nic", func(r *rig) { r.tell("gpu 2 0000:01:00.0 B") }, "GPU 2", Warn, "GPU 0 at the same address", "lspci"},
		{"a narrow window", "no-nic", func(r *rig) { r.tell("bar1 1 268435456 16777216") }, "GPU 1", Warn, "BAR1 is 256MB, 240MB of it free, for 45GB", "Resizable BAR"},
		{"MIG without an instance", "no-nic", func(r *rig) { r.tell("mig 0 1 1") }, "GPU 0", Fail, "no instance", "nvidia-smi mig -i 0 -cgi"},
		{"MIG with two", "no-nic", func(r *rig) {
			r.parts()
			r.environ("CUDA_VISIBLE_DEVICES=MIG-0000fa4e-0000-0000-0003-000000000000")
		}, "GPU 0's instances", Pass, "MIG 1g.12gb of 10GB, 10GB free: CUDA_VISIBLE_DEVICES=MIG-0000fa4e-0000-0000-0000-000000000000; MIG 3g.48gb", ""},
		{"MIG with two, and a process that names none", "no-nic", func(r *rig) { r.parts() }, "GPU 0's instances", Warn, "MIG 3g.48gb", "CUDA_VISIBLE_DEVICES=MIG-0000fa4e"},
		{"a GPU in MIG mode", "no-nic", func(r *rig) { r.parts() }, "GPU 0", Pass, "MIG on", ""},
		{"an Xid now", "no-nic", func(r *rig) { r.tell("xid 0 79") }, "GPU 0", Fail, "Xid 79", "dmesg"},
		{"an Xid in the log", "no-nic", func(r *rig) {
			r.put("dev/kmsg", "4,900,1,-;NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=python, MMU Fault\n4,901,2,-;NVRM: Xid (PCI:0000:01:00): 31, pid=8, name=python\n"+
				"4,902,3,-;NVRM: Xid (PCI:0000:02:00): 95, pid='<unknown>', Uncontained")
		}, "Xid errors", Fail, "Xid 31, an application's error on 0000:01:00; Xid 95, uncontained ECC error on 0000:02:00", "catalogue"},
		{"a program's Xid in the log", "no-nic", func(r *rig) { r.put("dev/kmsg", "4,900,1,-;NVRM: Xid (PCI:0000:01:00): 13, pid=7") }, "Xid errors", Warn, "Xid 13", "dmesg"},
		{"a log that may not be read", "no-nic", func(r *rig) { r.remove("dev/kmsg") }, "Xid errors", Skip, "kernel's log", ""},
		{"the driver's API", "no-nic", func(*rig) {}, "CUDA", Pass, "driver for 12.4, /lib/libcuda.so.1; 1 visible", ""},
		{"a driver's API that refuses", "no-nic", func(r *rig) {
			r.CUDA = func() (*CUDA, error) {
				return nil, fmt.Errorf("open: %w", &cuda.Error{Call: "cuInit", Code: 100, Cause: "the driver sees no GPU", Fix: "--gpus all"})
			}
		}, "CUDA", Fail, "the driver sees no GPU", "--gpus all"},
		{"a driver's API that is not there", "no-nic", func(r *rig) { r.CUDA = func() (*CUDA, error) { return nil, errors.New("libcuda.so.1: no such file") } }, "CUDA", Fail, "libcuda.so.1", "nvidia-smi"},
		{"no GPU to ask for", "no-nic", func(r *rig) { r.remove("sys/bus/pci/devices"); r.tell("fail Init_v2 1 12") }, "CUDA", "none", "", ""},
		{"a device for NICs", "eight-by-eight", func(*rig) {}, "device 0", Pass,
			"0000:1b:00.0, GPUDirect RDMA, GPUDirect RDMA of VMM memory, dma-buf, NICs' writes are ordered for the device itself, flush from the host", ""},
		{"a device for no NIC", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{PCI: "0000:01:00.0"}) }, "device 0", Fail, "no GPUDirect RDMA", "consumer cards"},
		{"a device by dma-buf alone", "grace-hopper", func(r *rig) { r.devices(cuda.Features{DMABuf: true, FlushHost: true}) }, "device 0", Warn, "no GPUDirect RDMA, no GPUDirect RDMA of VMM memory, dma-buf", "expandable_segments"},
		{"a device whose reads cannot be proven", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{RDMA: true, RDMAWithVMM: true}) }, "device 0", Fail, "ordered for nobody", "host memory"},
		{"a device without dma-buf, and no module", "grace-hopper", func(r *rig) { r.devices(cuda.Features{RDMA: true, FlushHost: true}) }, "device 0", Fail, "no dma-buf", "nvidia_peermem"},
		{"a device that gives no mapped memory", "eight-by-eight", func(r *rig) { r.devices(cuda.Features{RDMA: true, Ordering: cuda.OrderingAll}) }, "device 0", Warn, "no GPUDirect RDMA of VMM", "expandable_segments"},
		{"GPUs without NICs", "no-nic", func(*rig) {}, "NICs", Warn, "no RDMA device", "modprobe mlx5_ib"},
		{"a NIC that is down", "grace-hopper", func(*rig) {}, "mlx5_1", Warn, "port 1 down, Disabled, Ethernet", "subnet manager"},
		{"a NIC that is up", "grace-hopper", func(*rig) {}, "mlx5_0", Pass, "port 1 active, LinkUp, InfiniBand 400 Gb/sec (4X NDR) at 0000:01:00.0, NUMA node 0", ""},
		{"a NIC whose port's state is not told", "grace-hopper", func(r *rig) {
			r.remove("sys/class/infiniband/mlx5_0/ports/1/state")
			r.remove("sys/class/infiniband/mlx5_0/ports/1/phys_state")
		}, "mlx5_0", Warn, "port 1 of a state that is not told, InfiniBand 400", "cable"},
		{"a NIC without ports", "grace-hopper", func(r *rig) { r.remove("sys/class/infiniband/mlx5_0/ports") }, "mlx5_0", Warn, "no port at 0000:01:00.0", "cable"},
		{"a container without NICs", "eight-by-eight", func(r *rig) { r.remove("dev/infiniband/uverbs3") }, "mlx5_3", Fail, "port 1 active", "--device=/dev/infiniband"},
		{"a NIC without verbs", "eight-by-eight", func(r *rig) { r.remove("sys/class/infiniband_verbs/uverbs3") }, "mlx5_3", Fail, "port 1 active", "modprobe ib_uverbs"},
		{"no way to GPU memory", "far-socket", func(r *rig) { r.remove("sys/module") }, "GPU memory to NICs", Fail, "not the open ones", "nvidia-peermem"},
		{"dma-buf", "grace-hopper", func(*rig) {}, "GPU memory to NICs", Pass, "dma-buf", ""},
		{"dma-buf on an old kernel", "grace-hopper", func(r *rig) { r.Kernel = "5.4.0" }, "GPU memory to NICs", Fail, "older than 5.12", "5.12"},
		{"NICs on the other socket", "far-socket", func(*rig) {}, "GPU 3's NIC", Warn, "mlx5_1: across sockets", "lspci"},
		{"a NIC below the GPU's switch", "eight-by-eight", func(*rig) {}, "GPU 5's NIC", Pass, "mlx5_5: same PCIe switch", ""},
		{"no NIC that can be used", "far-socket", func(r *rig) { r.remove("dev/infiniband") }, "GPU 0's NIC", Fail, "no RDMA NIC", "above"},
		{"a setting that is worse than ours", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the same in a file of UCX's", "eight-by-eight", func(r *rig) { r.put("proc/self/root/root/ucx.conf", "UCX_NET_DEVICES=mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the right one without its port", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0") }, "GPU 0's NIC", Pass, "mlx5_0", ""},
		{"all others left out", "eight-by-eight", func(r *rig) {
			r.environ("UCX_NET_DEVICES=^mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1")
		}, "GPU 0's NIC", Pass, "mlx5_0", ""},
		{"two of which one is right", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1") }, "GPU 0's NIC", Warn, "UCX_NET_DEVICES is mlx5_0:1,mlx5_1:1", "UCX_NET_DEVICES=mlx5_0:1"},
		{"the same setting where it is right", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_1:1") }, "GPU 1's NIC", Pass, "mlx5_1", ""},
		{"a device that is not there", "eight-by-eight", func(r *rig) { r.environ("UCX_NET_DEVICES=mlx5_0:1,mlx5_77:1") }, "UCX_NET_DEVICES", Warn, "mlx5_77", "unset"},
		{"transports without verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=tcp,sm,self") }, "UCX_TLS", Warn, "tcp", "have rc among them"},
		{"all but those with verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=^ib") }, "UCX_TLS", Warn, "^ib", "have rc among them"},
		{"transports with verbs", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=rc_x,cuda_copy") }, "UCX_TLS", "none", "", ""},
		{"no transport at all", "no-nic", func(r *rig) { r.environ("UCX_TLS=^") }, "UCX_TLS", Warn, "^", "unset"},
		{"an empty list of transports", "no-nic", func(r *rig) { r.environ("UCX_TLS=") }, "UCX_TLS", Warn, "", "unset"},
		{"a transport that UCX has not", "no-nic", func(r *rig) { r.environ("UCX_TLS=tcp,shmem") }, "UCX_TLS", Warn, "shmem", "ucx_info -d"},
		{"a transport of a later UCX", "no-nic", func(r *rig) { r.environ("UCX_TLS=tcp,warp") }, "UCX_TLS", Warn, "warp", "if ucx_info -d has it, none"},
		{"a transport in capitals", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=RC,cuda") }, "UCX_TLS", Warn, "RC", "ucx_info -d"},
		{"a blank in a list", "eight-by-eight", func(r *rig) { r.environ("UCX_TLS=tcp, rc") }, "UCX_TLS", Warn, "rc", "no blanks"},
		{"transports that UCX has", "no-nic", func(r *rig) { r.environ(`UCX_TLS=\rc_mlx5,ud_x:aux,gdr_copy,shm`) }, "UCX_TLS", "none", "", ""},
		{"no network device at all", "no-nic", func(r *rig) { r.environ("UCX_NET_DEVICES=") }, "UCX_NET_DEVICES", Warn, "", "unset"},
		{"none that is left out", "no-nic", func(r *rig) { r.environ("UCX_NET_DEVICES=^") }, "UCX_NET_DEVICES", "none", "", ""},
		{"GPUDirect in capitals", "eight-by-eight", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=NO") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "NO", "unset"},
		{"GPUDirect with a word that UCX does not take", "no-nic", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=on") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "on", "or yes"},
		{"GPUDirect with one that it takes", "no-nic", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=Maybe") }, "UCX_IB_GPU_DIRECT_RDMA", "none", "", ""},
		{"GPUDirect switched off", "eight-by-eight", func(r *rig) { r.environ("UCX_IB_GPU_DIRECT_RDMA=no") }, "UCX_IB_GPU_DIRECT_RDMA", Warn, "no", "unset"},
		{"handlers of UCX's", "no-nic", func(r *rig) { r.environ("UCX_HANDLE_ERRORS=bt,freeze") }, "UCX_HANDLE_ERRORS", Warn, "bt,freeze", "unset"},
		{"a folder without plugins", "no-nic", func(r *rig) { r.environ("NIXL_PLUGIN_DIR=/nowhere") }, "NIXL_PLUGIN_DIR", Warn, "/nowhere", "unset"},
		{"harmless settings", "no-nic", func(r *rig) { r.environ("UCX_LOG_LEVEL=info", "KVLEASE_CORE=/x") }, "environment", Pass, "KVLEASE_CORE=/x UCX_LOG_LEVEL=info", ""},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
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
