package probe

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/require"
)

// insideEnv makes this test program one that starts a host and traces its library in all processes: "HOST LIBRARY".
const insideEnv = "KVLEASE_TEST_PROBE_INSIDE"

func inside(host, lib string) int {
	err := traceInside(host, lib)
	if err != nil {
		fmt.Println(err)
	}
	return 0
}

func traceInside(host, lib string) error {
	p, err := Open(Config{})
	if err != nil {
		return err
	}
	defer p.Close()
	fs := NewFiles()
	defer fs.Close()
	f, err := fs.Library(lib)
	if err != nil {
		return err
	}
	a, err := p.Attach(f, 0)
	if err != nil {
		return err
	}
	defer a.Detach()
	cmd := exec.Command(host, lib)
	cmd.Stdin = strings.NewReader(fmt.Sprintf("fire 0 %d 1 9 0 0\n", trace.StallGap))
	if err := cmd.Run(); err != nil {
		return err
	}
	s, err := p.Read()
	if err != nil {
		return err
	}
	for i := range s.Series {
		if at := s.Series[i].Context.PID; at != uint32(cmd.Process.Pid) || at > 100 {
			return fmt.Errorf("process %d is called %d", cmd.Process.Pid, at)
		}
	}
	fmt.Printf("%d series\n", len(s.Series))
	return nil
}

func TestWithinAContainerProcessesHaveTheNumbersOfTheContainer(t *testing.T) {
	open(t, Config{})
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "namespaces are made here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", `mount -t proc none /proc && "$1"`, "sh", self) // the first process of a namespace has another role
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s", insideEnv, fixture(t, "host"), fixture(t, "libsites.so")))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "1 series\n" {
		t.Errorf("%q, %v", line, err)
	}
}
