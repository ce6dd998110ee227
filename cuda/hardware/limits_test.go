package hardware

import (
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestWhatIsNoCacheIsRefusedBeforeNIXLSeesIt(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	addr := g.alloc(engine, 4*block)
	host, err := unix.Mmap(-1, 0, block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(host)
	freed, err := engine.Alloc(64 << 20) // of its own, so that nothing else lies there
	if err == nil {
		err = engine.Free(freed)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := g.open("P")
	good := region(addr, 4, 0)
	with := func(change func(*core.Region)) []core.Region {
		r := good
		change(&r)
		return []core.Region{r}
	}
	for _, tc := range []struct {
		name string
		list []core.Region
		want error
		says string
	}{
		{"no multiple of 16", with(func(r *core.Region) { r.Addr += 8; r.Blocks, r.Bytes = 3, 3*block }), cuda.ErrInvalid, "multiple of 16"},
		{"past its allocation", with(func(r *core.Region) { r.Blocks, r.Bytes = 1<<16, 1<<16*block }), cuda.ErrInvalid, "its allocation ends"},
		{"host memory", []core.Region{region(record.Addr(host), 1, 0)}, cuda.ErrInvalid, "KVL_MEM_DRAM"},
		{"memory that is freed", []core.Region{region(freed, 1, 0)}, cuda.ErrInvalid, "no memory of CUDA's"},
		{"a device that is not there", with(func(r *core.Region) { r.Device = 4095 }), cuda.ErrInvalid, "device 4095"},
		{"one block twice", []core.Region{good, region(addr+block, 1, 0)}, core.ErrInvalid, "overlap"},
		{"the GPU's address as host memory", with(func(r *core.Region) { r.Mem = transport.DRAM }), core.ErrInvalid, "host memory was said"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := c.Register(tc.list)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("%v, want %v with %q", err, tc.want, tc.says)
			}
			t.Log(err)
		})
	}
	if err := errors.Join(c.Register([]core.Region{good}), c.Unregister()); err != nil {
		t.Errorf("a cache that is one: %v", err)
	}
}

// TestRegionsThatTouchAreOneRegistration: an engine has a region for each layer, and each registration costs a NIC.
func TestRegionsThatTouchAreOneRegistration(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	const regions = 4096
	addr := g.alloc(engine, regions*block)
	list := make([]core.Region, 0, regions)
	for i := range uint64(regions) {
		list = append(list, region(addr+i*block, 1, 0))
	}
	devices, err := g.machine.Open()
	if err != nil {
		t.Fatal(err)
	}
	held, err := devices.Hold(list)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Release()
	if got := held.Ranges(); len(got) != 1 || got[0].Addr != addr || got[0].Bytes != regions*block {
		t.Errorf("%d registrations, the first %+v; want one of %d bytes", len(got), got[0], regions*block)
	}
	for _, note := range held.Notes() {
		t.Log(note)
	}
}

// TestSizes says what registering costs, up to half of what the device has free.
func TestSizes(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	c := g.open("P")
	largest := uint64(1 << 30)
	if g.real {
		largest = 64 << 30
	}
	done := 0
	for bytes := uint64(block); bytes <= largest; bytes *= 16 {
		addr, err := engine.Alloc(2 * bytes)
		if err != nil {
			t.Logf("%8d KiB: %v", bytes>>10, err)
			break
		}
		began := time.Now()
		err = c.Register([]core.Region{region(addr, uint32(bytes/block), 0)})
		took := time.Since(began)
		if err != nil {
			t.Errorf("%d KiB: %v", bytes>>10, err)
		} else {
			began = time.Now()
			err = c.Unregister()
			t.Logf("%8d KiB: registered in %v, unregistered in %v", bytes>>10, took.Round(time.Microsecond), time.Since(began).Round(time.Microsecond))
			done++
		}
		if err = errors.Join(err, engine.Free(addr)); err != nil {
			t.Fatal(err)
		}
	}
	if done < 3 {
		t.Errorf("%d sizes could be registered, want 3", done)
	}
}

// TestTheWindow asks for more than the free part of BAR1, where the device has the memory for it.
func TestTheWindow(t *testing.T) {
	g := newRig(t)
	if !g.real {
		g.bar1(256<<20, 192<<20)
	}
	engine := g.begin(0)
	free, err := g.driver.BAR1Free(0)
	if err != nil {
		if !g.real {
			t.Fatal(err)
		}
		t.Skipf("the window is not known: %v", err)
	}
	t.Logf("%d MiB of the BAR1 window are free", free>>20)
	blocks := uint32(free/block) + 1
	addr, err := engine.Alloc(uint64(blocks) * block)
	if err != nil {
		if !g.real {
			t.Fatal(err)
		}
		t.Skipf("the device has not the memory to exceed it: %v", err)
	}
	defer func() {
		if err := engine.Free(addr); err != nil {
			t.Error(err)
		}
	}()
	c := g.open("P")
	err = c.Register([]core.Region{region(addr, blocks, 0)})
	if !g.nic() {
		t.Log("no NIC can be opened here: nothing is held against the window")
		if err = errors.Join(err, c.Unregister()); err != nil || !g.real {
			t.Errorf("%v; the fakes have a NIC", err)
		}
		return
	}
	if !errors.Is(err, core.ErrUnavailable) || !strings.Contains(err.Error(), "BAR1") {
		t.Fatalf("%v, want a refusal that names BAR1", err)
	}
	t.Log(err)
}
