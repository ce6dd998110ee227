package probe

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// unprivilegedEnv makes this test program one that attaches to a process, says what came of it, and waits to be killed.
const unprivilegedEnv = "KVLEASE_TEST_PROBE_PID"

func unprivileged() int {
	pid, err := strconv.Atoi(os.Getenv(unprivilegedEnv))
	if err != nil {
		return 1
	}
	if err := attachOnce(pid); err != nil {
		fmt.Println(err)
		return 0
	}
	return 0
}

func attachOnce(pid int) error {
	p, err := Open(Config{})
	if err != nil {
		return err
	}
	defer p.Close()
	fs := NewFiles()
	defer fs.Close()
	files, err := fs.Of(pid)
	if err != nil {
		return err
	}
	for _, f := range files {
		a, err := p.Attach(f, pid)
		if err != nil {
			return err
		}
		defer a.Detach()
	}
	fmt.Println("attached")
	bufio.NewReader(os.Stdin).ReadString('\n')
	s, err := p.Read()
	if err != nil {
		return err
	}
	fmt.Printf("%d hits\n", s.Counters.Hits)
	return nil
}

// elsewhere starts this program as one that attaches to a process.
func elsewhere(t *testing.T, pid int, attr *syscall.SysProcAttr) (cmd *exec.Cmd, say func() string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if attr != nil && attr.Credential != nil { // into a folder that another user can reach
		copied := fixture(t, "probe.test")
		text, err := os.ReadFile(self)
		if err == nil {
			err = os.WriteFile(copied, text, 0o755)
		}
		if err != nil && !errors.Is(err, syscall.ETXTBSY) {
			t.Fatal(err)
		}
		self = copied
	}
	cmd = exec.Command(self)
	cmd.SysProcAttr = attr
	return elsewhereAs(t, cmd, pid)
}

func elsewhereAs(t *testing.T, cmd *exec.Cmd, pid int) (_ *exec.Cmd, say func() string) {
	t.Helper()
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", unprivilegedEnv, pid))
	cmd.Dir = "/"
	cmd.Stderr = os.Stderr
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewReader(out)
	first, err := lines.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process says nothing: %v", err)
	}
	answers := []string{strings.TrimSpace(first)}
	return cmd, func() string {
		if len(answers) > 0 {
			a := answers[0]
			answers = nil
			return a
		}
		fmt.Fprintln(in)
		line, _ := lines.ReadString('\n')
		return strings.TrimSpace(line)
	}
}

func attachElsewhere(t *testing.T, pid int) (kill func()) {
	t.Helper()
	cmd, say := elsewhere(t, pid, nil)
	if got := say(); got != "attached" {
		t.Fatal(got)
	}
	return func() { cmd.Process.Kill(); cmd.Wait() }
}

// nobody is a user without rights, with these capabilities alone.
func nobody(caps ...uintptr) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
}

// hostOfNobody is a process that runs through sites as that user.
func hostOfNobody(t *testing.T) *host {
	cmd := exec.Command(fixture(t, "host"), fixture(t, "libsites.so"))
	cmd.SysProcAttr = nobody()
	return hostOf(t, cmd)
}

func TestCAPBPFAndCAPPERFMONSuffice(t *testing.T) {
	open(t, Config{})
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "other users' processes are started here")
	}
	d := hostOfNobody(t)
	_, say := elsewhere(t, d.pid, nobody(unix.CAP_BPF, unix.CAP_PERFMON))
	if got := say(); got != "attached" {
		t.Fatal(got)
	}
	d.fire(trace.StallGap, 1, 9, 0, 0)
	if got := say(); got != "1 hits" {
		t.Error(got)
	}
}

func TestEachRightThatIsMissingIsNamed(t *testing.T) {
	open(t, Config{})
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "other users' processes are started here")
	}
	d := hostOfNobody(t)
	hidden := filepath.Join(t.TempDir(), "libsites.so") // another user does not come into this folder
	if err := os.Chmod(filepath.Dir(hidden), 0o700); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(fixture(t, "libsites.so"))
	if err == nil {
		err = os.WriteFile(hidden, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	ofRoot := startHost(t, hidden)
	inUserNamespace := nobody()
	*inUserNamespace = syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}},
	}
	for _, tc := range []struct {
		name string
		pid  int
		attr *syscall.SysProcAttr
		says []string
	}{
		{"no capabilities", d.pid, nobody(), []string{"lacks CAP_BPF and CAP_PERFMON", "setcap cap_bpf,cap_perfmon+ep /"}},
		{"no CAP_BPF", d.pid, nobody(unix.CAP_PERFMON), []string{"lacks CAP_BPF.", "setcap"}},
		{"no CAP_PERFMON", d.pid, nobody(unix.CAP_BPF), []string{"lacks CAP_PERFMON.", "setcap"}},
		{"a process of another user", ofRoot.pid, nobody(unix.CAP_BPF, unix.CAP_PERFMON), []string{"may not be read", "cap_sys_ptrace"}},
		{"a user namespace", d.pid, inUserNamespace, []string{"user namespace", "on the host"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, say := elsewhere(t, tc.pid, tc.attr)
			got := say()
			t.Log(got)
			for _, want := range tc.says {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in %q", want, got)
				}
			}
		})
	}
}
