package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/dump"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
	"github.com/kvlease/kvlease/internal/sigstop"
)

// dumped runs kvlease dump --json of a process.
func dumped(t *testing.T, pid int, dir string) *dump.Report {
	t.Helper()
	code, stdout, stderr := tool(t, nil, "dump", strconv.Itoa(pid), "--dir", dir, "--json")
	var r dump.Report
	if err := json.Unmarshal([]byte(stdout), &r); code != exitOK || err != nil {
		t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
	}
	return &r
}

func ownerOf(t *testing.T, r *dump.Report) *dump.Context {
	t.Helper()
	for _, c := range r.Contexts {
		if c.Engine == "prefill-0" {
			return c
		}
	}
	t.Fatalf("no owner in %+v", r)
	return nil
}

func TestTheLeasesOfAStoppedProcessAreDumped(t *testing.T) {
	dir := require.Shm(t)
	p := startPair(t, dir, nil, nil, "r1", "r2")
	pid := p.cmd.Process.Pid
	for late := time.Now().Add(standin.Longest); ; time.Sleep(10 * time.Millisecond) {
		c := ownerOf(t, dumped(t, pid, dir))
		if len(c.Leases) == 2 && c.Leases[0].Beats > 0 && c.Leases[1].Beats > 0 && c.Leases[0].Reader == "decode-0" {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("no heartbeats: %+v", c)
		}
	}
	if err := sigstop.Signal(p.cmd.Process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var slack int64
	for late := time.Now().Add(standin.Longest); ; time.Sleep(10 * time.Millisecond) {
		r := dumped(t, pid, dir)
		c := ownerOf(t, r)
		if r.State == "stopped" && len(c.Leases) == 2 && c.Leases[0].State == "held" && c.Leases[0].SlackNs != nil {
			if slack != 0 && *c.Leases[0].SlackNs < slack {
				break // nobody renews it
			}
			slack = *c.Leases[0].SlackNs
		}
		if time.Now().After(late) {
			t.Fatalf("%s: %+v", r.State, c)
		}
	}
	for late := time.Now().Add(standin.Longest); ; time.Sleep(50 * time.Millisecond) {
		if c := ownerOf(t, dumped(t, pid, dir)); c.Leases[0].State == "due" && c.Leases[1].State == "due" && c.PageAgeNs > int64(time.Second) {
			break // its deadline has passed, and it still holds the blocks
		}
		if time.Now().After(late) {
			t.Fatal("the leases of a stopped process never come to their deadlines")
		}
	}
	code, stdout, _ := tool(t, nil, "dump", strconv.Itoa(pid), "--dir", dir)
	if code != exitOK || !strings.Contains(stdout, ", stopped, at ") || strings.Count(stdout, "  due  ") != 2 {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

func TestAProcessThatHasDiedLeavesItsLastEnds(t *testing.T) {
	dir := require.Shm(t)
	p := startPair(t, dir, nil, nil, "r1", "r2")
	fmt.Fprintln(p.in, "r1")
	p.says("read r1")
	pid := p.cmd.Process.Pid
	for late := time.Now().Add(standin.Longest); len(ownerOf(t, dumped(t, pid, dir)).Ends) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("no end")
		}
	}
	p.cmd.Process.Kill()
	for late := time.Now().Add(standin.Longest); dumped(t, pid, dir).State != "gone"; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("a process that was killed is not gone")
		}
	}
	r := dumped(t, pid, dir)
	c := ownerOf(t, r)
	if r.State != "gone" || c.Table || len(c.Leases) != 0 || len(c.Ends) != 1 || c.Ends[0].ID != "r1" || c.Held != 1 || c.Alive {
		t.Errorf("%+v %+v", r, c)
	}
	code, stdout, _ := tool(t, nil, "dump", strconv.Itoa(pid), "--dir", dir)
	if code != exitOK || !strings.Contains(stdout, "the process has ended") || !strings.Contains(stdout, "completed") {
		t.Errorf("code %d\n%s", code, stdout)
	}
}

func TestADumpWithoutTheRightsSaysWhichAndShowsThePage(t *testing.T) {
	dir := require.Shm(t)
	nobody := asNobody(t)
	p := startPair(t, dir, nil, nil, "r1")
	code, stdout, stderr := tool(t, nobody, "dump", strconv.Itoa(p.cmd.Process.Pid), "--dir", dir)
	if code != exitFailed || stdout != "" || !strings.Contains(stderr, "run as its user, or as root") {
		t.Errorf("a process of another user: code %d, %s%s", code, stdout, stderr)
	}

	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	p = startPair(t, dir, nobody, []string{envHide + "=1"}, "r1")
	for late := time.Now().Add(standin.Longest); !strings.Contains(stdout, "by the page: 1 lease with 2 blocks") && time.Now().Before(late); time.Sleep(10 * time.Millisecond) {
		code, stdout, stderr = tool(t, nobody, "dump", strconv.Itoa(p.cmd.Process.Pid), "--dir", dir)
	}
	if code != exitFailed || strings.Count(stderr, "CAP_SYS_PTRACE") != 1 || strings.Count(stderr, "\n") != 1 || strings.Count(stdout, "by the page: 1 lease with 2 blocks") != 1 {
		t.Errorf("a process that may not be looked at: code %d, %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = tool(t, nil, "dump", strconv.Itoa(p.cmd.Process.Pid), "--dir", dir)
	if code != exitOK || !strings.Contains(stdout, "1 slot in use in memory: 1 held") {
		t.Errorf("root: code %d, %s%s", code, stdout, stderr)
	}
}

func TestAProcessInAContainerIsDumpedFromOutside(t *testing.T) {
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "only root can make namespaces")
	}
	p := startPair(t, "/dev/shm", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}, []string{envHide + "=shm"}, "r1")
	c := ownerOf(t, dumped(t, p.cmd.Process.Pid, "/dev/shm"))
	if !c.Table || len(c.Leases) != 1 || c.Leases[0].ID != "r1" || !c.Alive {
		t.Errorf("%+v", c)
	}
	if !strings.HasSuffix(c.Page, ".1."+strconv.Itoa(c.Context)) {
		t.Errorf("its page is %s, and within it is process 1", c.Page)
	}
}

// A host in C, over the C library and the core in a file of its own.
func TestTheLeasesOfAHostInCAreDumped(t *testing.T) {
	cmd := exec.Command(builtPrograms(t).Prefill[0], "--engine-id", "prefill-0", "--listen", "off")
	in, out := child.Pipes(t, cmd)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Signal(syscall.SIGCONT); cmd.Process.Kill(); cmd.Wait() })
	lines := bufio.NewScanner(out)
	says := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), want) {
				return
			}
		}
		t.Fatalf("it ended before %s: %v", want, lines.Err())
	}
	says(`"ev":"ready"`)
	fmt.Fprintln(in, `{"cmd":"expect","n":1,"id":"soon"}`)
	says(`"re":1`)
	fmt.Fprintln(in, `{"cmd":"grant","n":2,"id":"r1","blocks":[0,1,2],"tokens":48}`)
	says(`"re":2`)
	var c *dump.Context
	for late := time.Now().Add(standin.Longest); c == nil || len(c.Leases) != 2 || c.Leases[0].State != "held"; time.Sleep(10 * time.Millisecond) {
		if c = ownerOf(t, dumped(t, cmd.Process.Pid, "/dev/shm")); time.Now().After(late) {
			t.Fatalf("%+v", c)
		}
	}
	if err := sigstop.Signal(cmd.Process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r := dumped(t, cmd.Process.Pid, "/dev/shm")
	c = ownerOf(t, r)
	if l := c.Leases[0]; l.ID != "r1" || l.Blocks != 3 || l.Reader != "nobody yet" || l.SlackNs == nil || *l.SlackNs > c.DurationNs*5/4 || l.AgeNs == nil {
		t.Errorf("%+v", l)
	}
	if l := c.Leases[1]; l.ID != "soon" || l.State != "expected" || c.Transport != "nixl" || c.Torn != 0 {
		t.Errorf("%+v of %+v", l, c)
	}
}
