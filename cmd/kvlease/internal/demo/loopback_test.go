package demo

import (
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"sync"
	"sync/atomic"
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
	spec   spec
	gate   *gate
	hub    *loopback.Hub
	agent  atomic.Pointer[string]
	net    *network
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

// inProcessLauncher starts nodes over one hub. filter sees what an engine reports, line by line. mutate may put a faulty
// transport into an engine.
func inProcessLauncher(t *testing.T, filter func(s spec, line []byte) []byte, mutate func(s spec, tr transport.Transport) transport.Transport) launcher {
	hub, net := loopback.NewHub(), newNetwork()
	return func(s spec, _ io.Writer) (process, error) {
		ctx, end := context.WithCancel(context.Background())
		inRead, inWrite := io.Pipe()
		outRead, outWrite := io.Pipe()
		p := &inProcess{gate: newGate(), hub: hub, net: net, spec: s, stdin: inWrite, stdout: outRead, end: end, result: make(chan error, 1)}
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
			if err != nil {
				return nil, err
			}
			p.agent.Store(&agent)
			var tr transport.Transport = a
			if mutate != nil {
				tr = mutate(s, a)
			}
			return gated{tr, p.gate}, nil
		}}
		cfg := node.Config{
			Role: s.role, EngineID: s.name, Drive: s.drive, Transport: "loopback", PassTime: s.pass, Lease: s.lease,
			Layers: 4, Blocks: 512, Watch: s.role != "decode", Context: s.context, TP: s.tp, TPRank: s.rank, Keys: maps.Clone(s.keys),
		}
		if s.device != nil {
			cfg.Memory, cfg.Device, cfg.Reads = node.MemoryVRAM, s.device.ordinal, s.device.Reads
		}
		if s.context != "engine" {
			if cfg.Keys == nil {
				cfg.Keys = map[string]any{}
			}
			cfg.Keys["carrier"] = "process"
		}
		if s.port != 0 {
			var err error
			if cfg.Listen, err = net.listen(t, s); err != nil {
				end()
				return nil, err
			}
		}
		go func() {
			p.result <- node.Run(ctx, cfg, transports, inRead, out, "test")
			outWrite.Close()
			inRead.Close()
		}()
		return p, nil
	}
}

// cutLoopback resets what connects two engines, as ss does for processes.
func cutLoopback(a, b *engine) (int, error) {
	from, to := a.proc.(*inProcess), b.proc.(*inProcess)
	from.hub.Cut(*from.agent.Load(), *to.agent.Load())
	to.hub.Cut(*to.agent.Load(), *from.agent.Load())
	return 1, nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func (p *inProcess) Stdin() io.WriteCloser { return p.stdin }
func (p *inProcess) Stdout() io.Reader     { return p.stdout }
func (p *inProcess) PID() int              { return os.Getpid() }

func (p *inProcess) Signal(sig syscall.Signal) error {
	agent := ""
	if a := p.agent.Load(); a != nil {
		agent = *a
	}
	switch sig {
	case syscall.SIGSTOP:
		p.gate.set(true)
		p.hub.Stop(agent)
	case syscall.SIGCONT:
		p.hub.Resume(agent)
		p.gate.set(false)
	case syscall.SIGKILL:
		p.gate.set(true)
		p.hub.Kill(agent)
		p.net.kill(p.spec)
		p.result <- errors.New("signal: killed")
		p.cut()
	}
	return nil
}

func (p *inProcess) Wait() error { return <-p.result }
