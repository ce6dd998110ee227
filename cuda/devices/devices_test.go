package devices

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	fakenixl "github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fakenvml"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestDeviceMemoryIsRegisteredAndServedUnderTheEnginesContext(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := newGPUs(t)
	c := g.open("inline")
	if n := g.Do("count cuInit"); n != 0 {
		t.Errorf("the driver was begun %d times without device memory", n)
	}
	cache := g.cache("device")
	for era := range 3 { // sleep and wake; each time the cache, what is ours, and where the page of the twin lands
		if err := c.Register(cache); err != nil {
			t.Fatal(err)
		}
		if n, err := fakenixl.Control(g.nixl, "count register_mem"); err != nil || n != 3*(era+1) || g.Do("retains 0") != 2 || g.Do("synced %#x", cache[0].Addr) != 1 {
			t.Errorf("era %d: %d registrations, context held %d times, synced %d, %v", era, n, g.Do("retains 0"), g.Do("synced %#x", cache[0].Addr), err)
		}
		pushes := g.Do("count cuCtxPushCurrent")
		if err := c.Step(); err != nil || g.Do("count cuCtxPushCurrent") != pushes+1 || g.Do("current") != 99 {
			t.Errorf("step: %v, pushed %d times, current %d", err, g.Do("count cuCtxPushCurrent")-pushes, g.Do("current"))
		}
		if err := c.Unregister(); err != nil || g.Do("retains 0") != 1 {
			t.Errorf("unregister: %v, held %d times", err, g.Do("retains 0"))
		}
	}
	if err := c.Register(cache); err != nil {
		t.Fatal(err)
	}
	engine := g.engine()
	if _, err := engine.Enter(); err != nil { // as an engine's forward thread has it
		t.Fatal(err)
	}
	pushes := g.Do("count cuCtxPushCurrent")
	if err := c.Step(); err != nil || g.Do("count cuCtxPushCurrent") != pushes || g.Do("current") != 0 {
		t.Errorf("step on the engine's thread: %v, pushed %d times, current %d", err, g.Do("count cuCtxPushCurrent")-pushes, g.Do("current"))
	}
	if err := engine.Leave(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Close(time.Second), engine.Release()); err != nil || g.Do("retains 0") != 1 {
		t.Errorf("close: %v, held %d times", err, g.Do("retains 0"))
	}
}

func TestAGrantIsOfferedWhenItsCUDAEventHasFired(t *testing.T) {
	g := newGPUs(t)
	c := g.open("inline")
	cache := g.cache("device")
	if err := c.Register(cache); err != nil {
		t.Fatal(err)
	}
	h, err := host.New(c.Memory(), c.Wake)
	if err != nil {
		t.Fatal(err)
	}
	engine := g.engine()
	defer engine.Release()
	stream, err := engine.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	grant := func(id string) (record.Handle, cuda.Event) {
		event, err := engine.NewEvent()
		if err == nil {
			err = engine.Record(event, stream)
		}
		if err != nil {
			t.Fatal(err)
		}
		lease, err := h.Grant(host.Grant{ID: []byte(id), Blocks: 1, Event: uint64(event)}, core.Now())
		if err != nil {
			t.Fatal(err)
		}
		return lease, event
	}
	step := func() {
		t.Helper()
		if err := c.Step(); err != nil {
			t.Fatalf("%v\n%s", err, c.Broken())
		}
	}
	g.Do("hold 1")
	g.Do("launch %#x 4096 9", cache[0].Addr)
	lease, _ := grant("r")
	gone, destroyed := grant("s")
	if err := engine.EndEvent(destroyed); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		step()
	}
	if h.Ready(lease) || h.Ready(gone) {
		t.Error("offered while the kernel runs")
	}
	g.Do("hold 0")
	step()
	if !h.Ready(lease) || h.Ready(gone) || g.Do("byte %#x", cache[0].Addr) != 9 {
		t.Errorf("offered %v, that of a destroyed event %v", h.Ready(lease), h.Ready(gone))
	}
}

func TestThePumpHasTheContextInItsStepsOnly(t *testing.T) {
	g := newGPUs(t)
	c := g.open("pump")
	if err := c.Register(g.cache("device")); err != nil {
		t.Fatal(err)
	}
	for began := g.Do("count cuCtxPopCurrent"); g.Do("count cuCtxPopCurrent") < began+3; { // ends with the test's time
		c.Wake()
		time.Sleep(time.Millisecond)
	}
	if err := c.Close(5 * time.Second); err != nil || g.Do("retains 0") != 1 || g.Do("count cuCtxPushCurrent") != g.Do("count cuCtxPopCurrent") {
		t.Errorf("close: %v, held %d times, %d pushed, %d popped", err, g.Do("retains 0"), g.Do("count cuCtxPushCurrent"), g.Do("count cuCtxPopCurrent"))
	}
}

func TestWhatCannotBeRegisteredOfADeviceIsRefusedBeforeNIXLSeesIt(t *testing.T) {
	g := newGPUs(t)
	c := g.open("inline")
	for _, tc := range []struct {
		name   string
		script []string
		memory string
		kind   error
		words  []string
	}{
		{"an old driver", []string{"version 11080"}, "device", core.ErrUnavailable, []string{"11.8", "12.0"}},
		{"a missing symbol", []string{"missing cuFlushGPUDirectRDMAWrites"}, "device", core.ErrUnavailable, []string{"no symbol cuFlushGPUDirectRDMAWrites"}},
		{"no context", []string{"engine 0 0"}, "device", core.ErrUnavailable, []string{"no primary context"}},
		{"managed memory", nil, "managed", core.ErrInvalid, []string{"managed memory", "layer.0"}},
		{"host memory", nil, "host", core.ErrInvalid, []string{"KVL_MEM_DRAM", "layer.0"}},
		{"no peer memory", []string{"attribute 0 124 0"}, "device", core.ErrUnavailable, []string{"nvidia_peermem"}},
		{"a lost device", []string{"lost 0 719"}, "device", core.ErrUnavailable, []string{"CUDA_ERROR_LAUNCH_FAILED"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.reset()
			cache := g.cache(tc.memory)
			for _, line := range tc.script {
				g.Do("%s", line)
			}
			err := c.Register(cache)
			if !errors.Is(err, tc.kind) {
				t.Fatalf("%v, want %v", err, tc.kind)
			}
			for _, w := range append(tc.words, "Remedy: ") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if len(err.Error()) > 500 {
				t.Errorf("%d bytes: kvl_last_error would cut it", len(err.Error()))
			}
		})
	}
	g.reset()
	if _, err := fakenvml.Control(g.nvml, "bar1 0 1073741824 1073676288"); err != nil { // 64 KiB free
		t.Fatal(err)
	}
	err := c.Register(g.cache("device"))
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "0.5 MiB") || !strings.Contains(err.Error(), "0.1 MiB of its BAR1 window") { // shows C64.1
		t.Errorf("%v, want need and room", err)
	}
	if n, err := fakenixl.Control(g.nixl, "count register_mem"); err != nil || n != 0 {
		t.Errorf("NIXL was asked %d times, %v", n, err)
	}
	g.machine.Sys = t.TempDir() // a machine without NICs, whose reads take other ways
	if err := g.open("inline").Register(g.cache("device")); err != nil {
		t.Errorf("without NICs: %v", err)
	}
}

// TestAManagementLibraryThatFailsIsAskedOnceADevice, whatever the number of regions: each question begins it anew, which takes seconds where a GPU is ill.
func TestAManagementLibraryThatFailsIsAskedOnceADevice(t *testing.T) {
	g := newGPUs(t)
	tell := func(line string) int {
		n, err := fakenvml.Control(g.nvml, line)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	tell("fail Init_v2 1 999")
	before := tell("count Init_v2")
	if err := g.open("inline").Register(g.cache("device")); err != nil {
		t.Fatal(err)
	}
	if n := tell("count Init_v2") - before; n != 1 {
		t.Errorf("for two regions it was asked %d times", n)
	}
}

func TestADevicesAddressUnderTheNameOfHostMemoryIsRefused(t *testing.T) {
	g := newGPUs(t)
	c := g.open("inline")
	cache := g.cache("device")
	cache[1].Mem = transport.DRAM
	err := c.Register(cache)
	if !errors.Is(err, core.ErrInvalid) {
		t.Fatalf("%v, want that it is invalid", err)
	}
	for _, w := range []string{"region 1", "layer.1", "device memory of device 0", "KVL_MEM_VRAM", "Remedy: "} {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not say %q", err, w)
		}
	}
	if n := g.Do("count cuInit") + g.Do("count cuDevicePrimaryCtxRetain"); n != 0 {
		t.Errorf("the driver was begun or held for it: %d calls", n)
	}
	pinned := g.cache("host")
	for i := range pinned {
		pinned[i].Mem = transport.DRAM
	}
	if err := c.Register(pinned); err != nil {
		t.Errorf("pinned host memory: %v", err)
	}
}

func TestDeviceMemoryThatPeersCouldNotReadIsRefusedAndLetGo(t *testing.T) {
	g := newGPUs(t)
	c := g.open("inline")
	cache := g.cache("device")
	mem, err := unix.Mmap(-1, 0, int(2*cache[0].Bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mem)
	mixed := append(append([]core.Region(nil), cache...), cache...)
	for i := range uint64(2) {
		mixed[i].Mem, mixed[i].Name = transport.DRAM, fmt.Sprintf("host.%d", i)
		mixed[i].Addr = record.Addr(mem) + i*cache[0].Bytes
	}
	for _, tc := range []struct {
		name    string
		regions []core.Region
		nixl    string
		cuda    string
		words   []string
	}{
		{"the transport fails the read of a device", cache, "fail get_xfer_status 1 -2", "", []string{"region 0", "layer.0", "GPU memory to NICs"}},
		{"the device does not give its memory", cache, "", "fail cuMemcpyDtoH 5 719", []string{"region 0", "layer.0", "module cuda"}}, // behind both ends and a look at each region
		{"the transport fails the read of host memory beside it", mixed, "fail get_xfer_status 2 -2", "", []string{"region 1", "host.1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.nixl != "" {
				if _, err := fakenixl.Control(g.nixl, tc.nixl); err != nil {
					t.Fatal(err)
				}
			}
			if tc.cuda != "" {
				g.Do("%s", tc.cuda)
			}
			err := c.Register(tc.regions)
			if !errors.Is(err, core.ErrTransport) {
				t.Fatalf("%v, want that the transport refuses", err)
			}
			for _, w := range append(tc.words, "UCX past shared memory", "Remedy: ", "kvlease doctor") {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if len(err.Error()) > 500 {
				t.Errorf("%d bytes: kvl_last_error would cut it", len(err.Error()))
			}
			if g.Do("retains 0") != 1 || g.Do("count cuCtxPushCurrent") != g.Do("count cuCtxPopCurrent") {
				t.Errorf("held %d times, %d pushed, %d popped", g.Do("retains 0"), g.Do("count cuCtxPushCurrent"), g.Do("count cuCtxPopCurrent"))
			}
		})
	}
	if err := c.Register(mixed); err != nil {
		t.Errorf("without a failure: %v", err)
	}
}

func TestWithoutANICAReadThatFailsOfADeviceIsSaidAndRefusesNothing(t *testing.T) {
	g := newGPUs(t)
	g.machine = Machine{Sys: t.TempDir()}
	c := g.open("inline")
	if _, err := fakenixl.Control(g.nixl, "fail get_xfer_status 1 -2"); err != nil {
		t.Fatal(err)
	}
	if err := c.Register(g.cache("device")); err != nil || !strings.Contains(string(c.Stats()), `"regions_unproven":2`) {
		t.Errorf("%v, statistics %s", err, c.Stats())
	}
}

func TestASlowRegistrationIsToldWhileItLastsAndEndsWell(t *testing.T) {
	g := newGPUs(t)
	for _, tc := range []struct {
		name string
		gate func(closed int)
	}{
		{"the driver", func(closed int) { g.Do("gate cuPointerSetAttribute %d", closed) }},
		{"NIXL", func(closed int) { g.fakeNIXL("gate register_mem %d", closed) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g.reset()
			c, cache := g.open("inline"), g.cache("device")
			c.PaceRegistrations(time.Millisecond, 0)
			tc.gate(1)
			result := make(chan error, 1)
			go func() { result <- c.Register(cache) }()
			said := ""
			for !strings.Contains(said, `"registering_slow"`) { // ends with the test's time
				if err := c.Step(); err != nil || len(result) > 0 { // a step does not wait for it
					t.Fatalf("step: %v; %d results", err, len(result))
				}
				lines, _ := c.Log(1 << 16)
				said += string(lines)
			}
			if !strings.Contains(said, "huge pages") || !strings.Contains(said, "NVRM") {
				t.Errorf("said %s", said)
			}
			tc.gate(0)
			if err := errors.Join(<-result, c.Close(time.Second)); err != nil {
				t.Error(err)
			}
		})
	}
}
