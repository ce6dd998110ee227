package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/cuda/fabric/machine"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/require"
)

func TestMain(m *testing.M) {
	code := m.Run()
	faketest.Remove()
	os.Exit(code)
}

// fakeDriver is one as it was built; do gives it a command.
func fakeDriver(t *testing.T) (do func(format string, args ...any) int) {
	t.Helper()
	path, err := faketest.Path()
	require.Compiled(t, err)
	t.Setenv("KVLEASE_CUDA", path)
	do = (&faketest.Script{TB: t, Path: path}).Do
	do("reset")
	return do
}

func TestDeviceMemoryIsTouchedThroughItsDriverAlone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	do := fakeDriver(t)
	const block = 1 << 16
	m, err := openMemory("vram", 4*block, true, 1)
	if err != nil {
		t.Fatal(err)
	}
	if m.kind() != transport.VRAM || m.device() != 1 || m.word(0) != nil || do("active 1") != 1 || do("current") != 1 {
		t.Errorf("kind %d, device %d, active %d, current %d", m.kind(), m.device(), do("active 1"), do("current"))
	}
	if err := marks(7).put(m, 3, block); err != nil {
		t.Fatal(err)
	}
	if err := marks(7).check(m, 3, block); err != nil {
		t.Error(err)
	}
	if err := marks(8).check(m, 3, block); err == nil || !strings.Contains(err.Error(), "holds 0x7 at byte 0, P has 0x8") {
		t.Errorf("another mark: %v", err)
	}
	if err := m.copy(0, 3*block, block); err != nil || m.(*vram).host[0] != 7 {
		t.Errorf("the copy has %#x, %v", m.(*vram).host[0], err)
	}
	if err := m.free(); err != nil || do("active 1") != 0 || do("current") == 1 {
		t.Errorf("left: active %d, current %d, %v", do("active 1"), do("current"), err)
	}

	for _, symbol := range []string{"cuDeviceGetCount", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent", "cuMemAlloc", "cuPointerSetAttribute"} {
		do("fail %s 1 2", symbol)
		if _, err := openMemory("vram", block, false, 0); err == nil || !strings.Contains(err.Error(), symbol+": CUDA_ERROR_OUT_OF_MEMORY") ||
			do("active 0") != 0 || do("retains 0") != 0 || do("current") != 99 {
			t.Errorf("%s: active %d, held %d times, current %d, %v", symbol, do("active 0"), do("retains 0"), do("current"), err)
		}
	}
	t.Setenv("KVLEASE_CUDA", filepath.Join(t.TempDir(), "none.so"))
	if _, err := openMemory("vram", block, false, 0); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("without a driver: %v", err)
	}
}

// nic stands for one that reads device memory: bytes go through the fake driver, whose memory the host cannot touch, and the loopback
// carries the rest. It has the driver keep what it writes from the device until a flush, as far as a count of flushes shows it.
type nic struct {
	transport.Transport
	ctx     [2]*cuda.Context
	anchor  []byte // registered in place of device memory
	written *int
}

func (n *nic) Register(regions []transport.Region) error {
	list := append([]transport.Region{{Addr: address(n.anchor), Bytes: uint64(len(n.anchor))}}, regions...)
	return n.Transport.Register(slices.DeleteFunc(list, func(r transport.Region) bool { return r.Mem == transport.VRAM }))
}

func (n *nic) Unregister(regions []transport.Region) error { return nil } // with Close

func (n *nic) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	if spec.LocalMem != transport.VRAM {
		return n.Transport.PostRead(spec)
	}
	for _, d := range spec.Descs {
		block := make([]byte, d.Len)
		if err := errors.Join(n.ctx[d.RemoteDevice].CopyOut(block, d.Remote), n.ctx[d.LocalDevice].CopyIn(d.Local, block)); err != nil {
			return 0, err
		}
		*n.written++
	}
	one := *spec
	one.LocalMem, one.RemoteMem = transport.DRAM, transport.DRAM
	one.Descs = []transport.Desc{{Local: address(n.anchor), Remote: address(n.anchor), Len: 8}}
	return n.Transport.PostRead(&one)
}

func TestDeviceMemoryIsMeasuredThroughTheCoresOwnRegistration(t *testing.T) {
	do := fakeDriver(t)
	root := t.TempDir()
	shape, err := machine.Load("eight-by-eight")
	if err != nil {
		t.Fatal(err)
	}
	shape.GPUs[1].PCI = "0000:1c:00.0" // as the fake has its second one
	if err := shape.Build(root); err != nil {
		t.Fatal(err)
	}
	driver, err := cuda.Open("")
	if err != nil {
		t.Fatal(err)
	}
	var ctx [2]*cuda.Context
	for i := range ctx {
		if ctx[i], err = driver.Make(i); err != nil {
			t.Fatal(err)
		}
		defer ctx[i].Release()
	}
	anchor, written := make([]byte, 64), 0
	cfg := small()
	cfg.Memory, cfg.Devices = "vram", [2]int{0, 1}
	cfg.Machine = devices.Machine{Sys: root + "/sys", Proc: root + "/proc", Dev: root + "/dev"}
	through := func(tr transport.Transport) transport.Transport { return &nic{tr, ctx, anchor, &written} }
	for _, ordering := range []int{100, 0} {
		t.Run(fmt.Sprintf("ordering %d", ordering), func(t *testing.T) {
			do(fmt.Sprintf("attribute 1 118 %d", ordering)) // GPU_DIRECT_RDMA_WRITES_ORDERING of D's
			began, before := do("count cuFlushGPUDirectRDMAWrites"), written
			r, err := measureOver(t, t.Context(), cfg, through, through)
			if err != nil {
				t.Fatal(err)
			}
			flushed, reads := do("count cuFlushGPUDirectRDMAWrites")-began, written-before
			checked := len(cfg.Blocks) * len(cfg.Counts) * (cfg.Rounds + warmUps) * cfg.Samples * (len(readWays) - 1) // a copy is not
			if reads == 0 || (flushed >= checked) != (ordering == 0) || ordering != 0 && flushed != 0 {
				t.Errorf("%d pieces written, %d reads checked, %d flushes", reads, checked, flushed)
			}
			for _, read := range r.Reads {
				for _, w := range read.Ways {
					sound(t, read.name()+" "+w.Way, w.Us)
					if w.FirstUs != nil {
						t.Errorf("%s %s: the host has seen the first word of device memory", read.name(), w.Way)
					}
				}
			}
			want := []Link{
				{"GPU 0000:1b:00.0", 63.015384615384619, "PCIe 32 GT/s x16"}, {"GPU 0000:1c:00.0", 63.015384615384619, "PCIe 32 GT/s x16"},
				{"mlx5_0", 50, "400 Gb/sec (4X NDR)"}, {"mlx5_1", 50, "400 Gb/sec (4X NDR)"},
			}
			if diff := cmp.Diff(want, []Link(r.Links)); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			var said bytes.Buffer
			if err := r.Write(&said); err != nil {
				t.Fatal(err)
			}
			if want := "in GB/s: GPU 0000:1b:00.0 63.0 (PCIe 32 GT/s x16), "; !strings.Contains(said.String(), want) {
				t.Errorf("the text lacks %q:\n%s", want, said.String())
			}
		})
	}
	do("attribute 1 117 0") // nor can D's device be flushed
	if _, err := measureOver(t, t.Context(), cfg, through, through); err == nil || !strings.Contains(err.Error(), "flush") {
		t.Errorf("a device that neither orders nor flushes: %v", err)
	}
}
