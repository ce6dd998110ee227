// Package stockpeer runs engines of ours against a stand-in of stock vLLM's pull connector: a Python peer (peer/) built on a
// description of the wire and on the NIXL wheel's own Python API. Every engine is its own process, over real NIXL.
//
// Lengths of time: the peers' kv_lease_duration is 30, and one of their seconds lasts 100 ms, so all of their integer
// arithmetic is that of the default; ours has a duration of 3 s.
package stockpeer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
	"github.com/kvlease/kvlease/internal/sigstop"
)

const (
	duration  = 3 * time.Second
	interval  = duration / 6
	extension = duration * 2 / 3
	settle    = 50 * time.Millisecond
	linger    = extension

	slack   = 1500 * time.Millisecond // for a machine that does something else
	longest = 30 * time.Second        // no answer within this is a failure
)

var root = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// python is the interpreter with the wheel's API: CPython 3.11, which the pinned wheel is made for, numpy and pyzmq.
var python = sync.OnceValues(func() (string, error) {
	target := filepath.Join(root, ".deps", "stockpeer")
	for _, name := range []string{"python3", "python3.11"} {
		out, err := exec.Command(name, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
		if err != nil || string(bytes.TrimSpace(out)) != "3.11" {
			continue
		}
		return name, install(name, target)
	}
	return "", fmt.Errorf("the NIXL wheel's Python API is for CPython 3.11, and neither python3 nor python3.11 is that")
})

// install unpacks the pinned packages; another test process may do the same at once.
func install(python, target string) error {
	list := filepath.Join("requirements.txt")
	want, err := os.ReadFile(list)
	if err != nil {
		return err
	}
	there := func() bool {
		have, err := os.ReadFile(filepath.Join(target, "requirements.txt"))
		return err == nil && bytes.Equal(have, want)
	}
	if there() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	fresh, err := os.MkdirTemp(filepath.Dir(target), "stockpeer-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(fresh)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore",
		"--no-deps", "--only-binary=:all:", "--require-hashes", "--target", fresh, "-r", list).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pip install -r requirements.txt: %w: %.500s", err, out)
	}
	if err := os.WriteFile(filepath.Join(fresh, "requirements.txt"), want, 0o644); err != nil {
		return err
	}
	if err := os.RemoveAll(target); err != nil { // of other versions
		return err
	}
	if err := os.Rename(fresh, target); err != nil && !there() {
		return err
	}
	return os.Chmod(target, 0o755)
}

// report is one line of an engine.
type report map[string]any

func (r report) text(key string) string { s, _ := r[key].(string); return s }
func (r report) num(key string) float64 { f, _ := r[key].(float64); return f }
func (r report) at() time.Duration      { return time.Duration(r.num("t")) }

// peer is an engine's process.
type peer struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser

	mu      sync.Mutex
	reports []report
	news    chan struct{} // closed and made anew when a report comes
	ended   bool
	n       int
	ready   report
}

// start runs an engine; it is killed with the test.
func start(t *testing.T, name string, args ...string) *peer {
	t.Helper()
	python, err := python()
	if err != nil {
		require.Skip(t, "stockpeer", err.Error())
	}
	wheel := filepath.Join(root, "third_party", "nixl")
	if _, err := os.Stat(filepath.Join(wheel, ".kvlease-wheel")); err != nil {
		require.Skip(t, "nixl", "the wheel is not in third_party/nixl: run make deps")
	}
	p := &peer{t: t, name: name, news: make(chan struct{}), cmd: exec.Command(python, args...)}
	p.cmd.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(root, ".deps", "stockpeer")+":"+wheel, "PYTHONDONTWRITEBYTECODE=1", "KVLEASE_NIXL="+wheel)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = &prefixed{t: t, name: name}
	runtime.LockOSThread() // the death signal comes with the end of the thread that started the process
	t.Cleanup(runtime.UnlockOSThread)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); p.listen(out) }()
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		<-done
		_ = p.cmd.Wait()
		if t.Failed() {
			p.leftovers()
		}
	})
	p.ready = p.wait("ready", "")
	return p
}

func (p *peer) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		r := report{}
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			r = report{"ev": "noise", "error": lines.Text()}
		}
		p.mu.Lock()
		p.reports = append(p.reports, r)
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
	}
	p.mu.Lock()
	p.ended = true
	close(p.news)
	p.news = make(chan struct{})
	p.mu.Unlock()
}

// leftovers lists what nobody has waited for, for a test that failed.
func (p *peer) leftovers() {
	for _, r := range p.reports {
		line, _ := json.Marshal(r)
		p.t.Logf("%s: not waited for: %.300s", p.name, line)
	}
}

// take removes and gives the first report that fits, waiting for it at most within.
func (p *peer) take(fits func(report) bool, within time.Duration) (report, bool) {
	late := time.NewTimer(within)
	defer late.Stop()
	for {
		p.mu.Lock()
		if i := slices.IndexFunc(p.reports, fits); i >= 0 {
			r := p.reports[i]
			p.reports = slices.Delete(p.reports, i, i+1)
			p.mu.Unlock()
			return r, true
		}
		news, ended := p.news, p.ended
		p.mu.Unlock()
		if ended {
			return nil, false
		}
		select {
		case <-news:
		case <-late.C:
			return nil, false
		}
	}
}

func event(ev, id string) func(report) bool {
	return func(r report) bool { return r.text("ev") == ev && (id == "" || r.text("id") == id) }
}

// wait gives the next event of this kind, about a request if id is not empty.
func (p *peer) wait(ev, id string) report {
	p.t.Helper()
	r, ok := p.take(event(ev, id), longest)
	if !ok {
		p.t.Fatalf("%s: no event %s %s", p.name, ev, id)
	}
	return r
}

// none fails the test if such an event comes, or has come, within d.
func (p *peer) none(ev, id string, d time.Duration) {
	p.t.Helper()
	if r, ok := p.take(event(ev, id), d); ok {
		p.t.Fatalf("%s: %v, which must not come", p.name, r)
	}
	if p.mu.Lock(); p.ended {
		defer p.mu.Unlock()
		p.t.Fatalf("%s has ended", p.name)
	}
	p.mu.Unlock()
}

// do carries out a command and gives its answer; pairs are keys and values.
func (p *peer) do(cmd string, pairs ...any) report {
	p.t.Helper()
	r := p.try(cmd, pairs...)
	if r["ok"] != true {
		p.t.Fatalf("%s: %s: %v", p.name, cmd, r["error"])
	}
	return r
}

func (p *peer) try(cmd string, pairs ...any) report {
	p.t.Helper()
	n := p.tell(cmd, pairs...)
	r, ok := p.take(func(r report) bool { return r["re"] == n }, longest)
	if !ok {
		p.t.Fatalf("%s: no answer to %s", p.name, cmd)
	}
	return r
}

// tell gives a command and waits for nothing; the answer will carry the number that comes back.
func (p *peer) tell(cmd string, pairs ...any) float64 {
	p.t.Helper()
	p.n++
	c := report{"cmd": cmd, "n": p.n}
	for i := 0; i < len(pairs); i += 2 {
		c[pairs[i].(string)] = pairs[i+1]
	}
	line, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatalf("%s: %s: %v", p.name, cmd, err)
	}
	return float64(p.n)
}

// stat is one of kvl_stats.
func (p *peer) stat(key string) uint64 {
	p.t.Helper()
	v, ok := p.do("stats")["stats"].(map[string]any)[key].(float64)
	if !ok {
		p.t.Fatalf("%s: kvl_stats has no %s", p.name, key)
	}
	return uint64(v)
}

func (p *peer) signal(s syscall.Signal) {
	p.t.Helper()
	if err := sigstop.Signal(p.cmd.Process, s); err != nil {
		p.t.Fatal(err)
	}
}

// until waits for a state that no event tells.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(longest); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for: %s", what)
		}
	}
}

// prefixed puts an engine's stderr into the test's log.
type prefixed struct {
	t    *testing.T
	name string
	rest []byte
}

func (w *prefixed) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		w.t.Logf("%s: %s", w.name, w.rest[:i])
		w.rest = w.rest[i+1:]
	}
}

// buildFolder is where `make build` has put things.
func buildFolder() string {
	if core := os.Getenv("KVLEASE_CORE"); core != "" {
		return filepath.Dir(core)
	}
	return filepath.Join(root, "build")
}

// ours starts an engine on kvlease; config overrides what is the same for all tests.
func ours(t *testing.T, name string, config report) *peer {
	t.Helper()
	build := buildFolder()
	for _, file := range []string{"libkvlease.so", "libkvlease-core.so"} {
		if _, err := os.Stat(filepath.Join(build, file)); err != nil {
			require.Skip(t, "core", "no "+file+": run make build")
		}
	}
	full := report{
		"engine_id": name, "side_channel_host": "127.0.0.1", "side_channel_port": freePort(t), "side_channel_listen": true,
		"compatibility_hash": compatibilityHash, "kv_lease_duration": duration.Seconds(), "allow_short_leases": true, "step_max": 0.1,
	}
	for key, v := range config {
		full[key] = v
	}
	text, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, name, "ours.py", filepath.Join(build, "libkvlease.so"), string(text))
}

// stock starts a peer: prefill or decode.
func stock(t *testing.T, side, name string, args ...string) *peer {
	t.Helper()
	return start(t, name, append([]string{filepath.Join("peer", side+".py"), "--engine-id", name, "--second", "0.1"}, args...)...)
}

// compatibilityHash is that of the stand-in, which takes it from the values that its model would have.
const compatibilityHash = "06849b5f5775899785e5949b14ac60d5ed961126d99a8f718cb1936bbbd8c52e"

// freePort is one that was free just now.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// throughRouter is the way of parameters from P to D: a router reads the object, sets nothing, and writes it.
func throughRouter(t *testing.T, r report) report {
	t.Helper()
	line, err := json.Marshal(r["params"])
	if err != nil {
		t.Fatal(err)
	}
	var params report
	if err := json.Unmarshal(line, &params); err != nil {
		t.Fatal(err)
	}
	return params
}

// within fails the test unless least <= got <= most.
func within(t *testing.T, what string, got, least, most time.Duration) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%s after %v, want %v to %v", what, got.Round(time.Millisecond), least, most)
	}
}
