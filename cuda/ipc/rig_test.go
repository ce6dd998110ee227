package ipc

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
)

func TestMain(m *testing.M) {
	if lib := os.Getenv(envOwner); lib != "" {
		if err := actOwner(lib); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	faketest.Remove()
	os.Exit(code)
}

// rig is the fake, and an engine's context on its first device.
type rig struct {
	*faketest.Script
	driver *cuda.Driver
	ctx    *cuda.Context
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{Script: faketest.New(t)}
	var err error
	if r.driver, err = cuda.Open(r.Path); err != nil {
		t.Fatal(err)
	}
	if r.ctx, err = r.driver.Make(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.ctx.Release() }) // of a device that a test has lost it fails
	return r
}

func (r *rig) alloc(bytes uint64) uint64 {
	r.TB.Helper()
	addr, err := r.ctx.Alloc(bytes)
	if err != nil {
		r.TB.Fatal(err)
	}
	return addr
}
