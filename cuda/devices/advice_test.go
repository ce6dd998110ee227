package devices

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	fakenixl "github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
)

// told gives what NIXL's agent was told: whether its backend has this engine_config behind what each agent is told, and this device_list, each "-" if it is
// none.
func (g *gpus) told(engine, devices string) bool {
	g.t.Helper()
	ask := func(what, text string) bool {
		n, err := fakenixl.Control(g.nixl, what+" "+g.agent+" "+text)
		if err != nil || n < 0 {
			g.t.Fatalf("agent %s: %d, %v", g.agent, n, err)
		}
		return n == 1
	}
	each := "TCP_CONN_NB=y"
	if engine != "-" {
		each += "," + engine
	}
	return ask("engine", each) && ask("devices", devices)
}

func (g *gpus) said(c *core.Core) (texts []string) {
	g.t.Helper()
	var book logtest.Book
	text, _ := c.Log(1 << 20)
	book.Take(g.t, text)
	for _, line := range book.Of(g.t, log.TransportTold) {
		texts = append(texts, line.What)
	}
	return texts
}

func TestNIXLIsToldWhichNICsAreTheDevices(t *testing.T) {
	const others = "^mlx5_1,mlx5_2,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_7,mlx5_8,mlx5_9" // GPU 0's is mlx5_0
	for _, tc := range []struct {
		name, machine, config, env, file string
		engine, devices                  string
		words                            string // of the first line; empty: none is said
	}{
		{"a GPU with its NIC", "eight-by-eight", "", "", "", "-", others, "UCX_NET_DEVICES is ^mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_...: of 10 NICs these are GPU 0000:1b:00.0's: mlx5_0: same PCIe switch; " +
			"the NIC reads the GPU without touching the processor. Without it UCX also takes mlx5_1, mlx5_2, mlx5_3 and 6 more"},
		{"the user has said it in the environment", "eight-by-eight", "", "UCX_NET_DEVICES=mlx5_3:1", "", "-", "-", `UCX_NET_DEVICES stays "mlx5_3:1", as you say, and would be ^mlx5_1:1`},
		{"or in a file of UCX's", "eight-by-eight", "", "", "UCX_NET_DEVICES=mlx5_4:1\n", "-", "-", `UCX_NET_DEVICES stays "mlx5_4:1", as you say`},
		{"the user takes no NIC", "eight-by-eight", "", "UCX_TLS=tcp,cuda_copy", "", "-", "-", ""},
		{"it is switched off", "eight-by-eight", `,"transport_settings":"off"`, "", "", "-", "-", ""},
		{"two NICs far away", "far-socket", "", "", "", "NET_DEVICES=^mlx5_1:1", "-", "UCX_NET_DEVICES is ^mlx5_1:1: of 2 NICs these are GPU 0000:1b:00.0's: mlx5_0: across sockets"},
		{"the only NIC that is up", "grace-hopper", "", "", "", "-", "-", ""},
		{"no NIC", "no-nic", "", "", "", "-", "-", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if name, value, ok := strings.Cut(tc.env, "="); ok {
				t.Setenv(name, value)
			}
			g := newGPUsOf(t, tc.machine)
			if tc.file != "" {
				g.put("proc/self/cwd/ucx.conf", tc.file)
			}
			c := g.openWith(`"drive":"inline","log_level":"info"` + tc.config)
			if !g.told("-", "-") {
				t.Error("the agent was told something before there was memory")
			}
			if err := c.Register(g.cache("device")); err != nil {
				t.Fatal(err)
			}
			if !g.told(tc.engine, tc.devices) {
				t.Errorf("the agent was not told %s and %s", tc.engine, tc.devices)
			}
			switch said := g.said(c); {
			case tc.words == "" && len(said) != 0, tc.words != "" && (len(said) != 1 || !strings.Contains(said[0], tc.words) || strings.Contains(said[0], "cut")):
				t.Errorf("said %q, want %q", said, tc.words)
			}
			if v, set := os.LookupEnv("UCX_NET_DEVICES"); set != strings.HasPrefix(tc.env, "UCX_NET_DEVICES") {
				t.Errorf("the process has UCX_NET_DEVICES=%s", v)
			}
		})
	}
}

func TestADeviceThatSysfsDoesNotKnowGetsNoAdvice(t *testing.T) {
	g := newGPUsOf(t, "eight-by-eight")
	if err := os.Remove(filepath.Join(g.root, "sys/bus/pci/devices/0000:1b:00.0")); err != nil {
		t.Fatal(err)
	}
	c := g.open("inline")
	if err := c.Register(g.cache("device")); err != nil || !g.told("-", "-") {
		t.Errorf("%v; or it was told something", err)
	}
}

func TestACacheOnTwoDevicesHasTheNICsOfBoth(t *testing.T) {
	g := newGPUsOf(t, "eight-by-eight")
	d, err := g.machine.Open()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range d.(core.Advisor).Advise([]core.Region{{Device: 1}, {Device: 0}, {Device: 1}}) {
		got = append(got, s.Name+"="+s.Value)
	}
	want := []string{"UCX_NET_DEVICES=^mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1,mlx5_6:1,mlx5_7:1,mlx5_8:1,mlx5_9:1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("advice (-want +got):\n%s", diff)
	}
	if got := d.(core.Advisor).Advise([]core.Region{{Device: 7}}); got != nil {
		t.Errorf("advice for a device that the driver does not have: %+v", got)
	}
}
