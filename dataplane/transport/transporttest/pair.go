// Package transporttest is the contract of package transport as tests. Every implementation passes Run.
//
// Every wait has a bound and moves both ends, so two agents may live on one thread and neither needs a progress thread.
package transporttest

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// Pair is two fresh agents that know nothing of each other. What is nil or 0 is not shown for this implementation.
type Pair struct {
	A, B transport.Transport
	// ReadsMax is the number of reads that A holds before PostRead is ErrFull.
	ReadsMax int
	// Hold keeps the reads of A pending, or lets them go.
	Hold func(hold bool)
	// KillB ends B as SIGKILL would.
	KillB func()
	// CutA resets A's connection to B while both live.
	CutA func()
	// Wait bounds every wait; 10 s if 0.
	Wait time.Duration
}

// Run runs the contract suite. open makes a new pair for each test and closes it by t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Pair) {
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *pair)
	}{
		{"register takes all regions or none", testRegisterAllOrNone},
		{"a peer can be loaded, dropped and loaded again", testLoadDropLoad},
		{"metadata that is cut or garbage is refused", testBadMetadata},
		{"notifications of 0 to 64 KiB arrive whole with their sender's name", testNotifSizes},
		{"notifications of one peer keep their order, both ways", testNotifOrder},
		{"an inbox that is too small keeps the rest, and the backlog counts it", testBacklog},
		{"a notification that fits no inbox is counted and the next one arrives", testTooLong},
		{"reads of 1 to 4096 scattered descriptors move every byte, both ways", testReads},
		{"a read of memory that is not registered moves nothing", testReadUnregistered},
		{"an attached notification arrives after the data", testAttached},
		{"a read's handle is released once, and never while it is pending", testRelease},
		{"reads past the pool are refused and the pool comes back", testPool},
		{"unknown peers and handles are refused", testUnknown},
		{"a peer cannot be dropped while a read from it is open", testDropOpen},
		{"a peer abandoned under a read can be loaded again, and the read goes on", testAbandon},
		{"peers are abandoned again and again, with and without a read", testAbandonAgain},
		{"peers come and go on another thread while the step runs", testConcurrent},
		{"a step's calls do not allocate", testAllocs},
		{"a reset connection is an error until drop and load", testCut},
		{"a dead peer is an error", testKill},
		{"close is refused over a pending read, and otherwise idempotent", testClose},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := &pair{Pair: open(t), t: t}
			if p.Wait == 0 {
				p.Wait = 10 * time.Second
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			p.rand = rand.New(rand.NewPCG(seed, 1))
			p.inA, p.inB = transport.NewInbox(4096, 1<<20), transport.NewInbox(4096, 1<<20)
			tc.run(t, p)
		})
	}
}

// pair is a Pair during one test.
type pair struct {
	Pair
	t        *testing.T
	rand     *rand.Rand
	inA, inB *transport.Inbox
}

// link registers bytes of memory on both ends and loads each at the other.
func (p *pair) link(bytes int) (memA, memB []byte, toB, toA transport.Peer) {
	p.t.Helper()
	memA, memB = memory(p.t, bytes), memory(p.t, bytes)
	must(p.t, p.A.Register([]transport.Region{region(memA)}))
	must(p.t, p.B.Register([]transport.Region{region(memB)}))
	toB = p.load(p.A, p.B)
	toA = p.load(p.B, p.A)
	return memA, memB, toB, toA
}

func (p *pair) load(at, of transport.Transport) transport.Peer {
	p.t.Helper()
	blob, err := of.Metadata()
	must(p.t, err)
	peer, err := at.Load(blob)
	must(p.t, err)
	if peer == 0 {
		p.t.Fatal("Load gave peer 0")
	}
	return peer
}

// until runs look and the other end's progress until look reports true; what says what it waits for.
func (p *pair) until(what string, look func() bool) {
	p.t.Helper()
	deadline := time.Now().Add(p.Wait)
	for !look() {
		if time.Now().After(deadline) {
			p.t.Fatalf("waited %v for %s", p.Wait, what)
		}
		runtime.Gosched()
	}
}

// collect polls at into a fresh inbox and gives each notification to take.
func (p *pair) collect(at transport.Transport, take func(agent, body []byte)) {
	in := p.inA
	if at == p.B {
		in = p.inB
	}
	in.Reset()
	at.Poll(in)
	for {
		agent, body, ok := in.Next()
		if !ok {
			return
		}
		take(agent, body)
	}
}

// finish polls a read of at, and the other end, until it ends.
func (p *pair) finish(at transport.Transport, x transport.Xfer) transport.Status {
	p.t.Helper()
	other := p.B
	if at == p.B {
		other = p.A
	}
	xs, out := []transport.Xfer{x}, []transport.Status{transport.Pending}
	p.until("a read to end", func() bool {
		at.PollReads(xs, out, 50_000)
		if out[0] == transport.Pending {
			p.collect(other, func(agent, body []byte) {
				p.t.Errorf("unexpected notification of %d bytes from %q", len(body), agent)
			})
		}
		return out[0] != transport.Pending
	})
	return out[0]
}

// read runs one read to its end and releases it.
func (p *pair) read(at transport.Transport, spec *transport.ReadSpec) {
	p.t.Helper()
	x, err := at.PostRead(spec)
	must(p.t, err)
	if st := p.finish(at, x); st != transport.Done {
		p.t.Fatalf("read ended with status %d, want Done", st)
	}
	must(p.t, at.Release(x))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
