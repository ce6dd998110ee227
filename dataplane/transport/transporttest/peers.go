package transporttest

import (
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func testRegisterAllOrNone(t *testing.T, p *pair) {
	good, other := memory(t, 1<<16), memory(t, 1<<16)
	local := memory(t, 1<<16)
	must(t, p.A.Register([]transport.Region{region(local)}))
	for _, bad := range []transport.Region{
		{Addr: addr(other), Bytes: 0},
		{Addr: 0, Bytes: 4096},
		{Addr: ^uint64(0) - 100, Bytes: 4096},
		{Addr: addr(other), Bytes: 4096, Mem: 77},
	} {
		if err := p.B.Register([]transport.Region{region(good), bad}); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("register with region %+v: %v, want ErrInvalid", bad, err)
		}
	}
	must(t, p.B.Register([]transport.Region{region(other)}))
	toB := p.load(p.A, p.B)
	good[0] = 1
	p.refused(&transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(local), Remote: addr(good), Len: 8}}})
	if local[0] != 0 {
		t.Error("a region of a refused registration could be read")
	}
	other[0] = 2
	p.read(p.A, &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(local), Remote: addr(other), Len: 8}}})
	if local[0] != 2 {
		t.Error("the region registered after the refusals could not be read")
	}
	if err := p.B.Unregister([]transport.Region{region(other), region(good)}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("unregister of a region that was never registered: %v, want ErrInvalid", err)
	}
	must(t, p.B.Unregister([]transport.Region{region(other)}))
}

// refused posts a read that must not succeed: an error at once or a failed read.
func (p *pair) refused(spec *transport.ReadSpec) {
	p.t.Helper()
	x, err := p.A.PostRead(spec)
	if err != nil {
		return
	}
	if st := p.finish(p.A, x); st != transport.Failed {
		p.t.Errorf("status %d, want Failed", st)
	}
	must(p.t, p.A.Release(x))
}

func testLoadDropLoad(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 16)
	blob, err := p.B.Metadata()
	must(t, err)
	if _, err := p.A.Load(blob); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("load of a loaded agent: %v, want ErrInvalid", err)
	}
	seen := map[transport.Peer]bool{toB: true}
	for round := range 5 {
		must(t, p.A.Drop(toB))
		if err := p.A.Send(toB, []byte("x")); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("send to a dropped peer: %v, want ErrInvalid", err)
		}
		if err := p.A.Drop(toB); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("second drop: %v, want ErrInvalid", err)
		}
		toB, err = p.A.Load(blob)
		must(t, err)
		if seen[toB] {
			t.Fatalf("peer %d was given before", toB)
		}
		seen[toB] = true
		memB[0] = byte(10 + round)
		p.read(p.A, &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 64}}})
		if memA[0] != byte(10+round) {
			t.Fatalf("round %d read %d", round, memA[0])
		}
		must(t, p.A.Send(toB, []byte{byte(round)}))
		p.expect(p.B, p.A.Agent(), []byte{byte(round)})
	}
}

func testBadMetadata(t *testing.T, p *pair) {
	mem := memory(t, 1<<16)
	must(t, p.B.Register([]transport.Region{region(mem)}))
	blob, err := p.B.Metadata()
	must(t, err)
	for _, bad := range [][]byte{nil, {}, []byte("x"), make([]byte, 64), blob[:len(blob)/2], blob[:len(blob)-1]} {
		if peer, err := p.A.Load(bad); err == nil {
			t.Errorf("%d bytes of bad metadata loaded as peer %d", len(bad), peer)
		}
	}
	if _, err := p.A.Load(blob); err != nil {
		t.Errorf("good metadata after the bad: %v", err)
	}
}

func testUnknown(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 12)
	desc := []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}
	for _, peer := range []transport.Peer{0, toB + 1, toB + 1<<16, ^transport.Peer(0)} {
		if err := p.A.Send(peer, []byte("x")); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("send to peer %d: %v, want ErrInvalid", peer, err)
		}
		if x, err := p.A.PostRead(&transport.ReadSpec{Peer: peer, Descs: desc}); !errors.Is(err, transport.ErrInvalid) || x != 0 {
			t.Errorf("read from peer %d: handle %d, %v, want ErrInvalid", peer, x, err)
		}
		if err := p.A.Drop(peer); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("drop of peer %d: %v, want ErrInvalid", peer, err)
		}
	}
	if _, err := p.A.PostRead(&transport.ReadSpec{Peer: toB}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("read without descriptors: %v, want ErrInvalid", err)
	}
	zero := []transport.Desc{{Local: addr(memA), Remote: addr(memB)}}
	if _, err := p.A.PostRead(&transport.ReadSpec{Peer: toB, Descs: zero}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("read of 0 bytes: %v, want ErrInvalid", err)
	}
	for _, x := range []transport.Xfer{0, 1, 1 << 32, ^transport.Xfer(0)} {
		if err := p.A.Release(x); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("release of handle %d: %v, want ErrInvalid", x, err)
		}
		out := []transport.Status{transport.Done}
		if p.A.PollReads([]transport.Xfer{x}, out, 0); out[0] != transport.Failed {
			t.Errorf("status of handle %d is %d, want Failed", x, out[0])
		}
	}
}

// testConcurrent: the step's calls run beside Load, Drop, Register and Metadata of another thread.
func testConcurrent(t *testing.T, p *pair) {
	const rounds, batch = 40, 25
	memA, memB, toB, toA := p.link(1 << 16)
	blobA, err := p.A.Metadata()
	must(t, err)
	_ = toA
	extra := memory(t, rounds*4096)
	done := make(chan error, 1)
	go func() { // B forgets and reloads A, which does not disturb what A sends to B or reads from it
		peer := toA
		for i := range rounds {
			err := p.B.Drop(peer) // its own: the loop below sets the outer one
			if err != nil {
				done <- err
				return
			}
			if peer, err = p.B.Load(blobA); err != nil {
				done <- err
				return
			}
			if err := p.A.Register([]transport.Region{region(extra[i*4096 : (i+1)*4096])}); err != nil {
				done <- err
				return
			}
			if _, err := p.A.Metadata(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	sent, got, reads := 0, 0, 0
	memB[5] = 42
	spec := &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 4096}}}
	var x transport.Xfer
	xs, out := make([]transport.Xfer, 1), make([]transport.Status, 1)
	running := true
	p.until("both threads to end", func() bool {
		select {
		case err := <-done:
			must(t, err)
			running = false
		default:
		}
		if running || sent < batch {
			if sent-got < batch {
				must(t, p.A.Send(toB, []byte{byte(sent), byte(sent >> 8)}))
				sent++
			}
			if x == 0 {
				x, err = p.A.PostRead(spec)
				must(t, err)
			}
		}
		if x != 0 {
			xs[0] = x
			if p.A.PollReads(xs, out, 0); out[0] != transport.Pending {
				if out[0] != transport.Done {
					t.Fatalf("read %d has status %d", reads, out[0])
				}
				must(t, p.A.Release(x))
				x = 0
				reads++
			}
		}
		p.collect(p.B, func(_, body []byte) {
			if int(body[0])|int(body[1])<<8 != got&0xffff {
				t.Fatalf("notification %v, want number %d", body, got)
			}
			got++
		})
		return !running && got == sent && x == 0
	})
	if memA[5] != 42 || reads == 0 {
		t.Errorf("%d reads, byte %d", reads, memA[5])
	}
	t.Logf("%d notifications and %d reads beside %d drops and loads", got, reads, rounds)
}

func testCut(t *testing.T, p *pair) {
	if p.CutA == nil {
		t.Skip("this implementation cannot cut a connection")
	}
	memA, memB, toB, _ := p.link(1 << 12)
	p.CutA()
	p.until("a send to fail", func() bool { return errors.Is(p.A.Send(toB, []byte("x")), transport.ErrPeer) })
	if _, err := p.A.PostRead(&transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}}); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("read over a cut connection: %v, want ErrPeer", err)
	}
	must(t, p.A.Drop(toB))
	toB = p.load(p.A, p.B)
	must(t, p.A.Send(toB, []byte("again")))
	p.until("the notification after the heal", func() bool {
		found := false
		p.collect(p.B, func(_, body []byte) { found = found || string(body) == "again" })
		return found
	})
}

func testKill(t *testing.T, p *pair) {
	if p.KillB == nil {
		t.Skip("this implementation cannot kill an agent of this process")
	}
	memA, memB, toB, _ := p.link(1 << 12)
	spec := &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}}
	var x transport.Xfer
	if p.Hold != nil {
		p.Hold(true)
		var err error
		x, err = p.A.PostRead(spec)
		must(t, err)
	}
	p.KillB()
	if p.Hold != nil {
		p.Hold(false)
	}
	p.until("a send to fail", func() bool { return errors.Is(p.A.Send(toB, []byte("x")), transport.ErrPeer) })
	if _, err := p.A.PostRead(spec); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("read from a dead peer: %v, want ErrPeer", err)
	}
	if x != 0 {
		out := []transport.Status{transport.Pending}
		p.until("the open read to fail", func() bool {
			p.A.PollReads([]transport.Xfer{x}, out, 0)
			return out[0] != transport.Pending
		})
		if out[0] != transport.Failed {
			t.Errorf("read that was open at the kill has status %d, want Failed", out[0])
		}
		must(t, p.A.Release(x))
	}
	must(t, p.A.Drop(toB))
}

func testClose(t *testing.T, p *pair) {
	memA, memB, toB, toA := p.link(1 << 12)
	spec := &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}}
	if p.Hold != nil {
		p.Hold(true)
		x, err := p.A.PostRead(spec)
		must(t, err)
		if err := p.A.Close(); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("close over a pending read: %v, want ErrInvalid", err)
		}
		p.Hold(false)
		if st := p.finish(p.A, x); st != transport.Done {
			t.Errorf("read after the refused close has status %d, want Done", st)
		}
		must(t, p.A.Release(x))
	}
	must(t, p.B.Send(toA, []byte("left behind")))
	full := transport.NewInbox(1, 256)
	full.Put(nil, []byte("taken"))
	p.until("a notification to wait for room", func() bool {
		p.A.Poll(full)
		return p.A.Backlog() == 1
	})
	must(t, p.A.Close())
	must(t, p.A.Close())
	if err := p.A.Send(toB, []byte("x")); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("send after close: %v, want ErrClosed", err)
	}
	if _, err := p.A.PostRead(spec); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("read after close: %v, want ErrClosed", err)
	}
	if _, err := p.A.Load([]byte("x")); !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("load after close: %v, want ErrClosed", err)
	}
	if _, err := p.A.Metadata(); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("metadata after close: %v, want ErrClosed", err)
	}
	if err := p.A.Register([]transport.Region{region(memA)}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("register after close: %v, want ErrClosed", err)
	}
	if err := p.A.Drop(toB); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("drop after close: %v, want ErrClosed", err)
	}
	if err := p.A.Abandon(toB); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("abandon after close: %v, want ErrClosed", err)
	}
	if n := p.A.Poll(p.inA); n != 0 || p.A.Backlog() != 0 {
		t.Errorf("poll after close gave %d, backlog %d", n, p.A.Backlog())
	}
}
