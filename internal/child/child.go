// Package child is what tests share that speak with a process of their own.
package child

import (
	"io"
	"os/exec"
	"testing"
)

// Pipes are both ends of a process that the test has still to start: in is written to, out is read from.
func Pipes(t testing.TB, cmd *exec.Cmd) (in io.WriteCloser, out io.ReadCloser) {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	return in, out
}
