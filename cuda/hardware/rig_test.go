package hardware

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cnixl"
	fakenixl "github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fabric/rdma"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/cuda/ipc"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/fakelib"
	"github.com/kvlease/kvlease/internal/require"
)

var fakes = map[string]*fakelib.Once{
	"nvml": {Build: func(dir string) (string, error) { return fakenvml.Build(dir, "libfakenvml.so") }},
	"nixl": {Build: func(dir string) (string, error) { return fakenixl.Build(dir, "libfakenixl.so") }},
}

func TestMain(m *testing.M) {
	code := m.Run()
	faketest.Remove()
	for _, f := range fakes {
		f.Remove()
	}
	os.Exit(code)
}

// rig is a machine with GPUs and this process as the engine on them: the machine's own if KVLEASE_GPU says so, else of fakes.
type rig struct {
	*faketest.Script // of the fake driver, if it is one
	t                *testing.T
	real             bool
	machine          devices.Machine
	nixl             cnixl.Config
	ipc              bool // reads of device memory by the fake driver (cuda/ipc), since NIXL has no way to its memory
	driver           *cuda.Driver
}

// newRig keeps the test on one thread, which is the engine's.
func newRig(t *testing.T) *rig {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	g := &rig{t: t, real: os.Getenv("KVLEASE_GPU") == "1"}
	if g.real {
		g.nixl.Folders = []string{"../.."}
	} else {
		g.build()
	}
	var err error
	if g.driver, err = cuda.Open(""); err != nil {
		t.Fatal(err)
	}
	return g
}

// build is a machine of two GPUs with a NIC each, and dma-buf.
func (g *rig) build() {
	g.t.Helper()
	driver, err := faketest.Path()
	require.Compiled(g.t, err)
	g.Script = &faketest.Script{TB: g.t, Path: driver}
	path := map[string]string{}
	for name, f := range fakes {
		var err error
		path[name], err = f.Path()
		require.Compiled(g.t, err)
	}
	g.t.Setenv("KVLEASE_CUDA", driver)
	g.t.Setenv("KVLEASE_NVML", path["nvml"])
	g.nixl.Path = path["nixl"]
	g.Do("reset")
	g.bar1(1<<30, 0)
	shape, err := machine.Load("eight-by-eight") // for its NICs
	if err != nil {
		g.t.Fatal(err)
	}
	root := g.t.TempDir()
	if err := shape.Build(root); err != nil {
		g.t.Fatal(err)
	}
	g.machine = devices.Machine{Sys: root + "/sys", Proc: root + "/proc", Dev: root + "/dev"}
}

// bar1 is the window of both fake GPUs.
func (g *rig) bar1(total, used uint64) {
	g.t.Helper()
	path, err := fakes["nvml"].Path()
	for _, line := range []string{
		"reset", "gpu 0 0000:1b:00.0 A", "gpu 1 0000:1c:00.0 B", fmt.Sprintf("bar1 0 %d %d", total, used), fmt.Sprintf("bar1 1 %d %d", total, used),
	} {
		if err == nil {
			_, err = fakenvml.Control(path, line)
		}
	}
	if err != nil {
		g.t.Fatal(err)
	}
}

// nic reports whether this process can open a NIC that is up: only then memory is held against what NICs need.
func (g *rig) nic() bool {
	sys, dev := g.machine.Sys, g.machine.Dev
	if g.real {
		sys, dev = "/sys", "/dev"
	}
	return len(rdma.Usable(rdma.Look(sys, dev))) > 0
}

// begin makes the context of a device, as an engine does, and gives up that hold at the end of the test.
func (g *rig) begin(device int) *cuda.Context {
	g.t.Helper()
	c, err := g.driver.Make(device)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		if err := c.Release(); err != nil {
			g.t.Error(err)
		}
	})
	return c
}

// alloc is memory of a device until the test ends.
func (g *rig) alloc(c *cuda.Context, bytes uint64) uint64 {
	g.t.Helper()
	addr, err := c.Alloc(bytes)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		if err := c.Free(addr); err != nil {
			g.t.Error(err)
		}
	})
	return addr
}

// open is a context of kvlease over NIXL.
func (g *rig) open(name string) *core.Core {
	g.t.Helper()
	told := "off"
	if g.real { // what was registered, and what could not be looked at, belong into the report
		told = "stderr"
	}
	cfg, err := core.ParseConfig(fmt.Appendf(nil, `{"engine_id":%q,"stats_page":"","quarantine_error_wait":1,"read_timeout":30,"log":%q,"log_level":"info"}`, name, told))
	if err != nil {
		g.t.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		g.t.Fatal(err)
	}
	c, err := core.Open(cfg, mem, map[string]core.OpenTransport{"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		with := g.nixl
		with.Agent, with.PeersMax = agent, cfg.PeersMax()
		tr, err := cnixl.Open(with)
		if err != nil || !g.ipc {
			return tr, err
		}
		return ipc.New(tr, ipc.Config{Driver: g.driver, ReadsMax: 16, DescsMax: 64})
	}}, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	g.machine.Use(c)
	g.t.Cleanup(func() {
		if err := c.Close(5 * time.Second); err != nil {
			g.t.Error(err)
		}
	})
	return c
}

const block = 64 << 10

// region is device memory in blocks of 64 KiB.
func region(addr uint64, blocks uint32, device int) core.Region {
	return core.Region{
		Addr: addr, Bytes: uint64(blocks) * block, BlockLen: block, BlockStride: block, Blocks: blocks, Group: -1,
		Mem: transport.VRAM, Device: uint32(device), Name: fmt.Sprintf("kv at %#x", addr),
	}
}
