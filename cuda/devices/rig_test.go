package devices

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cnixl"
	fakenixl "github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/fakelib"
)

const (
	kvBlocks   = 64
	kvBlockLen = 4096
)

// One of each for all tests: a process may open so many drivers only.
var (
	builtNVML = fakelib.Once{Build: func(dir string) (string, error) { return fakenvml.Build(dir, "libfakenvml.so") }}
	builtNIXL = fakelib.Once{Build: func(dir string) (string, error) { return fakenixl.Build(dir, "libfakenixl.so") }}
)

func TestMain(m *testing.M) {
	code := m.Run()
	faketest.Remove()
	for _, built := range []*fakelib.Once{&builtNVML, &builtNIXL} {
		built.Remove()
	}
	os.Exit(code)
}

// gpus is a machine with two GPUs, of which nothing is real, and an engine that has begun with the first.
type gpus struct {
	*faketest.Script
	t          *testing.T
	machine    Machine
	nvml, nixl string
	root       string // of the machine
	agent      string // the last one that was opened
}

func newGPUs(t *testing.T) *gpus {
	t.Helper()
	return newGPUsOf(t, "eight-by-eight")
}

// newGPUsOf has its GPUs and NICs in a described machine: the fake driver's two are the first of it.
func newGPUsOf(t *testing.T, name string) *gpus {
	t.Helper()
	g := &gpus{t: t, Script: &faketest.Script{TB: t}}
	for _, lib := range []struct {
		file  *string
		built func() (string, error)
		env   string
	}{
		{&g.Path, faketest.Path, "KVLEASE_CUDA"}, {&g.nvml, builtNVML.Path, "KVLEASE_NVML"}, {&g.nixl, builtNIXL.Path, ""},
	} {
		var err error
		if *lib.file, err = lib.built(); err != nil {
			t.Fatal(err)
		}
		if lib.env != "" {
			t.Setenv(lib.env, *lib.file)
		}
	}
	g.fakeNIXL("reset")
	g.reset()
	shape, err := machine.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	shape.Peer = ""
	for i := range min(2, len(shape.GPUs)) {
		shape.GPUs[i].PCI = fmt.Sprintf("0000:%02x:00.0", 0x1b+i)
	}
	root := t.TempDir()
	g.root = root
	if err := shape.Build(root); err != nil {
		t.Fatal(err)
	}
	g.machine = Machine{Sys: root + "/sys", Proc: root + "/proc", Dev: root + "/dev"}
	return g
}

func (g *gpus) reset() {
	g.Do("reset")
	g.Do("engine 0 1")
	for _, line := range []string{"reset", "gpu 0 0000:1b:00.0 A", "bar1 0 1073741824 0"} {
		if _, err := fakenvml.Control(g.nvml, line); err != nil {
			g.t.Fatal(err)
		}
	}
}

// cache is a cache of two layers on a device, in one allocation.
func (g *gpus) cache(kind string) []core.Region {
	g.t.Helper()
	const layer = kvBlocks * kvBlockLen
	addr, err := fakecuda.Alloc(g.Path, kind, 0, 2*layer, 0)
	if err != nil {
		g.t.Fatal(err)
	}
	var list []core.Region
	for i := range uint64(2) {
		list = append(list, core.Region{
			Addr: addr + i*layer, Bytes: layer, BlockLen: kvBlockLen, BlockStride: kvBlockLen, Blocks: kvBlocks, Group: -1,
			Mem: transport.VRAM, Name: fmt.Sprintf("layer.%d", i),
		})
	}
	return list
}

// put writes a file of the machine.
func (g *gpus) put(name, text string) {
	g.t.Helper()
	name = filepath.Join(g.root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		g.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gpus) fakeNIXL(format string, args ...any) int {
	g.t.Helper()
	n, err := fakenixl.Control(g.nixl, fmt.Sprintf(format, args...))
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

// engine is a hold of the first device's context, as another part of the engine has it.
func (g *gpus) engine() *cuda.Context {
	g.t.Helper()
	d, err := cuda.Open("")
	if err != nil {
		g.t.Fatal(err)
	}
	c, err := d.Retain(0)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

func (g *gpus) open(drive string) *core.Core {
	g.t.Helper()
	return g.openWith(`"drive":"` + drive + `"`)
}

func (g *gpus) openWith(keys string) *core.Core {
	g.t.Helper()
	cfg, err := core.ParseConfig([]byte(`{"engine_id":"G","log":"host","stats_page":"",` + keys + `}`))
	if err != nil {
		g.t.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		g.t.Fatal(err)
	}
	c, err := core.Open(cfg, mem, map[string]core.OpenTransport{"nixl": func(cfg *core.Config, agent string) (transport.Transport, error) {
		g.agent = agent
		return cnixl.Open(cnixl.Config{Path: g.nixl, Agent: agent, PeersMax: cfg.PeersMax(), Settings: cfg.Settings})
	}}, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	g.machine.Use(c)
	g.t.Cleanup(func() { _ = c.Close(time.Second) })
	return c
}
