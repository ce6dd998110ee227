package sites_test

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

const longest = 60 * time.Second

// haveBpftrace skips where bpftrace cannot work.
func haveBpftrace(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("bpftrace"); err != nil {
		require.Skip(t, "bpftrace", "apt-get install bpftrace")
	}
	if os.Geteuid() != 0 {
		require.Skip(t, "bpftrace", "it wants to be root")
	}
}

// process is one that runs through sites as it is told.
type process struct {
	t   *testing.T
	pid int
	in  io.Writer
	out *bufio.Reader
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, out := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	return &process{t: t, pid: cmd.Process.Pid, in: in, out: bufio.NewReader(out)}
}

func (p *process) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("process %d: %v", p.pid, err)
	}
	return strings.TrimSpace(s)
}

func (p *process) say(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatal(err)
	}
}

// attached reports that the semaphores of sites of a file are on in the process.
func (p *process) attached(path string, names []string) bool {
	p.t.Helper()
	file, err := os.Open(path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer file.Close()
	sites, err := probe.Sites(file)
	if err != nil {
		p.t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		p.t.Fatal(err)
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.pid))
	if err != nil {
		p.t.Fatal(err)
	}
	defer mem.Close()
	for _, s := range sites {
		if !slices.Contains(names, s.Site.String()) {
			continue
		}
		at := uint64(0)
		for line := range strings.Lines(string(maps)) {
			var from, to, offset uint64
			var rights, device string
			if _, err := fmt.Sscanf(line, "%x-%x %s %x %s", &from, &to, &rights, &offset, &device); err == nil && strings.Contains(line, real) &&
				strings.Contains(rights, "w") && s.Semaphore >= offset && s.Semaphore < offset+to-from {
				at = from + s.Semaphore - offset
			}
		}
		var word [4]byte
		if at == 0 {
			return false // not loaded yet
		}
		if _, err := mem.ReadAt(word[:], int64(at)); err != nil || binary.LittleEndian.Uint32(word[:]) == 0 {
			return false
		}
	}
	return true
}

// bpftrace runs a command of the docs while work goes on, and gives what it has printed.
func bpftrace(t *testing.T, p *process, command string, files map[string]string, work func()) string {
	t.Helper()
	var said strings.Builder
	var mu sync.Mutex
	cmd := exec.Command("bash", "-c", "exec "+command)
	cmd.Env = append(os.Environ(), fmt.Sprint("PID=", p.pid))
	for name, path := range files {
		cmd.Env = append(cmd.Env, name+"="+path)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	read, ended := make(chan struct{}), make(chan struct{})
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			mu.Lock()
			said.Write(buf[:n])
			mu.Unlock()
			if err != nil {
				close(read)
				return
			}
		}
	}()
	go func() { cmd.Wait(); close(ended) }()
	t.Cleanup(func() { cmd.Process.Kill(); <-ended })
	text := func() string { mu.Lock(); defer mu.Unlock(); return said.String() }
	want := map[string][]string{}
	for _, m := range regexp.MustCompile(`usdt:\$(\w+):kvlease:(\w+)`).FindAllStringSubmatch(command, -1) {
		want[m[1]] = append(want[m[1]], m[2])
	}
	await.True(t, "bpftrace is attached", func() bool {
		select {
		case <-ended:
			<-read
			for _, lack := range []string{"not permitted", "Permission denied", "not supported", "Kernel"} {
				if strings.Contains(text(), lack) {
					require.Skip(t, "bpftrace", text())
				}
			}
			t.Fatalf("%s has ended: %s", command, text())
		default:
		}
		for name, sites := range want {
			if !p.attached(files[name], sites) {
				return false
			}
		}
		return true
	})
	await.True(t, "bpftrace waits", func() bool { // the semaphores are on before its programs are
		in, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", cmd.Process.Pid))
		return err != nil || strings.Contains(string(in), "poll")
	})
	work()
	for tries := 0; ; tries++ { // a signal just before it waits is lost on it
		cmd.Process.Signal(syscall.SIGINT)
		select {
		case <-ended:
		case <-time.After(longest / 10):
			if tries < 10 {
				continue
			}
			t.Fatalf("%s does not end: %s", command, text())
		}
		break
	}
	<-read
	return text()
}

// counts are the maps that bpftrace prints: of a histogram all its values together.
func counts(said string) map[string]uint64 {
	all := map[string]uint64{}
	name := ""
	for line := range strings.Lines(said) {
		if m := regexp.MustCompile(`^(@\S*):\s*(\d*)\s*$`).FindStringSubmatch(line); m != nil {
			if name = m[1]; m[2] != "" {
				n, _ := strconv.ParseUint(m[2], 10, 64)
				all[name] += n
			}
		} else if m := regexp.MustCompile(`^[\[(].*[)\]]\s+(\d+) \|`).FindStringSubmatch(line); m != nil && name != "" {
			n, _ := strconv.ParseUint(m[1], 10, 64)
			all[name] += n
		}
	}
	return all
}

// docCommands are the commands of docs/tracing-sites.md.
func docCommands(t *testing.T) (list string, programs []string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/tracing-sites.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^```sh\n(bpftrace .*)\n```$").FindAllStringSubmatch(string(text), -1) {
		if strings.HasPrefix(m[1], "bpftrace -l") {
			list = m[1]
		} else {
			programs = append(programs, m[1])
		}
	}
	return list, programs
}

// scripted compiles the host that does a known amount of work.
func scripted(t *testing.T) (path string, files map[string]string) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		require.Skip(t, "cc", err.Error())
	}
	files = map[string]string{"CORE": built(t, "libkvlease-core.so"), "LIB": built(t, "libkvlease.so")}
	dir := filepath.Dir(files["LIB"])
	path = filepath.Join(t.TempDir(), "host")
	args := []string{"-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-I../include", "-I../test", "testdata/host.c", "-o", path,
		"-L" + dir, "-lkvlease", "-Wl,-rpath," + dir}
	if said, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return path, files
}

func TestBpftraceListsTheSites(t *testing.T) {
	haveBpftrace(t)
	list, _ := docCommands(t)
	for file, want := range map[string][]string{
		"libkvlease.so": trace.Names[:1], "libkvlease-core.so": trace.Names[1:], "kvlease": trace.Names[:],
	} {
		cmd := exec.Command("bash", "-c", list)
		cmd.Env = append(os.Environ(), "CORE="+built(t, file))
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", list, err)
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			got = append(got, strings.TrimSpace(line[strings.LastIndex(line, ":")+1:]))
		}
		want = slices.Sorted(slices.Values(want))
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// Each one-liner of the docs counts exactly what a host in C has done.
func TestTheOneLinersOfTheDocsCountWhatWasDone(t *testing.T) {
	haveBpftrace(t)
	path, files := scripted(t)
	_, programs := docCommands(t)
	ran := map[string]bool{}
	for _, program := range programs {
		p := start(t, exec.Command(path, "32"))
		if got := p.line(); got != "ready" {
			t.Fatal(got)
		}
		did := map[string]uint64{}
		said := bpftrace(t, p, program, files, func() {
			p.say("go")
			for _, word := range strings.Fields(p.line()) {
				name, n, _ := strings.Cut(word, "=")
				did[name], _ = strconv.ParseUint(n, 10, 64)
			}
		})
		t.Logf("%s\n%s", program, said)
		want := map[string]map[string]uint64{
			"@records": {"@records[2]": 32, "@records[3]": 8, "@records[16]": 24, "@records[19]": 24},
			"@ended":   {"@ended[1]": did["lease__freed"] - did["revoked"], "@ended[3]": did["revoked"]},
			"@slack":   {"@slack_ms": did["batch__extended"]},
			"@step":    {"@step_us": did["step__end"]},
			"@status":  {"@status[0]": did["read__reported"], "@read_us": did["read__reported"]},
			"@way":     {"@way_us": did["notification__seen"]},
		}
		got := counts(said)
		for name, w := range want {
			if !strings.Contains(program, name) {
				continue
			}
			ran[name] = true
			for key, n := range w {
				if got[key] != n || n == 0 {
					t.Errorf("%s is %d, the host has done %d\n%s\n%s", key, got[key], n, program, said)
				}
			}
		}
		if sum := got["@records[2]"] + got["@records[3]"] + got["@records[16]"] + got["@records[19]"]; ran["@records"] && sum != 0 && sum != did["hook__submit"] {
			t.Errorf("%d records, the host has pushed %d", sum, did["hook__submit"])
		}
	}
	if len(ran) != 6 {
		t.Errorf("the docs have one-liners of %v", ran)
	}
}

// The tool's engines have their hooks in Go.
func TestAHostInGoRunsThroughTheSameSites(t *testing.T) {
	haveBpftrace(t)
	tool := built(t, "kvlease")
	p := start(t, exec.Command(tool, "node", "--role", "prefill", "--transport", "loopback", "--engine-id", "P", "--drive", "pump"))
	until := func(what string) {
		t.Helper()
		for !strings.Contains(p.line(), what) {
		}
	}
	until(`"ready"`)
	said := bpftrace(t, p, `bpftrace -p $PID -e "usdt:$TOOL:kvlease:hook__submit { @records[arg3] = count(); } usdt:$TOOL:kvlease:hook__drained { @taken = sum(arg3); } usdt:$TOOL:kvlease:lease__freed { @ended[arg1] = sum(arg2); }"`,
		map[string]string{"TOOL": tool}, func() {
			for i := range 5 {
				p.say(fmt.Sprintf(`{"cmd":"grant","n":%d,"id":"r%d","blocks":[%d]}`, i+1, i, i))
				until(fmt.Sprintf(`"re":%d,`, i+1))
			}
			for i := range 2 {
				p.say(fmt.Sprintf(`{"cmd":"cancel","n":%d,"id":"r%d"}`, i+10, i))
				until(`"freed"`)
			}
		})
	got := counts(said)
	want := map[string]uint64{"@records[2]": 5, "@records[3]": 2, "@taken": 7, "@ended[3]": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s\n%s", diff, said)
	}
}
