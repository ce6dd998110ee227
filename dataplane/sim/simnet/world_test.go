package simnet_test

import (
	"errors"
	"testing"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
)

const memBytes = 1 << 14

// world is an owner P and a reader D that knows it.
type world struct {
	testing.TB
	net        *simnet.Net
	p, d       *simnet.Agent
	memP, memD []byte
	blob       []byte // of P
	toP        transport.Peer
	in         *transport.Inbox
}

func newWorld(t testing.TB, seed uint64, link simnet.Link) *world {
	return newWorldOf(t, simnet.Config{Seed: seed, Start: clock.Instant(time.Hour), Link: link}, simnet.AgentConfig{}, simnet.AgentConfig{})
}

func newWorldOf(t testing.TB, cfg simnet.Config, owner, reader simnet.AgentConfig) *world {
	w := &world{
		TB: t, net: simnet.New(cfg), memP: make([]byte, memBytes), memD: make([]byte, memBytes), in: transport.NewInbox(256, 1<<16),
	}
	w.p, w.d = w.agent("P", owner, w.memP), w.agent("D", reader, w.memD)
	w.blob = w.metadata(w.p)
	w.toP = w.load(w.d, w.blob)
	return w
}

func (w *world) agent(name string, cfg simnet.AgentConfig, mem []byte) *simnet.Agent {
	w.Helper()
	a, err := w.net.Agent(name, cfg)
	w.must(err)
	w.must(a.Register([]transport.Region{{Addr: addr(mem), Bytes: uint64(len(mem))}}))
	return a
}

func (w *world) metadata(a *simnet.Agent) []byte {
	w.Helper()
	blob, err := a.Metadata()
	w.must(err)
	return blob
}

func (w *world) load(at *simnet.Agent, blob []byte) transport.Peer {
	w.Helper()
	p, err := at.Load(blob)
	w.must(err)
	return p
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// want checks an error.
func (w *world) want(what string, err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Errorf("%s: %v, want %v", what, err, want)
	}
}

func addr(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) }

// after lets the clock go on.
func (w *world) after(d time.Duration) { w.net.Advance(w.net.Now().Add(d)) }

// desc is n bytes at the same place of both memories.
func (w *world) desc(at, n int) transport.Desc {
	return transport.Desc{Local: addr(w.memD[at:]), Remote: addr(w.memP[at:]), Len: uint64(n)}
}

// post starts a read of D.
func (w *world) post(descs ...transport.Desc) transport.Xfer {
	w.Helper()
	x, err := w.d.PostRead(&transport.ReadSpec{Peer: w.toP, Descs: descs})
	w.must(err)
	return x
}

func (w *world) status(x transport.Xfer) transport.Status {
	out := []transport.Status{99}
	w.d.PollReads([]transport.Xfer{x}, out, 0)
	return out[0]
}

// end lets the clock go on until a read ends, and gives back its handle.
func (w *world) end(x transport.Xfer) transport.Status {
	w.Helper()
	for w.status(x) == transport.Pending {
		if w.net.NextEvent() == clock.Never {
			w.Fatal("a read is pending and nothing is under way")
		}
		w.net.Advance(w.net.NextEvent())
	}
	st := w.status(x)
	w.must(w.d.Release(x))
	return st
}

// got polls everything that has arrived at an agent.
func (w *world) got(a *simnet.Agent) (bodies []string) {
	for {
		w.in.Reset()
		if a.Poll(w.in) == 0 {
			return bodies
		}
		for {
			_, body, ok := w.in.Next()
			if !ok {
				break
			}
			bodies = append(bodies, string(body))
		}
	}
}

func (w *world) send(body string) error { return w.d.Send(w.toP, []byte(body)) }

func fill(m []byte, b byte) {
	for i := range m {
		m[i] = b
	}
}

// count is the number of bytes of m that are b.
func count(m []byte, b byte) (n int) {
	for _, x := range m {
		if x == b {
			n++
		}
	}
	return n
}

// seeds runs a test with several seeds and gives what it found in each.
func seeds(n int, run func(seed uint64)) {
	for s := range n {
		run(uint64(s) + 1)
	}
}
