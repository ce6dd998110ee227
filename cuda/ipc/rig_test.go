package ipc

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/internal/fakelib"
)

var built = fakelib.Once{Build: func(dir string) (string, error) { return fakecuda.Build(dir, "libfakecuda.so") }}

func TestMain(m *testing.M) {
	if lib := os.Getenv(envOwner); lib != "" {
		if err := actOwner(lib); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

// rig is the fake, and an engine's context on its first device.
type rig struct {
	t      testing.TB
	path   string
	driver *cuda.Driver
	ctx    *cuda.Context
}

func newRig(t testing.TB) *rig {
	t.Helper()
	path, err := built.Path()
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, path: path}
	r.do("reset")
	t.Cleanup(func() { r.do("reset") })
	if r.driver, err = cuda.Open(path); err != nil {
		t.Fatal(err)
	}
	if r.ctx, err = r.driver.Make(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.ctx.Release() }) // of a device that a test has lost it fails
	return r
}

func (r *rig) do(format string, args ...any) int {
	r.t.Helper()
	n, err := fakecuda.Control(r.path, fmt.Sprintf(format, args...))
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

func (r *rig) alloc(bytes uint64) uint64 {
	r.t.Helper()
	addr, err := r.ctx.Alloc(bytes)
	if err != nil {
		r.t.Fatal(err)
	}
	return addr
}
