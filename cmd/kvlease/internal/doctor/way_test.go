package doctor

import (
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// harmed is a machine with a harm, and the line that tells of it.
type harmed struct {
	name, machine string
	harm          func(r *rig)
	line          string
	want          State
	value, fix    string
}

// unaddressed makes the entries from one on of a RoCE port's table empty.
func (r *rig) unaddressed(nic string, from int) {
	r.t.Helper()
	for i := from; i < 4; i++ {
		r.put("sys/class/infiniband/"+nic+"/ports/1/gids/"+string(rune('0'+i)), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
}

func TestAddressesOfRoCEPorts(t *testing.T) {
	const line = "mlx5_8:1's address"
	for _, tc := range []harmed{
		{"as it should be", "eight-by-eight", func(*rig) {}, line, Pass, "GID 3, RoCE v2, 10.20.0.11 of ens6f0", ""},
		{"InfiniBand has none", "eight-by-eight", func(*rig) {}, "mlx5_0:1's address", "none", "", ""},
		{"a port that is down has none", "grace-hopper", func(*rig) {}, "mlx5_1:1's address", "none", "", ""},
		{"an IPv6 address of the site", "eight-by-eight", func(r *rig) {
			r.put("sys/class/infiniband/mlx5_8/ports/1/gids/3", "2001:0db8:0000:0000:0000:0000:0000:0011")
		}, line, Pass, "GID 3, RoCE v2, 2001:db8::11", ""},
		{"a link-local address alone", "eight-by-eight", func(r *rig) { r.unaddressed("mlx5_8", 2) }, line, Warn, "GID 1, RoCE v2, fe80::a288:c2ff:fe00:1 of ens6f0, and none", "ip address add ADDRESS/BITS dev ens6f0"},
		{"RoCE v1 alone", "eight-by-eight", func(r *rig) {
			r.put("sys/class/infiniband/mlx5_8/ports/1/gid_attrs/types/1", "IB/RoCE v1")
			r.put("sys/class/infiniband/mlx5_8/ports/1/gid_attrs/types/3", "IB/RoCE v1")
		}, line, Warn, "GID 0, RoCE v1, fe80::a288:c2ff:fe00:1 of ens6f0, and none of RoCE v2", "cma_roce_mode -d mlx5_8 -p 1 -m 2"},
		{"none at all", "eight-by-eight", func(r *rig) { r.unaddressed("mlx5_8", 0) }, line, Fail, "no GID", "--network=host"},
		{"entries that are no addresses", "eight-by-eight", func(r *rig) {
			r.unaddressed("mlx5_8", 0)
			r.put("sys/class/infiniband/mlx5_8/ports/1/gids/1", "zz")
		}, line, Fail, "no GID", "--network=host"},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}

func TestWhatSwitchesAndTheIOMMUDoToAWay(t *testing.T) {
	for _, tc := range []harmed{
		{"no redirect", "eight-by-eight", func(*rig) {}, "PCIe ACS", Pass, "no redirect on the ways of 8 GPUs and their NICs", ""},
		{"no switch", "grace-hopper", func(*rig) {}, "PCIe ACS", "none", "", ""},
		{"a redirect before a GPU", "eight-by-eight", func(r *rig) { r.rebuild("0000:4a:01.0") }, "PCIe ACS", Warn, "redirects at 0000:4a:01.0", "setpci -s 0000:4a:01.0 ECAP_ACS+0x6.w=0000."},
		{"and before its NIC", "eight-by-eight", func(r *rig) { r.rebuild("0000:4a:01.0", "0000:4a:02.0") }, "PCIe ACS", Warn, "0000:4a:01.0, 0000:4a:02.0", "0000:4a:02.0 ECAP_ACS"},
		{"at a port above the switch", "eight-by-eight", func(r *rig) { r.rebuild("0000:48:01.0") }, "PCIe ACS", Pass, "no redirect", ""},
		{"a user who may not see it", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:4a:01.0/config", "\x15\xb3") }, "PCIe ACS", Skip, "to root alone", ""},
		{"an old port without extended capabilities", "eight-by-eight", func(r *rig) {
			r.put("sys/bus/pci/devices/0000:4a:01.0/config", string(make([]byte, 255)))
		}, "PCIe ACS", Pass, "no redirect", ""},
		{"capabilities in a circle", "eight-by-eight", func(r *rig) {
			space := make([]byte, 4095)
			copy(space[0x100:], []byte{1, 0, 1, 0x10}) // the next one at 0x100
			r.put("sys/bus/pci/devices/0000:4a:01.0/config", string(space))
		}, "PCIe ACS", Pass, "no redirect", ""},

		{"an IOMMU that passes through", "eight-by-eight", func(*rig) {}, "IOMMU", Pass, "passes through for all of 18 GPUs and NICs", ""},
		{"no IOMMU", "far-socket", func(*rig) {}, "IOMMU", Pass, "none", ""},
		{"no NIC", "no-nic", func(*rig) {}, "IOMMU", "none", "", ""},
		{"one that translates", "eight-by-eight", func(r *rig) { r.put("sys/kernel/iommu_groups/0/type", "DMA-FQ") }, "IOMMU", Warn, "translates for 0000:1b:00.0", "iommu=pt"},
		{"one that translates, and peer memory alone", "eight-by-eight", func(r *rig) {
			r.put("sys/kernel/iommu_groups/8/type", "DMA")
			r.put("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15")
		}, "IOMMU", Fail, "translates for 0000:18:00.0", "off in the firmware"},
		{"Grace, where it should", "grace-hopper", func(*rig) {}, "IOMMU", Pass, "translates for 0009:01:00.0, 0000:01:00.0: NVIDIA's guides want that on Grace", ""},

		{"links as they should be", "eight-by-eight", func(*rig) {}, "PCIe links", Pass, "18, each as wide as its card", ""},
		{"a NIC in a slot for less", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:40:00.0/current_link_width", "8") }, "PCIe links", Warn, "mlx5_1 at 32 GT/s x8 of 32 GT/s x16", "another slot"},
		{"a NIC that has come up slow", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:40:00.0/current_link_speed", "16.0 GT/s PCIe") }, "PCIe links", Warn, "mlx5_1 at 16 GT/s x16", "reseat"},
		{"a GPU that rests", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:1b:00.0/current_link_speed", "2.5 GT/s PCIe") }, "PCIe links", Pass, "18", ""},
		{"a GPU with half its lanes", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:1b:00.0/current_link_width", "8") }, "PCIe links", Warn, "GPU 0 at 32 GT/s x8", "riser"},
		{"a speed that is not known", "eight-by-eight", func(r *rig) { r.put("sys/bus/pci/devices/0000:1b:00.0/current_link_speed", "Unknown") }, "PCIe links", Pass, "17", ""},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}

func TestWhatLogindRemoves(t *testing.T) {
	logind := func(uid string, files map[string]string) func(*rig) {
		return func(r *rig) {
			r.put("proc/self/status", "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-15\nUid:\t"+uid+"\t0\t0\t0")
			r.put("run/systemd/seats/seat0", "")
			r.put("etc/passwd", "root:x:0:0::/root:/bin/sh\nserve:x:1005:1005::/srv/serve:/bin/sh")
			for name, text := range files {
				r.put(name, text)
			}
		}
	}
	for _, tc := range []harmed{
		{"no logind", "no-nic", func(*rig) {}, "RemoveIPC", Pass, "no logind", ""},
		{"a person's user", "no-nic", logind("1005", nil), "RemoveIPC", Warn, "user 1005 is none of the system (to 999)", "loginctl enable-linger 1005"},
		{"root", "no-nic", logind("0", nil), "RemoveIPC", Pass, "user 0 is one of the system", ""},
		{"a system user by login.defs", "no-nic", logind("1005", map[string]string{"etc/login.defs": "#SYS_UID_MAX 1\nSYS_UID_MAX\t1500"}), "RemoveIPC", Pass, "(to 1500)", ""},
		{"a user who lingers", "no-nic", logind("1005", map[string]string{"var/lib/systemd/linger/serve": ""}), "RemoveIPC", Pass, "lingers", ""},
		{"another user who lingers", "no-nic", logind("1005", map[string]string{"var/lib/systemd/linger/root": ""}), "RemoveIPC", Warn, "none of the system", "useradd --system"},
		{"switched off", "no-nic", logind("1005", map[string]string{"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=yes\nRemoveIPC = no"}), "RemoveIPC", Pass, "no", ""},
		{"as it is by default", "no-nic", logind("1005", map[string]string{"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no"}), "RemoveIPC", Warn, "on", ""},
		{"switched off by a drop-in", "no-nic", logind("1005", map[string]string{
			"usr/lib/systemd/logind.conf": "[Login]\nRemoveIPC=yes", "usr/lib/systemd/logind.conf.d/50-ipc.conf": "[Login]\nRemoveIPC=no",
		}), "RemoveIPC", Pass, "no", ""},
		{"switched on again by a later one", "no-nic", logind("1005", map[string]string{
			"usr/lib/systemd/logind.conf.d/50-ipc.conf": "[Login]\nRemoveIPC=no", "etc/systemd/logind.conf.d/60-ipc.conf": "[Login]\nRemoveIPC=yes",
		}), "RemoveIPC", Warn, "on", ""},
		{"a drop-in that stands for another", "no-nic", logind("1005", map[string]string{
			"usr/lib/systemd/logind.conf.d/50-ipc.conf": "[Login]\nRemoveIPC=no", "etc/systemd/logind.conf.d/50-ipc.conf": "[Login]\n",
		}), "RemoveIPC", Warn, "on", ""},
		{"a process that tells no user", "no-nic", func(r *rig) { r.put("run/systemd/seats/seat0", "") }, "RemoveIPC", Skip, "no Uid", ""},
	} {
		t.Run(tc.name, func(t *testing.T) { hold(t, tc.machine, tc.harm, tc.line, tc.want, tc.value, tc.fix) })
	}
}

// TestWhatAnotherHasPutInPlaceOfAFileIsNotWaitedFor: doctor --pid looks as root into the files of a container.
func TestWhatAnotherHasPutInPlaceOfAFileIsNotWaitedFor(t *testing.T) {
	r := newRig(t, "no-nic")
	r.put("run/systemd/seats/x", "")
	r.put("proc/self/status", "Name:\tengine\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCpus_allowed_list:\t0-15")
	r.put("etc/passwd", "engine:x:1000:1000::/:/bin/sh")
	r.put("etc/systemd/logind.conf.d/x", "")
	r.put("proc/self/root/etc/ucx/x", "")
	r.put("proc/self/cwd/x", "")
	for _, name := range []string{"etc/login.defs", "etc/systemd/logind.conf", "etc/systemd/logind.conf.d/a.conf",
		"proc/self/root/etc/ucx/ucx.conf", "proc/self/cwd/ucx.conf"} {
		if err := unix.Mkfifo(filepath.Join(r.dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l := r.line("RemoveIPC"); l.State != Warn || !strings.Contains(l.Value, "user 1000 is none of the system (to 999)") {
		t.Errorf("%+v", l)
	}
	if l := r.line("locked memory"); l.State != Pass {
		t.Errorf("%+v", l)
	}
}
