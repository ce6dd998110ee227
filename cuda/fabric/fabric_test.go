package fabric

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cuda/fabric/machine"
)

// chosen is each GPU's choice in words.
func chosen(h *Host) (list []string) {
	for g, c := range h.Choose() {
		list = append(list, fmt.Sprintf("%d %s: %s", g, strings.Join(h.names(c.NICs), ","), c.Distance))
	}
	return list
}

func TestEachGPUOfAMachineGetsItsNICs(t *testing.T) {
	for name, want := range map[string][]string{
		"eight-by-eight": {
			"0 mlx5_0: same PCIe switch", "1 mlx5_1: same PCIe switch", "2 mlx5_2: same PCIe switch", "3 mlx5_3: same PCIe switch",
			"4 mlx5_4: same PCIe switch", "5 mlx5_5: same PCIe switch", "6 mlx5_6: same PCIe switch", "7 mlx5_7: same PCIe switch",
		},
		"far-socket":    {"0 mlx5_0: across sockets", "1 mlx5_0: across sockets", "2 mlx5_1: across sockets", "3 mlx5_1: across sockets"},
		"grace-hopper":  {"0 mlx5_0: same NUMA node"},
		"no-nic":        {"0 : unknown", "1 : unknown"},
		"virtual-flat":  {"0 mlx5_0: same host bridge", "1 mlx5_1: same host bridge", "2 mlx5_2: same host bridge", "3 mlx5_3: same host bridge"},
		"lone":          {"0 mlx5_0: same root port", "1 mlx5_1: same host bridge"},
		"two-and-eight": {"0 mlx5_0,mlx5_1,mlx5_2,mlx5_3: same root port", "1 mlx5_4,mlx5_5,mlx5_6,mlx5_7: same root port"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, chosen(made(t, name).look())); diff != "" {
				t.Errorf("NICs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOfEquallyNearNICsTheFastestIsTaken(t *testing.T) {
	m := &machine.Machine{Nodes: []string{"0-63"}, Driver: "550.54.15", CUDA: 12040, GPUs: []machine.GPU{{PCI: "0000:01:00.0", Path: "pci0000:00 0000:00:01.0", Name: "A"}}}
	for i, rate := range []string{"25 Gb/sec (1X EDR)", "400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)"} {
		m.NICs = append(m.NICs, machine.NIC{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:01:%02x.0", 8+i), Path: "pci0000:00 0000:00:01.0", Layer: "InfiniBand", Rate: rate})
	}
	if diff := cmp.Diff([]string{"0 mlx5_1: same root port"}, chosen(labOf(t, m).look())); diff != "" {
		t.Errorf("NICs (-want +got):\n%s", diff)
	}
}

func TestOnlyXidsThatNeedAResetCondemnAGPU(t *testing.T) {
	for _, code := range []uint64{48, 64, 74, 79, 95, 119, 120, 140} {
		if !XidFatal(code) {
			t.Errorf("%s: a GPU may be used after it", XidText(code))
		}
	}
	for _, code := range []uint64{0, 1, 13, 31, 43, 45, 63, 69, 92, 94, 1000} {
		if XidFatal(code) {
			t.Errorf("%s: a GPU may not be used after it", XidText(code))
		}
	}
}

// made is a machine of the fixtures, or one that is only about sharing.
func made(t *testing.T, name string) *lab {
	t.Helper()
	if slices.Contains(machine.Names(), name) {
		return newLab(t, name)
	}
	m := &machine.Machine{Nodes: []string{"0-63"}, Driver: "550.54.15", CUDA: 12040}
	switch name {
	case "virtual-flat": // as clouds give them: everything on one bus, whatever lies below it
		for i := range 4 {
			m.GPUs = append(m.GPUs, machine.GPU{PCI: fmt.Sprintf("0000:00:%02x.0", 8+i), Path: "pci0000:00", Node: -1, Name: "A", Memory: 1, BAR1: 1})
			m.NICs = append(m.NICs, machine.NIC{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:00:%02x.0", 16+i), Path: "pci0000:00", Node: -1, Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)"})
		}
	case "lone": // GPU 1 has no NIC below its port: of the two at the host bridge one is GPU 0's
		m.GPUs = []machine.GPU{{PCI: "0000:01:00.0", Path: "pci0000:00 0000:00:01.0", Name: "A"}, {PCI: "0000:02:00.0", Path: "pci0000:00 0000:00:02.0", Name: "A"}}
		m.NICs = []machine.NIC{
			{Name: "mlx5_0", PCI: "0000:01:01.0", Path: "pci0000:00 0000:00:01.0", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)"},
			{Name: "mlx5_1", PCI: "0000:03:00.0", Path: "pci0000:00 0000:00:03.0", Layer: "InfiniBand", Rate: "200 Gb/sec (4X HDR)"},
		}
	case "pair":
		m.GPUs = []machine.GPU{{PCI: "0000:01:00.0", Path: "pci0000:00 0000:00:01.0", Name: "A"}}
		for i := range 2 {
			m.NICs = append(m.NICs, machine.NIC{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:01:%02x.0", 8+i), Path: "pci0000:00 0000:00:01.0", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"})
		}
	case "two-and-eight":
		for i := range 2 {
			m.GPUs = append(m.GPUs, machine.GPU{PCI: fmt.Sprintf("0000:01:%02x.0", i), Path: "pci0000:00 0000:00:01.0", Node: 0, Name: "A", Memory: 1, BAR1: 1})
		}
		for i := range 8 {
			m.NICs = append(m.NICs, machine.NIC{Name: fmt.Sprintf("mlx5_%d", i), PCI: fmt.Sprintf("0000:01:%02x.0", 8+i), Path: "pci0000:00 0000:00:01.0", Layer: "InfiniBand", Rate: "100 Gb/sec (4X EDR)"})
		}
	}
	return labOf(t, m)
}

func TestTheWayBetweenTwoFunctionsIsWhereTheirPathsPart(t *testing.T) {
	at := func(way string) []string { return strings.Fields(way) }
	for _, tc := range []struct {
		name         string
		a, b         []string
		nodeA, nodeB int
		want         Distance
		hops         int
	}{
		{"two ports of one switch", at("pci0000:15 15:01.0 16:00.0 17:01.0 18:00.0"), at("pci0000:15 15:01.0 16:00.0 17:02.0 19:00.0"), 0, 0, SameSwitch, 4},
		{"two switches below one", at("pci0000:15 15:01.0 16:00.0 17:01.0 18:00.0 19:01.0 a"), at("pci0000:15 15:01.0 16:00.0 17:02.0 20:00.0 21:01.0 b"), 0, 0, SameSwitch, 8},
		{"two functions of one card", at("pci0000:15 15:01.0 16:00.0"), at("pci0000:15 15:01.0 16:00.1"), 0, 0, SameRootPort, 2},
		{"two slots of one host bridge", at("pci0000:15 15:01.0 16:00.0"), at("pci0000:15 15:02.0 17:00.0"), 0, 0, SameHostBridge, 4},
		{"two bridges of one processor", at("pci0000:15 15:01.0 a"), at("pci0000:37 37:01.0 b"), 1, 1, SameNode, 6},
		{"two processors", at("pci0000:15 15:01.0 a"), at("pci0000:b0 b0:01.0 b"), 0, 1, AcrossSockets, 6},
		{"firmware that says no node", at("pci0000:15 15:01.0 a"), at("pci0000:b0 b0:01.0 b"), -1, 1, DistanceUnknown, 6},
		{"a NIC that is none of PCI", at("pci0000:15 15:01.0 a"), nil, 0, -1, DistanceUnknown, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, hops := between(tc.a, tc.b, tc.nodeA, tc.nodeB); got != tc.want || hops != tc.hops {
				t.Errorf("%v, %d hops; want %v, %d", got, hops, tc.want, tc.hops)
			}
			if got, hops := between(tc.b, tc.a, tc.nodeB, tc.nodeA); got != tc.want || hops != tc.hops {
				t.Errorf("the other way round %v, %d hops", got, hops)
			}
		})
	}
}

func TestNodesOfAMachine(t *testing.T) {
	h := newLab(t, "grace-hopper").look()
	if !slices.Equal(h.Nodes, []int{0}) {
		t.Errorf("Grace Hopper has processors on %v: its GPU memory is no socket", h.Nodes)
	}
	h = newLab(t, "no-nic").look()
	if h.GPUs[0].Node != 0 {
		t.Errorf("where there is one node and firmware says none, a GPU is on %d", h.GPUs[0].Node)
	}
	h = newLab(t, "far-socket").look()
	if h.GPUs[3].Node != 0 || h.NodeOf(0) != 1 {
		t.Errorf("GPU on %d, NIC on %d", h.GPUs[3].Node, h.NodeOf(0))
	}
}

// settingsOf are those of a GPU as the shell would take them.
func settingsOf(h *Host, gpu int, env func(string) (string, bool)) (list []string) {
	for _, s := range h.Settings(fmt.Sprint("GPU ", gpu), h.Choose()[gpu], env) {
		list = append(list, s.Name+"="+s.Value)
	}
	return list
}

func TestSettingsAreOnlyWhatUCXWouldChooseWorse(t *testing.T) {
	const direct = "UCX_IB_GPU_DIRECT_RDMA=yes"
	var pairs [][]string
	for i := range 8 {
		pairs = append(pairs, []string{fmt.Sprintf("UCX_NET_DEVICES=mlx5_%d:1", i), direct})
	}
	for name, want := range map[string][][]string{ // by GPU
		"eight-by-eight": pairs,
		"far-socket":     {{"UCX_NET_DEVICES=mlx5_0:1", direct}, {"UCX_NET_DEVICES=mlx5_0:1", direct}, {"UCX_NET_DEVICES=mlx5_1:1", direct}, {"UCX_NET_DEVICES=mlx5_1:1", direct}},
		"grace-hopper":   {{direct}}, // its only NIC that is up
		"two-and-eight": {{"UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", "UCX_MAX_RMA_RAILS=4"},
			{"UCX_NET_DEVICES=mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1", "UCX_MAX_RMA_RAILS=4"}},
		"pair":   {nil}, // as many ports as NIXL uses by itself
		"no-nic": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := made(t, name).look()
			var got [][]string
			for g := range h.GPUs {
				got = append(got, settingsOf(h, g, unset))
				for _, s := range h.Settings("GPU", h.Choose()[g], unset) {
					if s.Reason == "" || s.IsSet {
						t.Errorf("%+v", s)
					}
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("settings by GPU (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatTheUserHasSetStays(t *testing.T) {
	h := newLab(t, "eight-by-eight").look()
	env := func(name string) (string, bool) { return "mlx5_3:1", name == "UCX_NET_DEVICES" }
	got := h.Settings("GPU 0", h.Choose()[0], env)
	if len(got) != 2 || !got[0].IsSet || got[0].Users != "mlx5_3:1" || got[1].IsSet {
		t.Errorf("%+v", got)
	}
}

func TestAProcessWithSeveralGPUsGetsTheNICsOfAll(t *testing.T) {
	h := newLab(t, "eight-by-eight").look()
	if h.At("0000:52:00.0") != 2 || h.At("0000:53:00.0") != -1 {
		t.Errorf("GPUs at %d and %d", h.At("0000:52:00.0"), h.At("0000:53:00.0"))
	}
	got := h.Settings("GPUs 2 and 5", h.Together([]int{5, 2}), unset)
	if len(got) != 2 || got[0].Value != "mlx5_2:1,mlx5_5:1" || !strings.Contains(got[0].Reason, "these are GPUs 2 and 5's: mlx5_5: same PCIe switch") {
		t.Errorf("%+v", got)
	}
	h = newLab(t, "far-socket").look()
	if c := h.Together([]int{0, 1}); !slices.Equal(h.names(c.NICs), []string{"mlx5_0"}) || c.Distance != AcrossSockets {
		t.Errorf("two GPUs that share a NIC: %q, %v", h.names(c.NICs), c.Distance)
	}
}

func TestWhatNobodyAskedForLeavesTheWaysThatThereAre(t *testing.T) {
	for name, want := range map[string]string{
		"eight-by-eight": "[UCX_NET_DEVICES=^mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1]",
		"far-socket":     "[UCX_NET_DEVICES=^mlx5_1:1]",
		"grace-hopper":   "[]",
		"no-nic":         "[]",
		"two-and-eight":  "[UCX_NET_DEVICES=^mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1 UCX_MAX_RMA_RAILS=4]",
	} {
		h := made(t, name).look()
		got := []string{}
		for _, s := range h.Mild("GPU 0", h.Choose()[0], unset) {
			got = append(got, s.Name+"="+s.Value)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: %v, want %s", name, got, want)
		}
	}
}

func TestNICsAreNoMatterWhereTheUserTakesOtherWays(t *testing.T) {
	h := made(t, "two-and-eight").look()
	for tls, want := range map[string][]string{
		"tcp,cuda_copy": nil, // NICs alone would leave UCX nothing
		"^ib":           nil,
		"rc,cuda_copy":  {"UCX_NET_DEVICES=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", "UCX_MAX_RMA_RAILS=4"},
	} {
		if diff := cmp.Diff(want, settingsOf(h, 0, func(name string) (string, bool) { return tls, name == "UCX_TLS" })); diff != "" {
			t.Errorf("UCX_TLS=%s (-want +got):\n%s", tls, diff)
		}
	}
	got := settingsOf(h, 0, func(name string) (string, bool) { return "mlx5_0:1", name == "UCX_NET_DEVICES" })
	if slices.Contains(got, "UCX_MAX_RMA_RAILS=4") {
		t.Errorf("%q: the user leaves one port", got)
	}
}

func TestANICThatThisProcessCannotUseIsNotChosen(t *testing.T) {
	for _, tc := range []struct {
		name string
		harm func(cfg *Config) error
	}{
		{"its port is down", func(cfg *Config) error {
			return os.WriteFile(filepath.Join(cfg.Sys, "class/infiniband/mlx5_0/ports/1/state"), []byte("1: DOWN\n"), 0o644)
		}},
		{"a container was not given it", func(cfg *Config) error { return os.Remove(filepath.Join(cfg.Dev, "infiniband/uverbs0")) }},
		{"ib_uverbs does not know it", func(cfg *Config) error { return os.RemoveAll(filepath.Join(cfg.Sys, "class/infiniband_verbs/uverbs0")) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLab(t, "eight-by-eight")
			if err := tc.harm(&l.cfg); err != nil {
				t.Fatal(err)
			}
			h := l.look()
			c := h.Choose()[0]
			if got := h.names(c.NICs); !slices.Equal(got, []string{"mlx5_1"}) || c.Distance != SameNode {
				t.Errorf("%q, %s: want one of the fast NICs of the same processor, lent by another GPU", got, c.Distance)
			}
		})
	}
}

func TestRailsFollowTheGPUs(t *testing.T) {
	h := newLab(t, "eight-by-eight").look()
	want := []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}
	if diff := cmp.Diff(want, h.Rails(h.Choose())); diff != "" {
		t.Errorf("rails (-want +got):\n%s", diff)
	}
}

func TestGPUsOnTheBusAreSeenWithoutADriver(t *testing.T) {
	l := newLab(t, "eight-by-eight")
	want := chosen(l.look())
	l.cfg.Ask = func() (Answer, error) { return Answer{}, ErrNoDriver }
	if h := Look(l.cfg); !errors.Is(h.GPUErr, ErrNoDriver) || len(h.GPUs) != 0 || len(h.OnBus) != 8 || len(h.NICs) != 10 {
		t.Errorf("%v, %d GPUs, %d on the bus, %d NICs", h.GPUErr, len(h.GPUs), len(h.OnBus), len(h.NICs))
	}
	l.cfg.Ask = nil
	if diff := cmp.Diff(want, chosen(l.look())); diff != "" {
		t.Errorf("NICs for GPUs that nobody was asked about (-want +got):\n%s", diff)
	}
}

func TestALinkIsAsFastAsItsLanesTogether(t *testing.T) {
	for _, tc := range []struct {
		link Link
		want float64 // as the vendors' tables round it
	}{
		{Link{GTs: 2.5, Width: 1}, 0.25}, {Link{GTs: 5, Width: 16}, 8}, {Link{GTs: 8, Width: 16}, 15.75}, {Link{GTs: 16, Width: 16}, 31.5}, {Link{GTs: 32, Width: 16}, 63.0},
		{Link{GTs: 64, Width: 16}, 121}, {Link{}, 0}, {Link{GTs: 32}, 0},
	} {
		if got := tc.link.GBs(); math.Abs(got-tc.want) > 0.01*tc.want {
			t.Errorf("%v: %.2f GB/s, want %.2f", tc.link, got, tc.want)
		}
	}
	h := newLab(t, "eight-by-eight").look()
	if h.GPULink(0) != (Link{32, 16, 32, 16}) || h.NICLink(8) != (Link{16, 16, 16, 16}) || h.Rate(0) != 400 {
		t.Errorf("GPU %v, NIC %v with %v Gb/s", h.GPULink(0), h.NICLink(8), h.Rate(0))
	}
	if l := newLab(t, "grace-hopper").look().GPULink(0); l != (Link{}) { // NVLink-C2C is none of PCIe
		t.Errorf("a GPU without a PCIe link has %v", l)
	}
}

func FuzzList(f *testing.F) {
	for _, s := range []string{"0-3,8", "0", "", "3-1", "1-", "-1", "0-99999999999", "x", "9223372036854775807", "0-60000,0-60000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list := List(s)
		if len(list) > listMax {
			t.Fatalf("%q has %d numbers", s, len(list))
		}
		for _, n := range list {
			if n < 0 {
				t.Fatalf("%q has %d", s, n)
			}
		}
	})
}

func TestAListOfTheKernel(t *testing.T) {
	if diff := cmp.Diff([]int{0, 1, 2, 3, 8, 10, 11}, List("0-3,8,10-11\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, none := range []string{"", "x", "1-", "0-999999999", "-3", "65536", "9223372036854775807", "0-60000,0-60000"} {
		if got := List(none); got != nil {
			t.Errorf("%q gives %v", none, got)
		}
	}
}

func TestALinkThatTheKernelDoesNotKnowIsNotKnown(t *testing.T) {
	l := newLab(t, "eight-by-eight")
	function := filepath.Join(l.cfg.Sys, "bus/pci/devices/0000:1b:00.0")
	for _, tc := range []struct {
		file, text string
		want       Link
	}{
		{"max_link_width", "255", Link{GTs: 32, Width: 16, MostGTs: 32}}, // PCIE_LNK_WIDTH_UNKNOWN
		{"current_link_width", "-4", Link{GTs: 32, MostGTs: 32}},
		{"current_link_speed", "NaN GT/s PCIe", Link{MostGTs: 32}},
	} {
		if err := os.WriteFile(filepath.Join(function, tc.file), []byte(tc.text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := l.look().GPULink(0); got != tc.want {
			t.Errorf("%s %s: %+v, want %+v", tc.file, tc.text, got, tc.want)
		}
	}
}
