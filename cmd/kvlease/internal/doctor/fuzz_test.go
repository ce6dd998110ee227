package doctor

import (
	"strings"
	"testing"
)

func FuzzProc(f *testing.F) {
	f.Add("0::/engine.slice/p.service\n", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n", "Max open files            1024                 524288               files     \n")
	f.Add("4:memory:/p\n1:cpu,cpuacct:/p\n", "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n", "Max open files unlimited unlimited files")
	f.Add("0::/../../x", "30 23 0:26 /a / rw - cgroup2 cgroup2 rw", "Max open files x")
	f.Add("0::/a", "30 23 0:26 / . rw - cgroup2 cgroup2 rw", "Max open files 1")
	f.Fuzz(func(t *testing.T, paths, mounts, limits string) {
		for _, controller := range []string{"cpu", "memory"} {
			dirs, _ := findCgroups(paths, mounts, controller)
			for i, dir := range dirs {
				if root := dirs[len(dirs)-1]; !strings.HasPrefix(dir, strings.TrimSuffix(root, "/")) {
					t.Fatalf("%q is not below %q", dir, root)
				}
				if i > 0 && len(dir) >= len(dirs[i-1]) {
					t.Fatalf("%q does not go up", dirs)
				}
			}
		}
		if l, err := parseLimit(limits, "Max open files"); err != nil && l.hard != 0 && l.soft == 0 {
			t.Fatalf("%+v with %v", l, err)
		}
		xidLine.FindAllStringSubmatch(limits, -1)
	})
}
