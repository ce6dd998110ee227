package cuda

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

func TestAContextIsNeverMadeBehindTheEnginesBack(t *testing.T) {
	s := newScript(t)
	d := s.open()
	_, err := d.Retain(1)
	wants(t, err, ErrUnavailable, "device 1", "cuDevicePrimaryCtxGetState", "no primary context", "register after")
	if s.Do("active 1") != 0 || s.Do("count cuDevicePrimaryCtxRetain") != 0 {
		t.Fatal("a context was made")
	}
	s.Do("engine 1 1")
	c, err := d.Retain(1)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := d.Retain(1); err != nil || s.Do("retains 1") != 2 { // the engine's and one of ours
		t.Errorf("held %d times, %v", s.Do("retains 1"), err)
	} else if err := second.Release(); err != nil || s.Do("retains 1") != 2 {
		t.Errorf("held %d times, %v", s.Do("retains 1"), err)
	}
	s.Do("engine 1 0")
	if s.Do("active 1") != 1 {
		t.Error("our hold does not keep it")
	}
	if err := c.Release(); err != nil || s.Do("active 1") != 0 {
		t.Errorf("still there: %v", err)
	}
	wants(t, c.Release(), ErrInvalid, "device 1")
	_, err = d.Retain(2)
	wants(t, err, ErrInvalid, "device 2")
	_, err = d.Retain(-1)
	wants(t, err, ErrInvalid, "device -1")
}

func TestAProcessThatIsItsOwnEngineMakesItsContext(t *testing.T) {
	s := newScript(t)
	d := s.open()
	c, err := d.Make(1)
	if err != nil || s.Do("active 1") != 1 {
		t.Fatalf("active %d, %v", s.Do("active 1"), err)
	}
	again, err := d.Retain(1)
	if err != nil || s.Do("retains 1") != 1 { // of ours one, whoever asked first
		t.Fatalf("held %d times, %v", s.Do("retains 1"), err)
	}
	if err := again.Release(); err != nil || s.Do("active 1") != 1 {
		t.Errorf("active %d, %v", s.Do("active 1"), err)
	}
	if err := c.Release(); err != nil || s.Do("active 1") != 0 {
		t.Errorf("still there: %v", err)
	}
	s.Do("fail cuDevicePrimaryCtxRetain 1 2")
	_, err = d.Make(1)
	wants(t, err, ErrUnavailable, "device 1", "cuDevicePrimaryCtxRetain", "CUDA_ERROR_OUT_OF_MEMORY")
}

func TestAThreadGetsItsOwnContextBack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := newScript(t)
	zero, one := s.retain(0), s.retain(1)
	pushed, err := zero.Enter()
	if err != nil || !pushed || s.current() != 0 {
		t.Fatalf("pushed %v, current %d, %v", pushed, s.current(), err)
	}
	if again, err := zero.Enter(); err != nil || again { // an engine's thread: nothing is due
		t.Errorf("pushed %v, %v", again, err)
	}
	addr, err := one.Alloc(4096) // another device's call
	if err != nil || s.current() != 0 {
		t.Errorf("current %d, %v", s.current(), err)
	}
	s.Do("fail cuMemsetD8 1 719")
	wants(t, one.Fill(addr, 1, 4096), ErrUnavailable, "device 1", "cuMemsetD8", "CUDA_ERROR_LAUNCH_FAILED")
	if s.current() != 0 {
		t.Errorf("after a failure %d is current", s.current())
	}
	if err := zero.Leave(); err != nil || s.current() != 99 {
		t.Errorf("current %d, %v", s.current(), err)
	}
	wants(t, zero.Leave(), ErrUnavailable, "cuCtxPopCurrent", "CUDA_ERROR_INVALID_CONTEXT")
	s.Do("fail cuCtxPopCurrent 1 201")
	wants(t, one.Fill(addr, 1, 4096), ErrUnavailable, "cuCtxPopCurrent") // what the driver refuses is told, and asked for once more
	if s.current() != 99 {
		t.Errorf("the thread is left with the context of device %d", s.current())
	}
}

func TestEveryFailureOfADeviceNamesItselfAndWhatHelps(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	addr, err := c.Alloc(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	host := make([]byte, 64)
	for _, tc := range []struct {
		name, script string
		act          func() error
		words        []string
	}{
		{"out of memory", "memory 0 0x200000", func() error { _, err := c.Alloc(2 << 20); return err },
			[]string{"cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "2097152 bytes", "gpu_memory_utilization"}},
		{"a lost device, copy in", "lost 0 719", func() error { return c.CopyIn(addr, host) }, []string{"cuMemcpyHtoD", "CUDA_ERROR_LAUNCH_FAILED", "Xid"}},
		{"a lost device, copy out", "lost 0 999", func() error { return c.CopyOut(host, addr) }, []string{"cuMemcpyDtoH", "CUDA_ERROR_UNKNOWN", "Xid"}},
		{"a lost device, free", "lost 0 214", func() error { return c.Free(addr) }, []string{"cuMemFree", "CUDA_ERROR_ECC_UNCORRECTABLE", "out of service"}},
		{"a kernel that ran wild", "lost 0 700", func() error { return c.SyncMemops(addr) }, []string{"cuPointerSetAttribute", "CUDA_ERROR_ILLEGAL_ADDRESS", "compute-sanitizer"}},
		{"no current context", "fail cuCtxPushCurrent 1 201", func() error { return c.Fill(addr, 0, 1) }, []string{"cuCtxPushCurrent", "CUDA_ERROR_INVALID_CONTEXT"}},
		{"no dma-buf", "attribute 0 124 0", func() error { _, err := c.Export(addr, 4096); return err },
			[]string{"cuMemGetHandleForAddressRange", "CUDA_ERROR_NOT_SUPPORTED", "nvidia_peermem"}},
		{"a range that is not there", "", func() error { _, err := c.Export(addr, 2<<20); return err },
			[]string{"cuMemGetHandleForAddressRange", "CUDA_ERROR_INVALID_VALUE", "2097152 bytes"}},
		{"a destroyed event", "", func() error { _, err := c.Fired(Event(addr)); return err }, []string{"cuEventQuery", "CUDA_ERROR_INVALID_HANDLE", "until its grant"}},
		{"a reset device", "destroy 0", func() error { return c.Fill(addr, 0, 1) }, []string{"cuCtxPushCurrent", "CUDA_ERROR_CONTEXT_IS_DESTROYED", "kvl_unregister"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.script != "" {
				s.Do("%s", tc.script)
			}
			kind := ErrUnavailable
			if tc.script == "" {
				kind = ErrInvalid
			}
			wants(t, tc.act(), kind, append(tc.words, "device 0")...)
			s.Do("lost 0 0")
			s.Do("attribute 0 124 1")
		})
	}
}

func TestADeviceThatIsLostIsReleased(t *testing.T) {
	s := newScript(t)
	c := s.retain(0)
	s.Do("lost 0 719")
	wants(t, c.Release(), ErrUnavailable, "cuDevicePrimaryCtxRelease", "CUDA_ERROR_LAUNCH_FAILED")
	wants(t, c.Release(), ErrInvalid)
	_, err := c.Enter()
	wants(t, err, ErrInvalid, "context is not held")
}

// TestAHoldIsGivenUpWhateverElseTheDriverRefuses: no call but the release itself stands between a hold and its end.
func TestAHoldIsGivenUpWhateverElseTheDriverRefuses(t *testing.T) {
	for _, symbol := range Symbols() {
		symbol = strings.TrimSuffix(symbol, "_v2")
		if symbol == "cuDevicePrimaryCtxRelease" {
			continue
		}
		s := newScript(t)
		c := s.retain(0)
		s.Do("fail %s 1 719", symbol)
		if err := c.Release(); err != nil || s.Do("retains 0") != 1 { // the engine's
			t.Errorf("%s fails: held %d times, %v", symbol, s.Do("retains 0"), err)
		}
	}
}

// TestWhatIsNotHandedOverIsTakenBack: whoever is told that its thread's context was not given back has nothing of what was made then.
func TestWhatIsNotHandedOverIsTakenBack(t *testing.T) {
	for name, tc := range map[string]struct {
		undo string // the call that takes it back
		make func(c *Context, addr uint64) error
	}{
		"memory":  {"cuMemFree", func(c *Context, _ uint64) error { _, err := c.Alloc(4096); return err }},
		"stream":  {"cuStreamDestroy", func(c *Context, _ uint64) error { _, err := c.NewStream(); return err }},
		"event":   {"cuEventDestroy", func(c *Context, _ uint64) error { _, err := c.NewEvent(); return err }},
		"dma-buf": {"", func(c *Context, addr uint64) error { _, err := c.Export(addr, 4096); return err }},
	} {
		t.Run(name, func(t *testing.T) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s := newScript(t)
			c := s.retain(0)
			addr := s.alloc("device", 0, 1<<20, 0)
			before := descriptors(t)
			s.Do("fail cuCtxPopCurrent 1 719")
			wants(t, tc.make(c, addr), ErrUnavailable, "cuCtxPopCurrent")
			if tc.undo != "" && s.Do("count %s", tc.undo) != 1 {
				t.Errorf("%s was called %d times", tc.undo, s.Do("count %s", tc.undo))
			}
			if n := descriptors(t); n != before || s.current() != 99 {
				t.Errorf("%d descriptors, were %d; the thread has the context of device %d", n, before, s.current())
			}
		})
	}
}

// descriptors is how many files this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestEnteringAndLeavingAllocateNothing(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := newScript(t)
	s.Do("attribute 0 118 0")
	c := s.retain(0)
	e, err := c.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	n := testing.AllocsPerRun(100, func() {
		if _, err := c.Enter(); err != nil {
			t.Error(err)
		}
		if fired, err := c.Fired(e); err != nil || !fired {
			t.Error(fired, err)
		}
		if needed, err := c.Flush(); err != nil || !needed {
			t.Error(needed, err)
		}
		if err := c.Leave(); err != nil {
			t.Error(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
