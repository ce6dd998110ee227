package cnixl

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// connected is a peer in another process that has answered, and this side of it.
type connected struct {
	t    *testing.T
	r    *remote
	a    *Agent
	mem  []byte
	to   transport.Peer
	size int
}

func connect(t *testing.T, agent string, size int) *connected {
	t.Helper()
	c := &connected{t: t, r: startPeer(t, peerSetup{Agent: "prefill", Bytes: size}), size: size}
	c.a, c.mem, c.to = decodeSide(t, agent, c.r, size)
	if err := c.a.Send(c.to, []byte("connect")); err != nil {
		t.Fatal(err)
	}
	c.r.until("the connection", func() bool { return len(c.r.notifs) == 1 })
	return c
}

// post starts a read of the peer's memory into ours.
func (c *connected) post(pieces int) transport.Xfer {
	c.t.Helper()
	x, err := c.a.PostRead(c.r.readSpec(c.to, c.mem, pieces))
	if err != nil {
		c.t.Fatal(err)
	}
	return x
}

func (c *connected) load() {
	c.t.Helper()
	var err error
	if c.to, err = c.a.Load(c.r.hello.Blob); err != nil {
		c.t.Fatal(err)
	}
}

func (c *connected) ends(x transport.Xfer) transport.Status {
	c.t.Helper()
	waitUntil(c.t, "a read to end", func() bool { return status(c.a, x, 100*time.Microsecond) != transport.Pending })
	return status(c.a, x, 0)
}

// A stopped peer holds a READ open. Its agent is abandoned and loaded again, several times; when it goes on, every READ lands and is
// seen to, and the last connection is as good as a first one.
func TestReadsOfAnAbandonedPeerLandAndAreSeenTo(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	c := connect(t, "decode", 8<<20)
	c.r.do("fill 7")
	c.r.signal(syscall.SIGSTOP)
	const rounds = 5
	var open []transport.Xfer
	for round := range rounds {
		x := c.post(16)
		for range 20 {
			if st := status(c.a, x, time.Millisecond); st != transport.Pending {
				t.Fatalf("round %d: status %d while the peer is stopped", round, st)
			}
		}
		open = append(open, x)
		if err := c.a.Abandon(c.to); err != nil {
			t.Fatal(err)
		}
		if err := c.a.Release(x); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("release of the open read: %v, want ErrInvalid", err)
		}
		c.load()
		if err := c.a.Send(c.to, fmt.Appendf(nil, "HB:%d", round)); err != nil {
			t.Fatal(err)
		}
	}
	if n := bytes.Count(c.mem, []byte{7}); n == c.size {
		t.Fatal("all bytes landed while the peer was stopped: nothing was held open")
	}
	if err := c.a.Close(); !errors.Is(err, transport.ErrInvalid) {
		t.Fatalf("close: %v, want ErrInvalid", err)
	}
	c.r.signal(syscall.SIGCONT)
	for round, x := range open {
		if st := c.ends(x); st != transport.Done {
			t.Errorf("the read of round %d ended with status %d", round, st)
		}
		if n := bytes.Count(c.mem, []byte{7}); n != c.size {
			t.Errorf("round %d: DONE with %d of %d bytes", round, n, c.size)
		}
		if err := c.a.Release(x); err != nil {
			t.Fatal(err)
		}
	}
	clear(c.mem)
	c.r.until("what was sent over each connection", func() bool { return len(c.r.notifs) == 1+rounds })
	// What abandoned agents held is given back at the next load, and the name is free again.
	for range 3 {
		if err := c.a.Drop(c.to); err != nil {
			t.Fatal(err)
		}
		c.load()
		c.r.do("fill 9")
		x := c.post(4)
		if st := c.ends(x); st != transport.Done || bytes.Count(c.mem, []byte{9}) != c.size {
			t.Fatalf("a read over the last connection ended with status %d", st)
		}
		if err := c.a.Release(x); err != nil {
			t.Fatal(err)
		}
		clear(c.mem)
	}
	c.r.do("send-nothing") // the other process lives
	if err := c.a.Close(); err != nil {
		t.Fatal(err)
	}
}

// The read machine over it: the outcome comes at once, the blocks when their bytes have landed, and reads work meanwhile.
func TestAnAbandonedReadGivesItsBlocksBackWhenTheyHaveLanded(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	r := startPeer(t, peerSetup{Agent: "prefill", Bytes: boardLen + heldBlocks*heldBlockLen})
	e := newEngine(t, r)
	r.do("fill 7")
	r.do(fmt.Sprint("word ", fenceWord))
	e.begin()
	if o := e.outcome(); o.Status != record.ReadOK || !o.Proven {
		t.Fatalf("outcome %+v", o)
	}
	fill(e.kv, 0xaa)
	r.signal(syscall.SIGSTOP)
	e.begin()
	for range 50 {
		e.m.Step(e.now)
	}
	if pending, _ := e.m.InFlight(e.peer); pending == 0 {
		t.Fatal("nothing is in flight: the peer answers")
	}
	if n := e.m.Abandon(e.peer, e.now); n == 0 {
		t.Fatal("nothing was abandoned")
	}
	if err := e.a.Abandon(e.peer); err != nil {
		t.Fatal(err)
	}
	if o := e.outcome(); o.Status != record.ReadFailed || !o.BlocksHeld {
		t.Fatalf("outcome %+v, want failed with its blocks held", o)
	}
	var err error
	if e.peer, err = e.a.Load(r.hello.Blob); err != nil {
		t.Fatal(err)
	}
	e.src.Peer = e.peer
	e.now = e.now.Add(24 * time.Hour)
	for range 200 {
		e.m.Step(e.now)
		if _, ok := e.m.NextBack(); ok {
			t.Fatal("blocks came back while the peer holds their transfer")
		}
	}
	r.signal(syscall.SIGCONT)
	waitUntil(t, "the blocks to come back", func() bool {
		e.m.Step(e.now)
		_, ok := e.m.NextBack()
		return ok
	})
	if !only(e.half(false), 7) {
		t.Error("the blocks came back before all had landed")
	}
	fill(e.half(false), 0xdd)
	r.do("fill 9")
	r.do(fmt.Sprint("word ", fenceWord))
	if !only(e.half(false), 0xdd) {
		t.Error("bytes landed after the blocks were given back")
	}
	e.begin()
	if o := e.outcome(); o.Status != record.ReadOK || !o.Proven || !only(e.half(false), 9) {
		t.Errorf("outcome after healing %+v", o)
	}
	if n := e.m.Open(); n != 0 {
		t.Errorf("%d transfers open", n)
	}
	if err := e.a.Close(); err != nil {
		t.Fatal(err)
	}
}

// An abandoned peer dies with a read open: it fails, and its quarantine is the reader's.
func TestAnAbandonedPeerThatDiesFailsItsReads(t *testing.T) {
	if !alone(t, "UCX_TLS=tcp") {
		return
	}
	haveNIXL(t)
	c := connect(t, "decode", 8<<20)
	c.r.signal(syscall.SIGSTOP)
	x := c.post(16)
	if err := c.a.Abandon(c.to); err != nil {
		t.Fatal(err)
	}
	c.load()
	c.r.signal(syscall.SIGKILL)
	if st := c.ends(x); st != transport.Failed {
		t.Errorf("the read ended with status %d, want Failed", st)
	}
	waitUntil(t, "a send to fail", func() bool { return errors.Is(c.a.Send(c.to, []byte("HB:x")), transport.ErrPeer) })
	if err := c.a.Release(x); err != nil {
		t.Fatal(err)
	}
	if err := c.a.Drop(c.to); err != nil {
		t.Fatal(err)
	}
	if err := c.a.Close(); err != nil {
		t.Fatal(err)
	}
}
