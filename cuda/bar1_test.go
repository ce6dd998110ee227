package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cuda/fakenvml"
)

func TestTheFreeWindowIsToldByTheBusAddressOfADevice(t *testing.T) {
	s := newScript(t)
	d := s.open()
	nvml, err := fakenvml.Build(t.TempDir(), "libfakenvml.so")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("KVLEASE_NVML", nvml)
	do := func(line string) {
		t.Helper()
		if _, err := fakenvml.Control(nvml, line); err != nil {
			t.Fatal(err)
		}
	}
	// CUDA numbers them otherwise: device 0 is at 1b.
	for _, line := range []string{"gpu 0 0000:1c:00.0 B", "bar1 0 1000 900", "gpu 1 0000:0a:00.0 C", "lost 1 1", "gpu 2 0000:1b:00.0 A", "bar1 2 2000 500"} {
		do(line)
	}
	for device, want := range []uint64{1500, 100} {
		if got, err := d.BAR1Free(device); err != nil || got != want {
			t.Errorf("device %d: %d, %v, want %d", device, got, err, want)
		}
	}
	do("bar1 2 2000 5000") // what is used is more than there is, so what is free would be all that a number holds
	if got, err := d.BAR1Free(0); err != nil || got != 2000 {
		t.Errorf("a window of 2000 of which more is free: %d, %v", got, err)
	}
	do("counts 4000000000 0")
	if _, err := d.BAR1Free(1); err != nil {
		t.Errorf("many GPUs are counted: %v", err)
	}
	for _, tc := range []struct {
		script, want string
	}{
		{"fail Init_v2 1 9", "nvmlInit_v2 answers 9"},
		{"fail DeviceGetCount_v2 1 999", "nvmlDeviceGetCount_v2 answers 999"},
		{"fail DeviceGetBAR1MemoryInfo 1 3", "nvmlDeviceGetBAR1MemoryInfo answers 3"},
		{"lost 2 1", "does not know device 0"},
	} {
		do(tc.script)
		if _, err := d.BAR1Free(0); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.script, err)
		}
	}
	do("counts 4000000000 0")
	do("lost 0 1")
	if _, err := d.BAR1Free(1); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a device that is none of many: %v", err)
	}
	if n, err := fakenvml.Control(nvml, "count DeviceGetHandleByIndex_v2"); err != nil || n > 5000 {
		t.Errorf("the library was asked for %d GPUs, %v", n, err)
	}
	if _, err := d.BAR1Free(7); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "device 7") {
		t.Errorf("device 7: %v", err)
	}
	without, err := fakenvml.Build(t.TempDir(), "libwithout.so", "nvmlDeviceGetBAR1MemoryInfo")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{without: "no symbol nvmlDeviceGetBAR1MemoryInfo", filepath.Join(t.TempDir(), "none.so"): "none.so"} {
		t.Setenv("KVLEASE_NVML", file)
		if _, err := d.BAR1Free(0); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
