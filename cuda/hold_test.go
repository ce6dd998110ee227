package cuda

import (
	"runtime"
	"testing"
)

func TestAHoldTakesContextsAndSetsAndReadsTheMemory(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := newScript(t)
	d := s.open()
	s.Do("engine 0 1")
	s.Do("engine 1 1")
	s.Do("slow cuPointerSetAttribute 30") // a registration may take its time
	a, b := s.alloc("device", 1, 1<<20, 0), s.alloc("device", 0, 4096, 0)
	h, err := d.Hold([]Region{{Addr: a, Bytes: 1 << 19, Device: 1}, {Addr: a + 1<<19, Bytes: 1 << 19, Device: 1}, {Addr: b, Bytes: 16}}, open64)
	if err != nil {
		t.Fatal(err)
	}
	if s.Do("retains 0") != 2 || s.Do("retains 1") != 2 || s.Do("synced %#x", a) != 1 || s.Do("synced %#x", b) != 1 || len(h.Ranges()) != 2 {
		t.Errorf("held %d and %d times, synced %d and %d, ranges %v", s.Do("retains 0"), s.Do("retains 1"), s.Do("synced %#x", a), s.Do("synced %#x", b), h.Ranges())
	}
	if n := s.Do("count cuMemcpyDtoH"); n != 4 || len(h.Notes()) != 0 {
		t.Errorf("%d reads of both ends of two ranges, notes %q", n, h.Notes())
	}
	if pushed, err := h.Enter(); err != nil || !pushed || s.current() != 0 {
		t.Errorf("pushed %v, current %d, %v", pushed, s.current(), err)
	}
	if err := h.Leave(); err != nil || s.current() != 99 {
		t.Errorf("current %d, %v", s.current(), err)
	}
	if h.Unordered() || h.Flush() != nil || s.Do("count cuFlushGPUDirectRDMAWrites") != 0 {
		t.Error("ordered writes are flushed")
	}
	if err := h.Release(); err != nil || s.Do("retains 0") != 1 || s.Do("retains 1") != 1 {
		t.Errorf("held %d and %d times, %v", s.Do("retains 0"), s.Do("retains 1"), err)
	}
}

func TestAHoldThatFailsHoldsNothing(t *testing.T) {
	s := newScript(t)
	d := s.open()
	for _, tc := range []struct {
		name   string
		script []string
		kind   error
		words  []string
	}{
		{"a region that cannot be", []string{"attribute 1 116 0", "attribute 1 124 0"}, ErrUnavailable, []string{"device 1", "GPUDirect RDMA"}},
		{"no context on the second device", []string{"engine 1 0"}, ErrUnavailable, []string{"device 1", "no primary context"}},
		{"no memory for a context", []string{"fail cuDevicePrimaryCtxRetain 2 2"}, ErrUnavailable, []string{"cuDevicePrimaryCtxRetain", "CUDA_ERROR_OUT_OF_MEMORY"}},
		{"copies that cannot be made to wait", []string{"fail cuPointerSetAttribute 2 719"}, ErrUnavailable, []string{"allocation of", "cuPointerSetAttribute"}},
		{"memory that is gone", []string{"fail cuMemcpyDtoH 4 1"}, ErrInvalid, []string{"cannot be read", "cuMemcpyDtoH", "CUDA_ERROR_INVALID_VALUE"}},
		{"a lost device", []string{"lost 1 719"}, ErrUnavailable, []string{"device 1", "CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
		{"writes that can be neither ordered nor flushed", []string{"attribute 1 118 0", "attribute 1 117 0"}, ErrUnavailable, []string{"device 1", "orders no writes"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s.Do("reset")
			s.Do("engine 0 1")
			s.Do("engine 1 1")
			regions := []Region{{Addr: s.alloc("device", 0, 1<<20, 0), Bytes: 1 << 20}, {Addr: s.alloc("device", 1, 1<<20, 0), Bytes: 1 << 20, Device: 1}}
			for _, line := range tc.script {
				s.Do("%s", line)
			}
			h, err := d.Hold(regions, open64)
			if err == nil {
				defer h.Release()
			}
			wants(t, err, tc.kind, tc.words...)
			if s.Do("retains 0") != 1 || s.Do("retains 1") > 1 {
				t.Errorf("held %d and %d times, want the engine's only", s.Do("retains 0"), s.Do("retains 1"))
			}
		})
	}
}

// A flush in a stream alone is none from the host, where reads are told.
func TestADeviceThatCannotBeFlushedFromTheHostIsNotHeld(t *testing.T) {
	s := newScript(t)
	d := s.open()
	s.Do("engine 0 1")
	s.Do("attribute 0 118 0")
	regions := []Region{{Addr: s.alloc("device", 0, 4096, 0), Bytes: 4096}}
	for _, flush := range []int{0, 2} {
		s.Do("attribute 0 117 %d", flush)
		h, err := d.Hold(regions, open64)
		if err == nil {
			defer h.Release()
		}
		wants(t, err, ErrUnavailable, "orders no writes of NICs", "flush from the host")
	}
}

func TestDevicesWithoutOrderAreFlushed(t *testing.T) {
	s := newScript(t)
	d := s.open()
	s.Do("engine 0 1")
	s.Do("attribute 0 118 0")
	h, err := d.Hold([]Region{{Addr: s.alloc("device", 0, 4096, 0), Bytes: 4096}}, open64)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Release()
	if !h.Unordered() || h.Flush() != nil || s.Do("count cuFlushGPUDirectRDMAWrites") != 1 {
		t.Errorf("unordered %v, %d flushes", h.Unordered(), s.Do("count cuFlushGPUDirectRDMAWrites"))
	}
	s.Do("fail cuFlushGPUDirectRDMAWrites 1 719")
	wants(t, h.Flush(), ErrUnavailable, "cuFlushGPUDirectRDMAWrites", "CUDA_ERROR_LAUNCH_FAILED")
}
