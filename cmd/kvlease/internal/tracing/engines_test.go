package tracing

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	_ "github.com/kvlease/kvlease/cmd/libkvlease/sites/hooks"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// longest bounds every wait for something that comes.
const longest = 30 * time.Second

// engine is a stand-in in this process, over loopback.
type engine struct {
	t       *testing.T
	in      *io.PipeWriter
	reports chan jsonl.Report
	kept    []jsonl.Report
	ended   chan struct{}
	stop    context.CancelFunc
	n       uint64
}

func startEngine(t *testing.T, open core.OpenTransport, role, id, listen string) *engine {
	t.Helper()
	inRead, inWrite := io.Pipe()
	outRead, outWrite := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	e := &engine{t: t, in: inWrite, reports: make(chan jsonl.Report, 1024), ended: make(chan struct{}), stop: stop}
	cfg := node.Config{
		Role: role, EngineID: id, Drive: "inline", Transport: "loopback", PassTime: 2 * time.Millisecond, Lease: 3 * time.Second,
		Layers: 2, Blocks: 64, Listen: listen, Context: "engine", TP: 1, Keys: map[string]any{"stats_page": pages(t)},
	}
	go func() {
		defer close(e.ended)
		runtime.LockOSThread() // a step stays on its thread, as it does in the libraries
		defer runtime.UnlockOSThread()
		if err := node.Run(ctx, cfg, map[string]core.OpenTransport{"loopback": open}, inRead, outWrite, "test"); err != nil {
			t.Errorf("engine %s: %v", id, err)
		}
		outWrite.Close()
		inRead.Close()
	}()
	go func() {
		defer close(e.reports)
		lines := bufio.NewScanner(outRead)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if r, err := jsonl.ParseReport(lines.Bytes()); err == nil {
				e.reports <- r
			}
		}
	}()
	t.Cleanup(e.quit)
	e.wait("ready", func(r *jsonl.Report) bool { return r.Ev == "ready" })
	return e
}

// pages is the folder of one test's stats pages.
func pages(t *testing.T) string {
	dir := filepath.Join(watch.DefaultDir, "kvlease-test-pages-"+t.Name())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// quit ends the engine, and returns when it is gone.
func (e *engine) quit() {
	e.stop()
	select {
	case <-e.ended:
	case <-time.After(longest):
		e.t.Error("an engine does not end")
	}
}

func (e *engine) wait(what string, fits func(*jsonl.Report) bool) jsonl.Report {
	e.t.Helper()
	if i := slices.IndexFunc(e.kept, func(r jsonl.Report) bool { return fits(&r) }); i >= 0 {
		r := e.kept[i]
		e.kept = slices.Delete(e.kept, i, i+1)
		return r
	}
	late := time.After(longest)
	for {
		select {
		case r, ok := <-e.reports:
			if !ok {
				e.t.Fatalf("the engine ended before: %s", what)
			}
			if fits(&r) {
				return r
			}
			e.kept = append(e.kept, r)
		case <-late:
			e.t.Fatalf("waited for: %s", what)
		}
	}
}

func (e *engine) do(c jsonl.Command) jsonl.Report {
	e.t.Helper()
	e.n++
	c.N = e.n
	line, err := jsonl.Append(c)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := e.in.Write(line); err != nil {
		e.t.Fatal(err)
	}
	r := e.wait(c.Cmd, func(r *jsonl.Report) bool { return r.Re == c.N })
	if r.Refused() {
		e.t.Fatalf("%s: %s", c.Cmd, r.Error)
	}
	return r
}

// pair starts an owner and a reader that knows it.
func pair(t *testing.T, open core.OpenTransport) (p, d *engine) {
	t.Helper()
	port, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	p = startEngine(t, open, "prefill", "P", fmt.Sprintf("127.0.0.1:%d", port))
	d = startEngine(t, open, "decode", "D", "")
	d.do(jsonl.Command{Cmd: "engine", EngineID: "P", Host: "127.0.0.1", Port: uint32(port)})
	return p, d
}

// read lets D read one request of P, and gives what the library says that took.
func (e *engine) read(p *engine, id string) time.Duration {
	e.t.Helper()
	granted := p.do(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{1, 2}, Tokens: 16})
	e.do(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
	e.do(jsonl.Command{Cmd: "read", ID: id})
	r := e.wait("read", func(r *jsonl.Report) bool { return r.Ev == "read_done" && r.ID == id })
	p.wait("freed", func(r *jsonl.Report) bool { return r.Ev == "freed" && r.ID == id })
	return time.Duration(r.TookMS * 1e6)
}

// slow is a transport whose reads take a time that is long beside a pass, and whose polls one that is long beside a step.
type slow struct {
	transport.Transport
	takes, polls time.Duration

	mu     sync.Mutex
	posted map[transport.Xfer]time.Time
}

func slowReads(hub *loopback.Hub, takes time.Duration) core.OpenTransport {
	return slowly(hub, takes, 0)
}

func slowly(hub *loopback.Hub, takes, polls time.Duration) core.OpenTransport {
	open := core.Loopback(hub)
	return func(cfg *core.Config, agent string) (transport.Transport, error) {
		tr, err := open(cfg, agent)
		if err != nil {
			return nil, err
		}
		return &slow{Transport: tr, takes: takes, polls: polls, posted: map[transport.Xfer]time.Time{}}, nil
	}
}

func (s *slow) Poll(in *transport.Inbox) int {
	for began := time.Now(); time.Since(began) < s.polls; { // a poll works, it does not sleep
		continue
	}
	return s.Transport.Poll(in)
}

func (s *slow) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	x, err := s.Transport.PostRead(spec)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.posted[x] = time.Now()
	}
	return x, err
}

func (s *slow) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	s.Transport.PollReads(xfers, out, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range xfers {
		if at, ok := s.posted[x]; ok && time.Since(at) < s.takes {
			out[i] = transport.Pending
		}
	}
}

func (s *slow) Release(x transport.Xfer) error {
	err := s.Transport.Release(x)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.posted, x)
	}
	return err
}

// hold lets D wait with a request of P: heartbeats.
func (e *engine) hold(p *engine, id string) {
	e.t.Helper()
	granted := p.do(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{3}, Tokens: 16})
	e.do(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
}
