// Package faketest is the fake CUDA driver in tests: built once a process, since the process keeps what it has opened, and told by commands
// of src/script.c.
package faketest

import (
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/cuda/fakecuda"
	"github.com/kvlease/kvlease/internal/fakelib"
)

var built = fakelib.Once{Build: func(dir string) (string, error) { return fakecuda.Build(dir, "libfakecuda.so") }}

// Path is where the process's fake lies.
func Path() (string, error) { return built.Path() }

// Remove is for the end of TestMain.
func Remove() { built.Remove() }

// Script gives a fake commands. A command that it does not understand fails the test.
type Script struct {
	TB   testing.TB
	Path string
}

// New is the process's fake, with a clean script before the test and after it.
func New(t testing.TB) *Script {
	t.Helper()
	path, err := Path()
	if err != nil {
		t.Fatal(err)
	}
	s := &Script{t, path}
	s.Do("reset")
	t.Cleanup(func() { s.Do("reset") })
	return s
}

// Do is one command; it gives the fake's answer.
func (s *Script) Do(format string, args ...any) int {
	s.TB.Helper()
	n, err := fakecuda.Control(s.Path, fmt.Sprintf(format, args...))
	if err != nil {
		s.TB.Fatal(err)
	}
	return n
}
