package bench

import (
	"errors"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestDeviceMemoryIsTouchedThroughItsDriverAlone(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path, err := fakecuda.Build(t.TempDir(), "libfakecuda.so")
	if err != nil {
		t.Fatal(err)
	}
	do := func(command string) int {
		t.Helper()
		n, err := fakecuda.Control(path, command)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Setenv("KVLEASE_CUDA", path)
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

	do("fail cuMemAlloc 1 2")
	if _, err := openMemory("vram", block, false, 0); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_OUT_OF_MEMORY") || do("active 0") != 0 {
		t.Errorf("without room: active %d, %v", do("active 0"), err)
	}
	t.Setenv("KVLEASE_CUDA", filepath.Join(t.TempDir(), "none.so"))
	if _, err := openMemory("vram", block, false, 0); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("without a driver: %v", err)
	}
}
