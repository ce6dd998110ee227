package probe

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// fixtures is the folder of the compiled test programs: libsites.so and host.
var fixtures struct {
	dir string
	err error
}

func TestMain(m *testing.M) {
	if os.Getenv(unprivilegedEnv) != "" {
		os.Exit(unprivileged())
	}
	if words := strings.Fields(os.Getenv(insideEnv)); len(words) == 2 {
		os.Exit(inside(words[0], words[1]))
	}
	code := m.Run()
	if fixtures.dir != "" {
		os.RemoveAll(fixtures.dir)
	}
	os.Exit(code)
}

// fixture gives the path of a compiled test program.
func fixture(t testing.TB, name string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		require.Skip(t, "cc", "no C compiler: the processes that are traced here are C programs")
	}
	if fixtures.dir == "" && fixtures.err == nil {
		if fixtures.dir, fixtures.err = os.MkdirTemp("", "kvlease-probe"); fixtures.err == nil {
			fixtures.err = os.Chmod(fixtures.dir, 0o755) // for processes of other users
		}
		for _, args := range []string{"-shared -fPIC -o libsites.so sites.c", "-o host host.c -ldl -pthread"} {
			if fixtures.err != nil {
				break
			}
			words := strings.Fields(args)
			for i, w := range words {
				switch {
				case strings.HasSuffix(w, ".c"):
					words[i] = filepath.Join("testdata", w)
				case i > 0 && words[i-1] == "-o":
					words[i] = filepath.Join(fixtures.dir, w)
				}
			}
			if said, err := exec.Command(cc, append(strings.Fields("-std=c11 -O2 -Wall -Wextra -Werror"), words...)...).CombinedOutput(); err != nil {
				fixtures.err = fmt.Errorf("cc %s: %w: %s", args, err, said)
			}
		}
	}
	if fixtures.err != nil {
		t.Fatal(fixtures.err)
	}
	return filepath.Join(fixtures.dir, name)
}

// host is a process that runs through sites as it is told.
type host struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
	pid int
}

func startHost(t testing.TB, libs ...string) *host {
	t.Helper()
	if len(libs) == 0 {
		libs = []string{fixture(t, "libsites.so")}
	}
	return hostOf(t, exec.Command(fixture(t, "host"), libs...))
}

func hostOf(t testing.TB, cmd *exec.Cmd) *host {
	t.Helper()
	cmd.Stderr = os.Stderr
	h := &host{t: t, cmd: cmd}
	in, out := child.Pipes(t, cmd)
	h.in, h.out = in, bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	h.pid = cmd.Process.Pid
	if got := h.answer(); got != "ready" {
		t.Fatalf("the host says %q", got)
	}
	return h
}

func (h *host) answer() string {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		h.t.Fatalf("host: %v", err)
	}
	return strings.TrimSpace(line)
}

func (h *host) say(format string, args ...any) string {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.in, format+"\n", args...); err != nil {
		h.t.Fatal(err)
	}
	return h.answer()
}

// fire runs through a site of the first library, and fails the test if nobody listens there.
func (h *host) fire(site trace.Site, a, b, c, d uint64) {
	h.t.Helper()
	if got := h.say("fire 0 %d %d %d %d %d", site, a, b, c, d); got != "on" {
		h.t.Fatalf("%v is %s", site, got)
	}
}

func (h *host) number(format string, args ...any) uint64 {
	h.t.Helper()
	n, err := strconv.ParseUint(h.say(format, args...), 10, 64)
	if err != nil {
		h.t.Fatal(err)
	}
	return n
}

// open gives a probe, or skips where the machine has none.
func open(t testing.TB, cfg Config) *Probe {
	t.Helper()
	if err := Check(); err != nil {
		require.Skip(t, "ebpf", err.Error())
	}
	p, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// attach gives the files of a process, and the probe at all of them.
func attach(t testing.TB, p *Probe, fs *Files, pid int) (files []*File, detach func()) {
	t.Helper()
	files, err := fs.Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	var list []*Attachment
	for _, f := range files {
		a, err := p.Attach(f, pid)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, a)
	}
	detach = func() {
		for _, a := range list {
			if err := a.Detach(); err != nil {
				t.Error(err)
			}
		}
		list = nil
	}
	t.Cleanup(detach)
	return files, detach
}

func newFiles(t testing.TB) *Files {
	fs := NewFiles()
	t.Cleanup(fs.Close)
	return fs
}

func read(t testing.TB, p *Probe) *Snapshot {
	t.Helper()
	s, err := p.Read()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// series gives the one of a stage and its ends; an empty one if there is none.
func (s *Snapshot) series(stage Stage, from, to uint64) *Series {
	i := slices.IndexFunc(s.Series, func(e Series) bool { return e.Stage == stage && e.From == from && e.To == to })
	if i < 0 {
		return &Series{}
	}
	return &s.Series[i]
}

// site is what stands in a process's memory at a site: five bytes and the semaphore.
func (h *host) site(f *File, s *Site) (code [5]byte, semaphore uint16) {
	h.t.Helper()
	base := h.base(f)
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", h.pid))
	if err != nil {
		h.t.Fatal(err)
	}
	defer mem.Close()
	var word [2]byte
	for _, r := range []struct {
		into []byte
		addr uint64
	}{{code[:], base + s.Addr}, {word[:], base + s.SemaphoreAddr}} {
		if _, err := mem.ReadAt(r.into, int64(r.addr)); err != nil {
			h.t.Fatal(err)
		}
	}
	return code, binary.NativeEndian.Uint16(word[:])
}

// base is where a process has a file loaded.
func (h *host) base(f *File) uint64 {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", h.pid))
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		m, ok, err := parseMapping(strings.TrimSpace(line))
		if err != nil {
			h.t.Fatal(err)
		}
		if ok && m.offset == 0 && (fileID{m.dev, m.inode}) == f.id {
			return m.start
		}
	}
	h.t.Fatalf("%s is not mapped", f.Path)
	return 0
}

// quiet fails the test unless every site is a nop and every semaphore 0, once that has had time.
func (h *host) quiet(files []*File) {
	h.t.Helper()
	nop := [5]byte{0x0f, 0x1f, 0x44, 0x00, 0x00}
	for _, f := range files {
		for i := range f.Sites {
			s := &f.Sites[i]
			within(h.t, func() string {
				code, semaphore := h.site(f, s)
				if (code != nop && isAMD64) || semaphore != 0 {
					return fmt.Sprintf("%v: code % x, semaphore %d", s.Site, code, semaphore)
				}
				return ""
			})
		}
	}
}

// within waits until nothing is wrong, at most some seconds.
func within(t testing.TB, wrong func() string) {
	t.Helper()
	until := time.Now().Add(10 * time.Second)
	for {
		text := wrong()
		if text == "" {
			return
		}
		if time.Now().After(until) {
			t.Fatal(text)
		}
		time.Sleep(5 * time.Millisecond)
	}
}
