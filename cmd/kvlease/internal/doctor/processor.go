package doctor

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cuda/fabric"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/internal/plural"
)

// cpusGood is how many processors an engine wants: its loop, the pump or the core, the transport's thread, and one for all else.
const cpusGood = 4

// allowed are the processors that the process may run on.
func (s *System) allowed() ([]int, error) {
	status, err := s.proc("status")
	if err != nil {
		return nil, err
	}
	list := fabric.List(field(status, "Cpus_allowed_list"))
	if len(list) == 0 {
		return nil, fmt.Errorf("the processors that %s may run on", s.PID)
	}
	return list, nil
}

func cpus(_ context.Context, s *System) []Result {
	const name = "processors"
	list, err := s.allowed()
	if err != nil {
		return unread(name, err)
	}
	online := fabric.List(rdma.Text(s.Sys, "devices/system/cpu/online"))
	value := fmt.Sprintf("%d of %d", len(list), len(online))
	if len(online) == 0 {
		value = fmt.Sprintf("%d; the kernel does not tell of how many", len(list))
	}
	if len(list) >= cpusGood {
		return one(name, Pass, value)
	}
	return ill(name, Warn, value, fmt.Sprintf("forward loop, pump, the core's threads and the transport's share them: steps wait while others run; %d are wanted", cpusGood),
		"give the engine more processors (taskset -c, CPUAffinity= in a unit, --cpuset-cpus), or a larger machine; kvlease soak shows what it feels")
}

func cpuQuota(_ context.Context, s *System) []Result {
	const name = "cgroup processor time"
	dirs, v1, err := s.cgroups("cpu")
	if err != nil {
		return unread(name, err)
	}
	file := "cpu.max"
	if v1 {
		file = "cpu.cfs_quota_us"
	}
	least, where := 0.0, ""
	unseen := each(dirs, file, func(dir, text string) error {
		quota, period, err := quotaOf(dir, text, v1)
		if err == nil && quota > 0 && (where == "" || quota/period < least) {
			least, where = quota/period, dir
		}
		return err
	})
	switch {
	case where == "" && unseen != nil:
		return unread(name, unseen)
	case where == "":
		return one(name, Pass, "no limit")
	}
	value := fmt.Sprintf("%.3g processors (%s)", least, where)
	for line := range strings.Lines(rdma.Text(where, "cpu.stat")) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "nr_throttled "); ok && n != "0" {
			value += ", held up " + n + " times so far"
		}
	}
	return ill(name, Warn, value, "when it is used up, all threads stand still until the period (100 ms as a rule) ends: passes, heartbeats and answers with them",
		"set no quota (docker without --cpus, Kubernetes without a CPU limit), give whole processors by a cpuset instead")
}

// quotaOf is what a cgroup may use in a period, both in µs, by what its file holds; a quota of 0 or less: all.
func quotaOf(dir, text string, v1 bool) (quota, period float64, err error) {
	a, b, _ := strings.Cut(text, " ") // "max 100000": no limit
	if v1 {
		b = rdma.Text(dir, "cpu.cfs_period_us")
	}
	if a == "max" || a == "-1" {
		return 0, 0, nil
	}
	if quota, err = strconv.ParseFloat(a, 64); err != nil {
		return 0, 0, err
	}
	if period, err = strconv.ParseFloat(b, 64); err == nil && !(period > 0) {
		err = fmt.Errorf("a period of %q", b)
	}
	return quota, period, err
}

func isolation(_ context.Context, s *System) []Result {
	const name = "isolated processors"
	list, err := s.allowed()
	if err != nil {
		return unread(name, err)
	}
	told, err := rdma.File(s.Sys, "devices/system/cpu/isolated")
	if err != nil {
		return unread(name, err)
	}
	isolated := fabric.List(string(told))
	if len(isolated) == 0 && strings.TrimSpace(string(told)) != "" {
		return unread(name, fmt.Errorf("%q is no list of processors", told))
	}
	var ours []int
	for _, c := range list {
		if slices.Contains(isolated, c) {
			ours = append(ours, c)
		}
	}
	switch {
	case len(isolated) == 0:
		return one(name, Pass, "none")
	case len(ours) == 0:
		return one(name, Pass, plural.Counted(len(isolated), "is", "are")+" isolated, none of them the process's")
	case len(list) == 1:
		return one(name, Pass, "the process's only one")
	}
	return ill(name, Warn, fmt.Sprintf("%d of the process's %d", len(ours), len(list)),
		"the scheduler moves no thread to or from an isolated processor: all threads stay on the one where they were started",
		"give the engine processors that are not isolated (taskset -c), and the loop alone an isolated one; key cpus keeps the core's threads off it")
}

func governor(_ context.Context, s *System) []Result {
	const name = "frequency governor"
	files, _ := filepath.Glob(filepath.Join(s.Sys, "devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	if err := s.sysfs(); err != nil {
		return unread(name, err)
	}
	if len(files) == 0 {
		return one(name, Skip, "the kernel does not control the frequency here: firmware or the host of this virtual machine does")
	}
	seen := map[string]int{}
	for _, f := range files {
		seen[rdma.Text(f)]++
	}
	var words []string
	for g, n := range seen {
		words = append(words, fmt.Sprintf("%s on %d", g, n))
	}
	slices.Sort(words)
	value := strings.Join(words, ", ")
	if seen["performance"] == len(files) {
		return one(name, Pass, value)
	}
	return ill(name, Warn, value, "a loop that sleeps between passes finds a slow processor each time it wakes: microseconds become tens of them",
		"cpupower frequency-set -g performance, or tuned-adm profile throughput-performance")
}

// Clock sources that are read without a system call.
var fastClocks = []string{"tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"}

// clockSlow is a reading that was a system call, or worse.
const clockSlow = 500 * time.Nanosecond

func clockSource(_ context.Context, s *System) []Result {
	const name = "clock source"
	dir := filepath.Join(s.Sys, "devices/system/clocksource/clocksource0")
	now := rdma.Text(dir, "current_clocksource")
	if now == "" {
		return one(name, Skip, "the kernel does not tell")
	}
	cost := s.Clock()
	value := fmt.Sprintf("%s, %d ns a reading", now, cost.Nanoseconds())
	if slices.Contains(fastClocks, now) && cost < clockSlow {
		return one(name, Pass, value)
	}
	return ill(name, Warn, value, "each hook and each step reads the clock: this one makes a system call of it, or goes to a device",
		"the kernel offers %s: echo tsc > %s/current_clocksource if it is among them, else see dmesg for why the kernel left it (clocksource=, tsc= on its command line)",
		rdma.Text(dir, "available_clocksource"), dir)
}
