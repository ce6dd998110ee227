package demo

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
)

// network carries the side channels of engines in the test's process, so that the connections of one that was killed fall, as
// the kernel sees to it for a process.
type network struct {
	mu    sync.Mutex
	ports map[string]*port // by run and engine
	dead  map[string]bool
}

// port is where an engine is found: what arrives there goes on to where it listens.
type port struct {
	listener net.Listener
	conns    []net.Conn
}

func newNetwork() *network { return &network{ports: map[string]*port{}, dead: map[string]bool{}} }

// listen opens an engine's port and answers where the engine itself is to listen.
func (n *network) listen(t *testing.T, s spec) (string, error) {
	inner, err := ports.Free(1)
	if err != nil {
		return "", err
	}
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		return "", err
	}
	t.Cleanup(func() { l.Close() })
	to := fmt.Sprintf("127.0.0.1:%d", inner)
	p := &port{listener: l}
	n.mu.Lock()
	n.ports[s.run+s.name] = p
	delete(n.dead, s.run+s.name)
	n.mu.Unlock()
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			n.join(p, from, to, s.run+other(s.name))
		}
	}()
	return to, nil
}

// other is who else plays: nobody but D knows P's port, and nobody but P knows D's.
func other(name string) string {
	if name == "P" {
		return "D"
	}
	return "P"
}

func (n *network) join(p *port, from net.Conn, to, who string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	inner, err := net.Dial("tcp", to)
	if n.dead[who] || err != nil {
		from.Close()
		if err == nil {
			inner.Close()
		}
		return
	}
	p.conns = append(p.conns, from, inner)
	for _, pair := range [][2]net.Conn{{from, inner}, {inner, from}} {
		go func() {
			io.Copy(pair[0], pair[1])
			pair[0].Close()
		}()
	}
}

// kill lets all connections of an engine fall, and makes no more.
func (n *network) kill(s spec) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead[s.run+s.name] = true
	if p := n.ports[s.run+s.name]; p != nil {
		p.listener.Close()
	}
	for _, name := range []string{"P", "D"} {
		if p := n.ports[s.run+name]; p != nil {
			for _, c := range p.conns {
				c.Close()
			}
			p.conns = nil
		}
	}
}
