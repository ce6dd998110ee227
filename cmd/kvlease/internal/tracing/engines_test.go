package tracing

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/standin"
	_ "github.com/kvlease/kvlease/cmd/libkvlease/sites/hooks"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// longest bounds every wait for something that comes.
const longest = 30 * time.Second

// engine is a stand-in in this process, over loopback.
type engine struct{ *standin.Tested }

func startEngine(t *testing.T, open core.OpenTransport, dir, role, id, listen string) *engine {
	t.Helper()
	return &engine{standin.RunTested(t, node.Config{
		Role: role, EngineID: id, Drive: "inline", PassTime: 2 * time.Millisecond, Lease: 3 * time.Second,
		Layers: 2, Blocks: 64, Listen: listen, Context: "engine", TP: 1, Keys: map[string]any{"stats_page": dir},
	}, open)}
}

// pair starts an owner and a reader that knows it.
func pair(t *testing.T, open core.OpenTransport, dir string) (p, d *engine) {
	t.Helper()
	port, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	p = startEngine(t, open, dir, "prefill", "P", fmt.Sprintf("127.0.0.1:%d", port))
	d = startEngine(t, open, dir, "decode", "D", "")
	d.Do(jsonl.Command{Cmd: "engine", EngineID: "P", Host: "127.0.0.1", Port: uint32(port)})
	return p, d
}

// read lets D read one request of P, and gives what the library says that took.
func (e *engine) read(p *engine, id string) time.Duration {
	e.T.Helper()
	granted := p.Do(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{1, 2}, Tokens: 16})
	e.Do(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
	e.Do(jsonl.Command{Cmd: "read", ID: id})
	r := e.Wait("read", func(r *jsonl.Report) bool { return r.Ev == "read_done" && r.ID == id })
	p.Wait("freed", func(r *jsonl.Report) bool { return r.Ev == "freed" && r.ID == id })
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
	e.T.Helper()
	granted := p.Do(jsonl.Command{Cmd: "grant", ID: id, Blocks: []uint32{3}, Tokens: 16})
	e.Do(jsonl.Command{Cmd: "track", ID: id, Params: granted.Params})
}
