package simnet_test

import (
	"sync"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
)

// agent is a transport: *simnet.Agent would hide its own method Agent.
type agent interface{ transport.Transport }

// live is an agent in a test that waits for things: whoever looks lets the clock go on to the next event.
type live struct {
	agent
	net *simnet.Net
	mu  *sync.Mutex // the suite loads and registers on a second thread
}

func (l *live) Register(r []transport.Region) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.Register(r)
}

func (l *live) Metadata() ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.Metadata()
}

func (l *live) Load(b []byte) (transport.Peer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.Load(b)
}

func (l *live) Drop(p transport.Peer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.Drop(p)
}

func (l *live) Send(p transport.Peer, msg []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.agent.Send(p, msg)
	l.net.Advance(l.net.Now().Add(time.Microsecond))
	return err
}

func (l *live) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.PostRead(s)
}

func (l *live) Poll(in *transport.Inbox) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn()
	return l.agent.Poll(in)
}

func (l *live) PollReads(xs []transport.Xfer, out []transport.Status, spin int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.turn()
	l.agent.PollReads(xs, out, spin)
}

func (l *live) Release(x transport.Xfer) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.agent.Release(x)
}

func (l *live) turn() { l.net.Advance(min(l.net.NextEvent(), l.net.Now().Add(time.Second))) }

func TestTheContract(t *testing.T) {
	for name, link := range map[string]simnet.Link{
		"nothing takes time":       {},
		"a slow link with jitter":  {Delay: 40 * time.Microsecond, Jitter: 300 * time.Microsecond, ReadDelay: 50 * time.Microsecond, DescTime: time.Microsecond},
		"a link with a rate":       {Delay: 5 * time.Microsecond, Jitter: time.Microsecond, Rate: 3e9, Connect: 8 * time.Millisecond},
		"RDMA, and rows come torn": {Delay: 2 * time.Microsecond, Jitter: 9 * time.Microsecond, RDMA: true, Torn: 1},
	} {
		t.Run(name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T) transporttest.Pair {
				n := simnet.New(simnet.Config{Seed: hashOf(t.Name()), Link: link})
				mu := new(sync.Mutex)
				agent := func(name string, reads int) *live {
					a, err := n.Agent(name, simnet.AgentConfig{ReadsMax: reads})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = a.Close() })
					return &live{a, n, mu}
				}
				return transporttest.Pair{
					A: agent("decode-0", 20), B: agent("prefill-0", 0), ReadsMax: 20,
					Hold:  func(on bool) { n.HoldReads("decode-0", on) },
					KillB: func() { n.Kill("prefill-0") },
					CutA:  func() { n.Reset("decode-0", "prefill-0") },
				}
			})
		})
	}
}

func hashOf(s string) (h uint64) {
	for i := range len(s) {
		h = h*31 + uint64(s[i])
	}
	return h
}
