package cuda

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/internal/fakelib"
)

var built = fakelib.Once{Build: func(dir string) (string, error) { return fakecuda.Build(dir, "libfakecuda.so") }}

func TestMain(m *testing.M) {
	if lib := os.Getenv(envOwner); lib != "" {
		act := actOwner
		if kind := os.Getenv(envTouch); kind != "" {
			act = func(lib string) error { return actTouch(lib, kind) }
		}
		if err := act(lib); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

// script gives the fake commands; a test ends with a clean script.
type script struct {
	t    testing.TB
	path string
}

func newScript(t testing.TB) *script {
	t.Helper()
	path, err := built.Path()
	if err != nil {
		t.Fatal(err)
	}
	s := &script{t, path}
	s.do("reset")
	t.Cleanup(func() { s.do("reset") })
	return s
}

func (s *script) do(format string, args ...any) int {
	s.t.Helper()
	r, err := fakecuda.Control(s.path, fmt.Sprintf(format, args...))
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// alloc is memory of the engine; piece is in how many bytes at once VMM memory is mapped, 0: in one.
func (s *script) alloc(kind string, device int, bytes, piece uint64) uint64 {
	s.t.Helper()
	addr, err := fakecuda.Alloc(s.path, kind, device, bytes, piece)
	if err != nil {
		s.t.Fatal(err)
	}
	return addr
}

// current is the device whose context this thread has; 99: none.
func (s *script) current() int {
	s.t.Helper()
	return s.do("current")
}

func (s *script) open() *Driver {
	s.t.Helper()
	d, err := Open(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	return d
}

// retain has the engine make its context and takes a hold of it.
func (s *script) retain(device int) *Context {
	s.t.Helper()
	d := s.open()
	s.do("engine %d 1", device)
	c, err := d.Retain(device)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Release() }) // of a device that a test has lost it fails
	return c
}
