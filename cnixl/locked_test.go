package cnixl

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestWhatTheProcessMayNotLockIsNotRegisteredAndTheRemedyIsNamed(t *testing.T) {
	s := newScript(t)
	a := s.open(Config{Agent: "D"})
	mem := memory(4096)
	region := []transport.Region{{Addr: address(mem), Bytes: 48 << 20}}
	for _, tc := range []struct {
		name  string
		locks lockable
		fits  bool
	}{
		{"two NICs and 64 MiB", lockable{devices: 2, limit: 64 << 20}, false},
		{"one NIC and 64 MiB", lockable{devices: 1, limit: 64 << 20}, true},
		{"one NIC, and a third of it is taken", lockable{devices: 1, limit: 64 << 20, pinned: 20 << 20}, false},
		{"two NICs and no limit", lockable{devices: 2, limit: unix.RLIM_INFINITY}, true},
		{"a process that need not ask", lockable{devices: 2, limit: 64 << 20, exempt: true}, true},
		{"no NIC", lockable{limit: 1 << 20}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a.locks = func() *lockable { return &tc.locks }
			before := s.do("count register_mem")
			err := a.Register(region)
			if tc.fits {
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Unregister(region); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, transport.ErrUnavailable) || s.do("count register_mem") != before { // shows C63.1
				t.Fatalf("%v; NIXL was asked %d times", err, s.do("count register_mem")-before)
			}
			if tc.locks.devices != 2 {
				return
			}
			for _, want := range []string{"48.0 MiB of host memory on 2 network devices", "lock 96.0 MiB", "limit of this process (RLIMIT_MEMLOCK) is 64.0 MiB", "ulimit -l", "LimitMEMLOCK", "memlock=-1"} {
				if !strings.Contains(err.Error(), want) { // shows C63.2
					t.Errorf("no %q in %q", want, err)
				}
			}
		})
	}
	a.locks = func() *lockable { return &lockable{devices: 2, limit: 1 << 20, pinned: 2 << 20} }
	if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: 4096, Mem: transport.VRAM}}); err != nil {
		t.Errorf("memory of a device is not the host's: %v", err)
	}
}

func TestNICsThatTheProcessCannotOpenOrThatAreDownLockNothing(t *testing.T) {
	sys, dev := t.TempDir(), t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for n, states := range [][]string{{"4: ACTIVE"}, {"1: DOWN"}, {"1: DOWN", "4: ACTIVE"}, {"4: ACTIVE"}} {
		nic := fmt.Sprintf("mlx5_%d", n)
		put(filepath.Join(sys, "class", "infiniband_verbs", fmt.Sprintf("uverbs%d", n), "ibdev"), nic+"\n")
		for k, state := range states {
			put(filepath.Join(sys, "class", "infiniband", nic, "ports", fmt.Sprint(k+1), "state"), state+"\n")
		}
	}
	if got := usable(sys, dev); len(got) != 0 {
		t.Errorf("a container without devices counts %q", got)
	}
	for n := range 3 {
		put(filepath.Join(dev, "infiniband", fmt.Sprintf("uverbs%d", n)), "")
	}
	if diff := cmp.Diff([]string{"mlx5_0", "mlx5_2"}, usable(sys, dev)); diff != "" {
		t.Errorf("NICs (-want +got):\n%s", diff)
	}
}

func TestLockedMemoryAndTheRightToLockAreRead(t *testing.T) {
	for text, want := range map[string]lockable{
		"Name:\tx\nVmPin:\t   20480 kB\nVmRSS:\t 1 kB\nCapEff:\t0000000000004000\n": {pinned: 20 << 20, exempt: true},
		"VmPin:\t       0 kB\nCapEff:\t00000000a80425fb\n":                          {},
		"CapEff:\t000001ffffffffff\n":                                               {exempt: true},
	} {
		var got lockable
		got.read(bufio.NewScanner(strings.NewReader(text)))
		if got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
	if l := locksOfThisProcess(nil); l.check(0) != nil {
		t.Errorf("nothing at all is too much: %+v", l)
	}
}
