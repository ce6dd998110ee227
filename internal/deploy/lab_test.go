package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
	"github.com/kvlease/kvlease/internal/sigstop"
)

const patience = 90 * time.Second // for what must come true

func root(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// program finds prometheus or promtool: the system's, or what make deps-prometheus has unpacked.
func program(t testing.TB, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path := filepath.Join(root(t), ".deps", "prometheus", "usr", "bin", name)
	if _, err := os.Stat(path); err != nil {
		require.Skip(t, "prometheus", name+" is not here: make deps-prometheus, or apt-get install prometheus")
	}
	return path
}

// tool is the kvlease that make build has made, with NIXL in reach.
func tool(t testing.TB) string {
	t.Helper()
	path, wheel := filepath.Join(root(t), "build", "kvlease"), filepath.Join(root(t), "third_party", "nixl", ".kvlease-wheel")
	if other := os.Getenv("KVLEASE_TOOL"); other != "" {
		path = other
	}
	for _, file := range []string{path, wheel} {
		if _, err := os.Stat(file); err != nil {
			require.Skip(t, "nixl", "no "+file+": run make deps build")
		}
	}
	if os.Getenv("KVLEASE_NIXL") == "" {
		t.Setenv("KVLEASE_NIXL", filepath.Dir(wheel))
	}
	return path
}

// start runs a program until the test ends.
func start(t testing.TB, name string, args ...string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	t.Helper()
	cmd = exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = write
	errs, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	write.Close()
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		read.Close()
		if text, _ := os.ReadFile(errs.Name()); t.Failed() && len(text) > 0 {
			t.Logf("%s said: %s", filepath.Base(name), text[max(0, len(text)-2000):])
		}
		errs.Close()
	})
	return cmd, in, read
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// report is a line of kvlease node.
type report struct {
	Ev, ID, Status, Reason, Error string
	Re                            int
	OK                            *bool
	Params                        json.RawMessage
	LateMS                        float64 `json:"late_ms"`
	EngineID                      string  `json:"engine_id"`
}

// engine is a stand-in in a process of its own.
type engine struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.Writer
	n    int
	mu   sync.Mutex
	told []report
}

func newEngine(t testing.TB, dir, id string, lease time.Duration, args ...string) *engine {
	t.Helper()
	e := &engine{t: t}
	cmd, in, out := start(t, tool(t), append([]string{"node", "--engine-id", id, "--lease", lease.String(), "--pass-time", "10ms", "--config", fmt.Sprintf(`{"stats_page":%q}`, dir)}, args...)...)
	e.cmd, e.in = cmd, in
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r report
			if json.Unmarshal(lines.Bytes(), &r) == nil {
				e.mu.Lock()
				e.told = append(e.told, r)
				e.mu.Unlock()
			}
		}
	}()
	e.await("ready", func(r *report) bool { return r.Ev == "ready" })
	return e
}

// late is the longest time that a pass was held up, as the engine says itself.
func (e *engine) late() (longest time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := range e.told {
		longest = max(longest, time.Duration(e.told[i].LateMS*1e6))
	}
	return longest
}

// await waits for a line.
func (e *engine) await(what string, ok func(r *report) bool) report {
	e.t.Helper()
	at := 0
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		e.mu.Lock()
		for ; at < len(e.told); at++ {
			if r := e.told[at]; ok(&r) {
				e.mu.Unlock()
				return r
			}
		}
		e.mu.Unlock()
	}
	e.t.Fatalf("%s did not come", what)
	return report{}
}

func (e *engine) send(cmd string, more map[string]any) int {
	e.n++
	line := map[string]any{"cmd": cmd, "n": e.n}
	for k, v := range more {
		line[k] = v
	}
	text, err := json.Marshal(line)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.in.Write(append(text, '\n')); err != nil {
		e.t.Fatalf("%s: %v", cmd, err)
	}
	return e.n
}

// stop has it stand still until SIGCONT.
func (e *engine) stop() {
	e.t.Helper()
	if err := sigstop.Signal(e.cmd.Process, syscall.SIGSTOP); err != nil {
		e.t.Fatal(err)
	}
}

func (e *engine) ask(cmd string, more map[string]any) report {
	e.t.Helper()
	n := e.send(cmd, more)
	r := e.await("the answer to "+cmd, func(r *report) bool { return r.Re == n })
	if r.OK == nil || !*r.OK {
		e.t.Fatalf("%s: %s", cmd, r.Error)
	}
	return r
}

// pair is an owner and a reader that know each other over the side channel.
type pair struct {
	p, d  *engine
	owner string // id of p
	port  int
	block int
}

// begin starts an owner.
func (s *pair) begin(t testing.TB, dir, id string) {
	s.owner, s.port = id, freePort(t)
	s.p = newEngine(t, dir, id, lease, "--role", "prefill", "--listen", fmt.Sprintf("127.0.0.1:%d", s.port))
}

func (s *pair) connect(d *engine) {
	s.d = d
	d.ask("engine", map[string]any{"engine_id": s.owner, "host": "127.0.0.1", "port": s.port})
	d.await("engine_up", func(r *report) bool { return r.Ev == "engine_up" && r.EngineID == s.owner })
}

// request lets P hold blocks and D wait for them.
func (s *pair) request(id string, blocks int) {
	list := make([]int, blocks)
	for i := range list {
		list[i] = s.block % 512
		s.block++
	}
	granted := s.p.ask("grant", map[string]any{"id": id, "blocks": list, "tokens": 16 * blocks})
	s.d.ask("track", map[string]any{"id": id, "params": granted.Params})
}

// read lets D read a request to its end.
func (s *pair) read(id string) {
	s.d.ask("read", map[string]any{"id": id})
	s.d.await("the end of the read of "+id, func(r *report) bool { return strings.HasPrefix(r.Ev, "read_") && r.ID == id })
}

// server is a Prometheus.
type server struct {
	t    testing.TB
	name string
	addr string
}

func newServer(t testing.TB, name, config string, args ...string) *server {
	t.Helper()
	s := &server{t: t, name: name, addr: fmt.Sprintf("127.0.0.1:%d", freePort(t))}
	start(t, program(t, "prometheus"), append([]string{"--config.file=" + config, "--storage.tsdb.path=" + t.TempDir(), "--web.listen-address=" + s.addr, "--log.level=warn"}, args...)...)
	until(t, name+" is ready", func() string {
		resp, err := http.Get("http://" + s.addr + "/-/ready")
		if err != nil {
			return err.Error()
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return resp.Status
		}
		return ""
	})
	return s
}

// sample is one series of an answer.
type sample struct {
	Metric map[string]string
	V      float64
}

// ask evaluates an expression now.
func (s *server) ask(expr string) ([]sample, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+s.addr+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s", answer.Error)
	}
	var list []sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%v is no number", r.Value)
		}
		list = append(list, sample{r.Metric, v})
	}
	return list, nil
}

// until waits for a condition; ok gives "" or what is still missing.
func until(t testing.TB, what string, ok func() string) {
	t.Helper()
	why := ""
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if why = ok(); why == "" {
			return
		}
	}
	t.Fatalf("%s: not within %v: %s", what, patience, why)
}
