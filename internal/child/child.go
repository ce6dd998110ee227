// Package child is what tests share that speak with a process of their own.
package child

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strings"
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

// Listens starts a process that prints its port and ends with its stdin, and gives its address. How it ends counts.
func Listens(t testing.TB, cmd *exec.Cmd, host string) (addr string) {
	t.Helper()
	in, out := Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %v", cmd.Args, err)
		}
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strings.TrimSpace(port))
}
