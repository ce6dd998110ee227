package demo

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/node"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// inProcess puts an engine into the test's own process, over loopback: the whole plane is real, only NIXL and the process
// boundary are not. A gate before the transport's poll stands for SIGSTOP and SIGKILL.
type inProcess struct {
	gate   *gate
	stdin  io.WriteCloser
	stdout io.Reader
	cut    func() // ends stdout, as death does
	end    context.CancelFunc
	result chan error
}

type gate struct {
	mu   sync.Mutex
	cond *sync.Cond
	shut bool
}

func newGate() *gate {
	g := &gate{}
	g.cond = sync.NewCond(&g.mu)
	return g
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	g.shut = shut
	g.cond.Broadcast()
	g.mu.Unlock()
}

func (g *gate) pass() {
	g.mu.Lock()
	for g.shut {
		g.cond.Wait()
	}
	g.mu.Unlock()
}

type gated struct {
	transport.Transport
	gate *gate
}

func (t gated) Poll(in *transport.Inbox) int {
	t.gate.pass()
	return t.Transport.Poll(in)
}

// inProcessLauncher starts nodes over one hub. filter sees what an engine reports, line by line.
func inProcessLauncher(t *testing.T, filter func(s spec, line []byte) []byte) launcher {
	hub := loopback.NewHub()
	return func(s spec, _ io.Writer) (process, error) {
		ctx, end := context.WithCancel(context.Background())
		inRead, inWrite := io.Pipe()
		outRead, outWrite := io.Pipe()
		p := &inProcess{gate: newGate(), stdin: inWrite, stdout: outRead, end: end, result: make(chan error, 1)}
		p.cut = func() { outWrite.Close() }
		t.Cleanup(func() { end(); p.gate.set(false) })
		var out io.Writer = outWrite
		if filter != nil {
			out = writerFunc(func(line []byte) (int, error) {
				if _, err := outWrite.Write(filter(s, line)); err != nil {
					return 0, err
				}
				return len(line), nil
			})
		}
		transports := map[string]core.OpenTransport{"loopback": func(_ *core.Config, agent string) (transport.Transport, error) {
			a, err := hub.New(agent, loopback.Config{ReadsMax: 1 << 10})
			return gated{a, p.gate}, err
		}}
		cfg := node.Config{
			Role: s.role, EngineID: s.name, Drive: s.drive, Transport: "loopback", PassTime: s.pass, Lease: s.lease,
			Layers: 4, Blocks: 512, Watch: s.role == "prefill",
		}
		go func() {
			p.result <- node.Run(ctx, cfg, transports, inRead, out, "test")
			outWrite.Close()
			inRead.Close()
		}()
		return p, nil
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (p *inProcess) Stdin() io.WriteCloser { return p.stdin }
func (p *inProcess) Stdout() io.Reader     { return p.stdout }
func (p *inProcess) PID() int              { return os.Getpid() }

func (p *inProcess) Signal(sig syscall.Signal) error {
	switch sig {
	case syscall.SIGSTOP:
		p.gate.set(true)
	case syscall.SIGCONT:
		p.gate.set(false)
	case syscall.SIGKILL:
		p.gate.set(true)
		p.result <- errors.New("signal: killed")
		p.cut()
	}
	return nil
}

func (p *inProcess) Wait() error { return <-p.result }
