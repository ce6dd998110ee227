package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/top"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/internal/require"
	"github.com/kvlease/kvlease/internal/sigstop"
)

// tmux is a terminal with kvlease top in it, as a person has one.
type tmux struct {
	t      *testing.T
	socket string
}

// startTop opens a terminal of 80 x 24 and runs top there; what the shell says afterwards is how it ended.
func startTop(t *testing.T, env string, args ...string) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		require.Skip(t, "tmux", err.Error())
	}
	m := &tmux{t: t, socket: filepath.Join(t.TempDir(), "tmux")}
	command := fmt.Sprintf("%s=1 %s '%s' top %s; echo ended with $?; read forever", envTool, env, os.Args[0], strings.Join(args, " "))
	m.do("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", command)
	t.Cleanup(func() { exec.Command("tmux", "-S", m.socket, "kill-server").Run() })
	return m
}

func (m *tmux) do(args ...string) string {
	m.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %v: %v: %s", args, err, out)
	}
	return string(out)
}

// press sends keys by tmux's names, one after the other.
func (m *tmux) press(keys ...string) {
	m.t.Helper()
	m.do(append([]string{"send-keys"}, keys...)...)
}

// sees waits until the screen has all these texts, and gives it.
func (m *tmux) sees(texts ...string) string {
	m.t.Helper()
	return m.until(strings.Join(texts, " and "), func(screen string) bool {
		for _, s := range texts {
			if !strings.Contains(screen, s) {
				return false
			}
		}
		return true
	})
}

func (m *tmux) until(what string, fits func(screen string) bool) string {
	m.t.Helper()
	for late := time.Now().Add(standin.Longest); ; time.Sleep(20 * time.Millisecond) {
		screen := m.do("capture-pane", "-p")
		if fits(screen) {
			return screen
		}
		if time.Now().After(late) {
			m.t.Fatalf("waited for %s on\n%s", what, screen)
		}
	}
}

// lineOf is the line of the screen that begins with a mark and a name.
func lineOf(screen, name string) string {
	for l := range strings.SplitSeq(screen, "\n") {
		if len(l) > 0 && strings.HasPrefix(l[1:], name+" ") {
			return l
		}
	}
	return ""
}

func TestAPersonSeesInTheTerminalWhoHoldsWhat(t *testing.T) {
	dir := require.Shm(t)
	m := startTop(t, "TERM=screen", "--dir", dir, "--interval", "200ms")
	m.sees("no engine on kvlease has a stats page in " + dir[:20])
	p := startPair(t, dir, nil, nil, "r1", "r2")
	screen := m.until("two engines with heartbeats", func(s string) bool {
		f := strings.Fields(lineOf(s, "prefill-0"))
		return len(f) > 8 && f[4] == "2" && f[5] == "4" && f[8] != "0" && f[8] != "..." && strings.Contains(lineOf(s, "decode-0"), "ok")
	})
	for _, l := range strings.Split(screen, "\n") {
		if strings.Contains(l, "\x1b") {
			t.Errorf("%q", l)
		}
	}
	if !strings.Contains(screen, "2 contexts  2 leases  4 blocks 128KB") || !strings.Contains(screen, "SLACK") {
		t.Errorf("%s", screen)
	}

	m.press("G") // the last one: its peers follow
	screen = m.sees("prefill-0 process", "holds beats")
	if l := lineOf(screen, "decode-0"); !strings.Contains(l, "ok") {
		t.Errorf("%q\n%s", l, screen)
	}
	m.press("Up")
	m.sees("decode-0 process", "reads connected")
	m.press("s")
	m.sees("sort: name")
	m.press("r")
	m.sees("sort: name, reversed")
	m.press("h")
	m.sees("SLACK  least time left to a lease")
	m.press("x")
	m.sees("sort: name, reversed")

	m.press("p")
	was := m.sees("PAUSED")
	if err := sigstop.Signal(p.cmd.Process, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if now := m.sees("PAUSED"); lineOf(now, "prefill-0") != lineOf(was, "prefill-0") {
		t.Errorf("while it pauses the screen changes:\n%s\n%s", was, now)
	}
	m.press("p")
	m.until("a stopped engine whose leases run out", func(s string) bool {
		l := lineOf(s, "prefill-0")
		return strings.HasPrefix(l, "!") && strings.Contains(l, " stopped ") && strings.Contains(s, "2 of 2 in trouble")
	})
	m.do("resize-window", "-x", "60", "-y", "12")
	m.until("a small screen", func(s string) bool {
		lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
		return len(lines) == 12 && strings.HasPrefix(lines[11], "q quit") && lineOf(s, "prefill-0") != ""
	})
	m.do("resize-window", "-x", "132", "-y", "30")
	m.sees("QUAR", fmt.Sprint(p.cmd.Process.Pid))
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	m.until("dead engines", func(s string) bool { return strings.Contains(lineOf(s, "prefill-0"), " dead ") })
	m.press("q")
	if screen = m.sees("ended with 0"); strings.Contains(screen, "SLACK") {
		t.Errorf("the terminal is not as it was:\n%s", screen)
	}
}

func TestTheTableGoesWithoutColoursAndEndsByASignal(t *testing.T) {
	dir := require.Shm(t)
	page(t, dir, 1, "\x1b[31mred\u202e\x07")
	page(t, dir, 2, "德国-机器")
	m := startTop(t, "NO_COLOR=1 TERM=xterm-256color", "--dir", dir)
	screen := m.sees(`"\x1b[31mred`, "德国-机器")
	if l := lineOf(screen, "德国-机器"); !strings.Contains(l, "eng  ok") {
		t.Errorf("%q", l)
	}
	for _, code := range []string{"\x1b[31m", "\x1b[32m", "\x1b[33m", ";31m", ";32m", ";33m"} {
		if raw := m.do("capture-pane", "-p", "-e"); strings.Contains(raw, code) {
			t.Errorf("%q in %q", code, raw)
		}
	}
	pane := strings.TrimSpace(m.do("list-panes", "-F", "#{pane_pid}"))
	children, err := os.ReadFile("/proc/" + pane + "/task/" + pane + "/children")
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		t.Fatalf("the shell's children are %q", children)
	}
	if err := syscall.Kill(child, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if screen := m.sees("ended with 0"); strings.Contains(screen, "SLACK") {
		t.Errorf("the terminal is not as it was:\n%s", screen)
	}
	if flags := m.do("display-message", "-p", "#{alternate_on} #{cursor_flag}"); strings.TrimSpace(flags) != "0 1" {
		t.Errorf("alternate screen and cursor: %s", flags)
	}
}

// page writes one of this process.
func page(t *testing.T, dir string, n int, id string) {
	t.Helper()
	w, why, err := watch.New(&watch.Spec{Dir: dir, Head: watch.Head{Context: n, Role: "engine", Engine: id, Duration: 30 * time.Second, Interval: 5 * time.Second}})
	if err != nil || why != nil {
		t.Fatal(err, why)
	}
	t.Cleanup(w.Close)
	w.Publish(&watch.Live{Stepped: core.Now()})
}

func TestKeysComeFromTheTerminalWhateverStdinIs(t *testing.T) {
	m := startTop(t, "TERM=screen", "--dir", require.Shm(t), "</dev/null")
	m.sees("no engine on kvlease has a stats page")
	m.press("q")
	m.sees("ended with 0")
}

func TestATerminalThatCannotShowItIsToldHowElse(t *testing.T) {
	for _, term := range []string{"dumb", "''"} {
		m := startTop(t, "TERM="+term, "--dir", require.Shm(t))
		m.sees("--once prints it as text", "ended with 2")
	}
}

func TestTopPrintsOnceForPeopleAndPrograms(t *testing.T) {
	dir := require.Shm(t)
	code, stdout, stderr := tool(t, nil, "top", "--once", "--dir", dir)
	if code != exitOK || !strings.Contains(stdout, "no engine on kvlease has a stats page in "+dir) {
		t.Errorf("an empty folder: code %d, %s%s", code, stdout, stderr)
	}
	p := startPair(t, dir, nil, nil, "r1")
	var reading top.Reading
	for late := time.Now().Add(standin.Longest); ; {
		code, stdout, stderr = tool(t, nil, "top", "--once", "--json", "--dir", dir, "--interval", "1s")
		if err := json.Unmarshal([]byte(stdout), &reading); code != exitOK || err != nil {
			t.Fatalf("code %d, %v: %s%s", code, err, stdout, stderr)
		}
		if len(reading.Engines) == 2 && reading.Engines[1].Name == "prefill-0" && reading.Engines[1].Leases == 1 && reading.Engines[1].Beats != nil && *reading.Engines[1].Beats > 0 && reading.Engines[0].Tracked == 1 {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("no heartbeats: %s", stdout)
		}
	}
	if e := reading.Engines[1]; e.State != top.Fit || e.PID != p.cmd.Process.Pid || e.Slack == nil || len(e.Peers) != 1 || e.Peers[0].Name != "decode-0" {
		t.Errorf("%+v", e)
	}
	code, stdout, stderr = tool(t, nil, "top", "--once", "--dir", dir, "--interval", "300ms")
	if code != exitOK || stderr != "" || strings.Contains(stdout, "\x1b") || !strings.Contains(stdout, "prefill-0, eng, process ") || !strings.Contains(stdout, "holds beats") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	if code, _, stderr = tool(t, nil, "top", "--once", "--dir", "/nowhere"); code != exitUsage || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, "--dir") {
		t.Errorf("no folder: code %d, %s", code, stderr)
	}
	nobody := asNobody(t)
	code, stdout, stderr = tool(t, nobody, "top", "--once", "--dir", dir)
	if code != exitFailed || !strings.Contains(stderr, "permission denied") {
		t.Errorf("a folder that may not be read: code %d, %s%s", code, stdout, stderr)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = tool(t, nobody, "top", "--once", "--dir", dir)
	if code != exitOK || !strings.Contains(stdout, "2 of other users not shown: run as root") {
		t.Errorf("pages of another user: code %d, %s%s", code, stdout, stderr)
	}
}
