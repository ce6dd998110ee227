package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/internal/require"
)

// The test binary is the tool, too, or an engine pair to look at: tools are tested as processes of their own, with their own rights.
const (
	envTool = "KVLEASE_TEST_TOOL" // 1: the arguments are those of kvlease
	envPair = "KVLEASE_TEST_PAIR" // folder of stats pages: an owner and a reader that holds the ids given as arguments
	envHide = "KVLEASE_TEST_HIDE" // 1: of the pair: not dumpable; shm: a /dev/shm of its own
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envTool) != "":
		main()
	case os.Getenv(envPair) != "":
		if err := actPair(os.Getenv(envPair), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// actPair says "ready" on stdout, reads a request by its id whenever stdin has a line, and ends with it.
func actPair(dir string, ids []string) error {
	if os.Getenv(envHide) == "shm" {
		err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		for _, m := range [][2]string{{"tmpfs", "/dev/shm"}, {"proc", "/proc"}} {
			err = errors.Join(err, unix.Mount(m[0], m[1], m[0], 0, ""))
		}
		if err != nil {
			return fmt.Errorf("a /dev/shm and a /proc of its own: %w", err)
		}
	}
	p, d, err := standin.NewHub(dir, 3*time.Second).Pair("prefill-0", "decode-0")
	if err != nil {
		return err
	}
	for i, id := range ids {
		if err := d.Hold(p, id, uint32(4*i), uint32(4*i+1)); err != nil {
			return err
		}
	}
	if os.Getenv(envHide) == "1" {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	var id string
	for {
		if n, _ := fmt.Scanln(&id); n == 0 {
			return errors.Join(d.Quit(), p.Quit())
		}
		if err := d.Read(p, id); err != nil {
			return err
		}
		fmt.Println("read", id)
	}
}

// pairProcess is such a process.
type pairProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	in  interface{ Write([]byte) (int, error) }
	out *os.File
}

func startPair(t *testing.T, dir string, attr *syscall.SysProcAttr, env []string, ids ...string) *pairProcess {
	t.Helper()
	cmd := exec.Command(os.Args[0], ids...)
	cmd.Env = append(append(os.Environ(), envPair+"="+dir), env...)
	cmd.SysProcAttr = attr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = write, write
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	p := &pairProcess{t: t, cmd: cmd, in: in, out: out}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		in.Close()
		if err := cmd.Wait(); err != nil && !strings.Contains(err.Error(), "killed") {
			t.Error(err)
		}
		out.Close()
	})
	p.says("ready")
	return p
}

func (p *pairProcess) says(want string) {
	p.t.Helper()
	p.out.SetReadDeadline(time.Now().Add(standin.Longest))
	var said bytes.Buffer
	b := make([]byte, 1024)
	for !strings.Contains(said.String(), want) {
		n, err := p.out.Read(b)
		said.Write(b[:n])
		if err != nil {
			p.t.Fatalf("%v: waited for %q, it said %q", err, want, said.String())
		}
	}
}

// tool runs the tool as a process.
func tool(t *testing.T, attr *syscall.SysProcAttr, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), envTool+"=1")
	cmd.SysProcAttr = attr
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// asNobody is a process of another user, who can run this program; only root can make one.
func asNobody(t *testing.T) *syscall.SysProcAttr {
	t.Helper()
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "only root can be another user")
	}
	dir, err := os.MkdirTemp("", "kvlease-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	program := filepath.Join(dir, "kvlease.test")
	content, err := os.ReadFile(os.Args[0])
	if err := errors.Join(err, os.WriteFile(program, content, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	was := os.Args[0]
	os.Args[0] = program
	t.Cleanup(func() { os.Args[0] = was })
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}
