package gpucache

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	faketest.Remove()
	os.Exit(code)
}

const layers, blocks = 3, 8

type rig struct {
	*faketest.Script
	driver *cuda.Driver
	shape  *kvcache.Cache
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Script: faketest.New(t)}
	var err error
	if r.driver, err = cuda.Open(r.Path); err != nil {
		t.Fatal(err)
	}
	if r.shape, err = kvcache.New(layers, blocks); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) open() *Cache {
	r.TB.Helper()
	c, err := Open(r.driver, 1, r.shape)
	if err != nil {
		r.TB.Fatal(err)
	}
	r.TB.Cleanup(func() { _ = c.Close() }) // of a device that a test has lost it fails
	return c
}

func (r *rig) bad(c *Cache, request string, list ...uint32) uint64 {
	r.TB.Helper()
	n, err := c.BadBytes(request, list)
	if err != nil {
		r.TB.Fatal(err)
	}
	return n
}

// TestACacheThatCouldNotBeTakenHoldsNoContext: whichever function of the driver refuses.
func TestACacheThatCouldNotBeTakenHoldsNoContext(t *testing.T) {
	r := newRig(t)
	refused := 0
	for _, symbol := range cuda.Symbols() {
		symbol = strings.TrimSuffix(symbol, "_v2")
		r.Do("reset")
		r.Do("fail %s 1 999", symbol)
		c, err := Open(r.driver, 1, r.shape)
		if err == nil {
			err = c.Close()
		} else {
			refused++
		}
		if n := r.Do("retains 1"); n != 0 && symbol != "cuDevicePrimaryCtxRelease" {
			t.Errorf("%s: held %d times after %v", symbol, n, err)
		}
	}
	if refused < 5 {
		t.Errorf("%d functions refused", refused)
	}
}

func TestBlocksAreLookedAtOnTheDevice(t *testing.T) {
	r := newRig(t)
	c := r.open()
	if err := errors.Join(c.Fill("r1", []uint32{5, 6, 2}), c.Fill("r2", []uint32{7})); err != nil {
		t.Fatal(err)
	}
	r.shape.Clear([]uint32{5, 6, 2}) // the host's copy is no witness
	if n := r.bad(c, "r1", 5, 6, 2); n != 0 {
		t.Errorf("%d wrong bytes", n)
	}
	for layer := range uint32(layers) { // a byte of each layer, by the device's address
		r.Do("launch %#x 1 %d", c.Addr(layer)+6*kvcache.BlockLen+9, r.Do("byte %#x", c.Addr(layer)+6*kvcache.BlockLen+9)^1)
	}
	if n := r.bad(c, "r1", 5, 6, 2); n != layers {
		t.Errorf("%d wrong bytes, %d were made", n, layers)
	}
	if err := c.Clear([]uint32{5}); err != nil {
		t.Fatal(err)
	}
	r.Do("launch %#x 100 1", c.Addr(1)+5*kvcache.BlockLen)
	if n, err := c.Landed([]uint32{5}); err != nil || n != 100 {
		t.Errorf("%d bytes have landed, %v, want 100", n, err)
	}
	if n := r.bad(c, "r2", 7); n != 0 {
		t.Errorf("%d wrong bytes beside it", n)
	}
}

func TestWhatAPrefillWritesIsThereWhenItsEventHasFired(t *testing.T) {
	r := newRig(t)
	c := r.open()
	r.Do("hold 1")
	first, err := c.Launch("r1", []uint32{1, 2, 4})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Launch("r2", []uint32{6})
	if err != nil || second == first {
		t.Fatalf("%d and %d, %v", first, second, err)
	}
	for _, event := range []uint64{first, second} {
		if fired, err := c.Fired(event); err != nil || fired {
			t.Errorf("fired %v while the device stands still, %v", fired, err)
		}
	}
	if r.bad(c, "r1", 1, 2, 4) == 0 || r.bad(c, "r2", 6) == 0 {
		t.Error("written before the event")
	}
	r.Do("hold 0")
	for _, event := range []uint64{first, second} {
		if fired, err := c.Fired(event); err != nil || !fired {
			t.Errorf("fired %v, %v", fired, err)
		}
		c.Done(event)
	}
	if r.bad(c, "r1", 1, 2, 4) != 0 || r.bad(c, "r2", 6) != 0 {
		t.Error("not written when the events had fired")
	}
	made := r.Do("count cuEventCreate")
	for range 20 {
		event, err := c.Launch("r3", []uint32{1})
		if err != nil {
			t.Fatal(err)
		}
		c.Done(event)
	}
	if n := r.Do("count cuEventCreate") - made; n != 0 || len(c.launches) > 1 {
		t.Errorf("%d events more, %d launches kept", n, len(c.launches))
	}
}

// A lease can end while its blocks are written: who uses them next comes behind that.
func TestBlocksAreNotWrittenUnderALaunch(t *testing.T) {
	r := newRig(t)
	c := r.open()
	r.Do("work 1")
	for name, next := range map[string]func() error{
		"filled": func() error { return c.Fill("next", []uint32{2}) },
		"written": func() error {
			e, err := c.Launch("next", []uint32{2, 3})
			c.Done(e)
			return errors.Join(err, c.settle())
		},
	} {
		event, err := c.Launch("r1", []uint32{1, 2})
		if err != nil {
			t.Fatal(err)
		}
		c.Done(event)
		if err := next(); err != nil {
			t.Fatal(err)
		}
		if bad := r.bad(c, "next", 2); bad != 0 {
			t.Errorf("%s: %d bytes are the request's before", name, bad)
		}
	}
}

func TestADeviceThatFailsIsToldAndNothingIsLeft(t *testing.T) {
	r := newRig(t)
	for script, word := range map[string]string{
		"fail cuDevicePrimaryCtxRetain 1 2": "CUDA_ERROR_OUT_OF_MEMORY",
		"fail cuStreamCreate 1 719":         "CUDA_ERROR_LAUNCH_FAILED",
		"fail cuMemAlloc 1 2":               "the KV cache: ",
		"fail cuMemAlloc 2 2":               "what a prefill writes from: ",
		"fail cuPointerSetAttribute 1 999":  "CUDA_ERROR_UNKNOWN",
	} {
		r.Do("%s", script)
		if _, err := Open(r.driver, 1, r.shape); err == nil || !strings.Contains(err.Error(), word) || !strings.Contains(err.Error(), "Remedy: ") {
			t.Errorf("%s: %v", script, err)
		}
		if n := r.Do("retains 1"); n != 0 {
			t.Errorf("%s: the context is held %d times", script, n)
		}
	}
	c := r.open()
	for script, act := range map[string]func() error{
		"fail cuMemcpyHtoD 2 719":      func() error { _, err := c.Launch("r1", []uint32{1}); return err },
		"fail cuMemcpyDtoDAsync 2 719": func() error { _, err := c.Launch("r1", []uint32{1}); return err },
		"fail cuEventCreate 1 2":       func() error { c.spare = nil; _, err := c.Launch("r1", []uint32{1}); return err },
		"fail cuMemcpyHtoD 1 719":      func() error { return c.Fill("r1", []uint32{1}) },
		"fail cuMemcpyHtoD 3 719":      func() error { return c.Clear([]uint32{1}) },
		"fail cuMemcpyDtoH 1 719":      func() error { _, err := c.BadBytes("r1", []uint32{1}); return err },
		"fail cuMemcpyDtoH 3 719":      func() error { _, err := c.Landed([]uint32{1}); return err },
	} {
		r.Do("%s", script)
		if err := act(); !errors.Is(err, cuda.ErrUnavailable) {
			t.Errorf("%s: %v", script, err)
		}
	}
	r.Do("hold 1")
	event, err := c.Launch("r1", []uint32{1})
	if err != nil {
		t.Fatal(err)
	}
	r.Do("lost 1 719")
	if fired, err := c.Fired(event); fired || !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("fired %v, %v", fired, err)
	}
	if err := c.Fill("r2", []uint32{3}); !errors.Is(err, cuda.ErrUnavailable) {
		t.Errorf("filled behind a launch that nobody can ask: %v", err)
	}
	if err := c.Close(); !errors.Is(err, cuda.ErrUnavailable) || r.Do("retains 1") != 0 {
		t.Errorf("%v, the context is held %d times", err, r.Do("retains 1"))
	}
}
