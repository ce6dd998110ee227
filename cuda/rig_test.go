package cuda

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/cuda/fakecuda/faketest"
)

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
	faketest.Remove()
	os.Exit(code)
}

// script gives the fake commands; a test ends with a clean script.
type script struct{ *faketest.Script }

func newScript(t testing.TB) *script {
	t.Helper()
	return &script{faketest.New(t)}
}

// alloc is memory of the engine; piece is in how many bytes at once VMM memory is mapped, 0: in one.
func (s *script) alloc(kind string, device int, bytes, piece uint64) uint64 {
	s.TB.Helper()
	addr, err := fakecuda.Alloc(s.Path, kind, device, bytes, piece)
	if err != nil {
		s.TB.Fatal(err)
	}
	return addr
}

// current is the device whose context this thread has; 99: none.
func (s *script) current() int {
	s.TB.Helper()
	return s.Do("current")
}

func (s *script) open() *Driver {
	s.TB.Helper()
	d, err := Open(s.Path)
	if err != nil {
		s.TB.Fatal(err)
	}
	return d
}

// retain has the engine make its context and takes a hold of it.
func (s *script) retain(device int) *Context {
	s.TB.Helper()
	d := s.open()
	s.Do("engine %d 1", device)
	c, err := d.Retain(device)
	if err != nil {
		s.TB.Fatal(err)
	}
	s.TB.Cleanup(func() { _ = c.Release() }) // of a device that a test has lost it fails
	return c
}

// queue is a stream, and an event for the end of its work.
func (s *script) queue(c *Context) (stream Stream, event Event) {
	s.TB.Helper()
	stream, err := c.NewStream()
	if err == nil {
		event, err = c.NewEvent()
	}
	if err != nil {
		s.TB.Fatal(err)
	}
	return stream, event
}
