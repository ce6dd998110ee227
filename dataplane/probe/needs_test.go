package probe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/require"
)

// ample is a machine on which everything is there.
func ample() *machine {
	return &machine{
		arch:        "amd64",
		release:     "6.18.1",
		status:      func() (string, error) { return "Name:\tx\nCapEff:\t000000c000000000\nNoNewPrivs:\t0\n", nil },
		uidMap:      func() (string, error) { return "         0          0 4294967295\n", nil },
		program:     func() error { return nil },
		uprobeMulti: func() error { return nil },
		self:        "/usr/bin/kvlease",
	}
}

func TestWhatAMachineLacksIsNamedWithItsRemedy(t *testing.T) {
	status := func(caps uint64, noNewPrivs int) func() (string, error) {
		return func() (string, error) { return fmt.Sprintf("CapEff:\t%016x\nNoNewPrivs:\t%d\n", caps, noNewPrivs), nil }
	}
	unsupported := func() error { return fmt.Errorf("uprobe-multi: %w", ebpf.ErrNotSupported) }
	for _, tc := range []struct {
		name string
		of   func(m *machine)
		says []string // nothing: it is all there
	}{
		{"both capabilities", func(m *machine) {}, nil},
		{"CAP_SYS_ADMIN stands for both", func(m *machine) { m.status = status(capSysAdmin, 0) }, nil},
		{"an empty set", func(m *machine) { m.status = status(0, 0) }, []string{"lacks CAP_BPF and CAP_PERFMON.", "setcap cap_bpf,cap_perfmon+ep /usr/bin/kvlease"}},
		{"one of two", func(m *machine) { m.status = status(capBPF, 0) }, []string{"lacks CAP_PERFMON."}},
		{"no_new_privs", func(m *machine) { m.status = status(0, 1) }, []string{"no_new_privs", "--cap-add BPF", "AmbientCapabilities"}},
		{"a rootless container", func(m *machine) { m.uidMap = func() (string, error) { return "0 1000 1\n1 100000 65536\n", nil } }, []string{"user namespace", "on the host"}},
		{"seccomp", func(m *machine) { m.program = func() error { return unix.EPERM } }, []string{"bpf() is refused", "seccomp"}},
		{"no BPF in the kernel", func(m *machine) { m.program = unsupported }, []string{"loads no programs", "CONFIG_BPF_SYSCALL"}},
		{"kernel 6.1", func(m *machine) { m.release, m.uprobeMulti = "6.1.0-18-amd64", unsupported }, []string{"kernel 6.1.0-18-amd64 has no uprobe-multi", "came with Linux 6.6"}},
		{"kernel 5.15", func(m *machine) { m.release, m.uprobeMulti = "5.15.0", unsupported }, []string{"came with Linux 6.6"}},
		{"a late kernel without uprobes", func(m *machine) { m.uprobeMulti = unsupported }, []string{"CONFIG_UPROBES", "/boot/config-6.18.1"}},
		{"another processor", func(m *machine) { m.arch = "riscv64" }, []string{"not made for riscv64"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := ample()
			tc.of(m)
			err := m.check()
			if tc.says == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var missing *Missing
			if !errors.As(err, &missing) || !errors.Is(err, ErrMissing) {
				t.Fatalf("%v", err)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
		})
	}
}

func TestOlderKernelsHaveCaveats(t *testing.T) {
	for release, want := range map[string]int{"6.18.44": 0, "6.12.3": 1, "6.8.0-45-generic": 2, "7.0.0": 0} {
		m := ample()
		m.release = release
		if got := m.caveats(); len(got) != want {
			t.Errorf("%s: %q", release, got)
		}
	}
}

func TestTheKernelsTypesAreNotNeeded(t *testing.T) {
	open(t, Config{})
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "a mount is made here")
	}
	if _, err := os.Stat("/sys/kernel/btf"); err != nil {
		t.Skip("there is no /sys/kernel/btf to be hidden: the other tests have shown it")
	}
	d := startHost(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `mount -t tmpfs none /sys/kernel/btf && [ -z "$(ls /sys/kernel/btf)" ] && exec "$1"`, "sh", self)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	_, say := elsewhereAs(t, cmd, d.pid)
	if got := say(); got != "attached" {
		t.Error(got)
	}
}
