package rdma

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cuda/fabric/machine"
)

func built(t *testing.T, name string) string {
	t.Helper()
	m, err := machine.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := m.Build(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestNICsAreReadAsSysfsHasThem(t *testing.T) {
	dir := built(t, "grace-hopper")
	want := []NIC{
		{Name: "mlx5_0", PCI: "0000:01:00.0", Firmware: "28.39.1002", Net: []string{"ib0"}, Verbs: dir + "/dev/infiniband/uverbs0",
			Ports: []Port{{N: 1, State: "ACTIVE", Phys: "LinkUp", Layer: "InfiniBand", Rate: "400 Gb/sec (4X NDR)", Gbps: 400}}},
		{Name: "mlx5_1", PCI: "0002:01:00.0", Firmware: "28.39.1002", Net: []string{"eth0"}, Verbs: dir + "/dev/infiniband/uverbs1",
			Ports: []Port{{N: 1, State: "DOWN", Phys: "Disabled", Layer: "Ethernet", Rate: "25 Gb/sec (1X EDR)", Gbps: 25}}},
	}
	got := Look(dir+"/sys", dir+"/dev")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("NICs (-want +got):\n%s", diff)
	}
	if !got[0].Usable() || got[1].Usable() {
		t.Error("a NIC is usable whose port is down, or one is not whose port is up")
	}
}

func TestAMachineWithoutRDMAHasNoNIC(t *testing.T) {
	dir := built(t, "no-nic")
	if got := Look(dir+"/sys", dir+"/dev"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	if got := Look("/nowhere", "/nowhere"); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

func TestTheTenthNICComesAfterTheSecond(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		less bool
	}{{"mlx5_2", "mlx5_10", true}, {"mlx5_10", "mlx5_2", false}, {"bnxt_re0", "mlx5_0", true}, {"mlx5", "mlx5_0", true}} {
		if got := natural(tc.a, tc.b) < 0; got != tc.less {
			t.Errorf("%s before %s: %v", tc.a, tc.b, got)
		}
	}
}

func TestWaysOfGPUMemoryToANIC(t *testing.T) {
	for _, tc := range []struct {
		name, machine, release string
		harm                   string // a file that is not there
		module, dmaBuf         string // what dma-buf lacks
	}{
		{"both", "eight-by-eight", "6.8.0-31-generic", "", "nvidia_peermem", ""},
		{"peer memory alone, closed modules", "far-socket", "5.15.0", "", "nvidia_peermem", "open ones"},
		{"dma-buf alone", "grace-hopper", "6.5.0", "", "", ""},
		{"an old kernel", "grace-hopper", "5.4.0", "", "", "older than 5.12"},
		{"a kernel that is older still", "grace-hopper", "4.18.0-513.el8", "", "", "older than 5.12"},
		{"the first kernel that can", "grace-hopper", "5.12.0", "", "", ""},
		{"no driver", "grace-hopper", "6.8.0", "proc/driver/nvidia/version", "", "no NVIDIA driver"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := built(t, tc.machine)
			if tc.harm != "" {
				if err := os.Remove(filepath.Join(dir, tc.harm)); err != nil {
					t.Fatal(err)
				}
			}
			got := LookGPUMemory(dir+"/sys", dir+"/proc", tc.release)
			if got.Module != tc.module || (got.DMABuf == nil) != (tc.dmaBuf == "") || got.DMABuf != nil && !strings.Contains(got.DMABuf.Error(), tc.dmaBuf) {
				t.Errorf("%+v", got)
			}
			if got.Any() != (tc.module != "" || tc.dmaBuf == "") {
				t.Errorf("any way: %v", got.Any())
			}
		})
	}
}

func TestAddressesOfAPortAreReadFromItsTable(t *testing.T) {
	dir := built(t, "eight-by-eight")
	want := []GID{
		{0, false, netip.MustParseAddr("fe80::a288:c2ff:fe00:1"), "ens6f0"}, {1, true, netip.MustParseAddr("fe80::a288:c2ff:fe00:1"), "ens6f0"},
		{2, false, netip.MustParseAddr("10.20.0.11"), "ens6f0"}, {3, true, netip.MustParseAddr("10.20.0.11"), "ens6f0"},
	}
	nics := Look(dir+"/sys", dir+"/dev")
	if diff := cmp.Diff(want, nics[8].Ports[0].GIDs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("GIDs (-want +got):\n%s", diff)
	}
	for i, routed := range []bool{false, false, false, true} {
		if got := nics[8].Ports[0].GIDs[i].Routed(); got != routed {
			t.Errorf("GID %d is routed: %v", i, got)
		}
	}
	if nics[0].Ports[0].GIDs != nil || nics[0].Ports[0].RoCE() {
		t.Errorf("a port of InfiniBand has %+v", nics[0].Ports[0].GIDs)
	}
}

func TestARateIsANumberThatALinkCanHave(t *testing.T) {
	for text, want := range map[string]float64{
		"400 Gb/sec (4X NDR)": 400, "2.5 GT/s PCIe": 2.5, "": 0, "Unknown": 0, "NaN GT/s": 0, "Inf Gb/sec": 0, "-1 Gb/sec": 0, "1e999 Gb/sec": 0, "0 Gb/sec": 0,
	} {
		if got := Rate(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestOnlySmallFilesAreRead: what lies there may be a user's or a container's, and whoever looks may be root.
func TestOnlySmallFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	pipe, endless, circle := filepath.Join(dir, "pipe"), filepath.Join(dir, "endless"), filepath.Join(dir, "circle")
	if err := errors.Join(unix.Mkfifo(pipe, 0o600), os.Symlink("/dev/zero", filepath.Join(dir, "zero")), os.Symlink(circle, circle),
		os.WriteFile(endless, []byte(" word"), 0o600), os.Truncate(endless, 1<<40)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"zero", "pipe", "circle", ".", "nowhere"} {
		if text, err := File(dir, name); err == nil || Text(dir, name) != "" {
			t.Fatalf("%s is a file of %q", name, text)
		}
	}
	if text := Text(endless); len(text) >= 1<<20 || !strings.HasPrefix(text, "word") {
		t.Errorf("%d bytes of a file without end", len(text))
	}
}
