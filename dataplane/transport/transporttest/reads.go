package transporttest

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// testReads copies pieces between shuffled places of both memories and compares the whole destination, gaps included.
func testReads(t *testing.T, p *pair) {
	const cell = 1024
	const cells = 2 * 4096
	memA, memB, toB, toA := p.link(cells * cell)
	for _, dir := range []struct {
		at          transport.Transport
		peer        transport.Peer
		local, from []byte
	}{{p.A, toB, memA, memB}, {p.B, toA, memB, memA}} {
		for _, n := range []int{1, 2, 3, 63, 64, 65, 1000, 4096} {
			for i := range dir.from {
				dir.from[i] = byte(i*7 + i>>8 + n)
			}
			clear(dir.local)
			want := make([]byte, len(dir.local))
			to, from := p.rand.Perm(cells), p.rand.Perm(cells)
			descs := make([]transport.Desc, n)
			for i := range descs {
				size := 1 + p.rand.IntN(cell)
				if i%3 == 0 {
					size = cell
				}
				l, r := to[i]*cell, from[i]*cell
				descs[i] = transport.Desc{Local: addr(dir.local) + uint64(l), Remote: addr(dir.from) + uint64(r), Len: uint64(size)}
				copy(want[l:l+size], dir.from[r:])
			}
			p.read(dir.at, &transport.ReadSpec{Peer: dir.peer, Descs: descs})
			if !bytes.Equal(dir.local, want) {
				t.Fatalf("%s, %d descriptors: destination differs", dir.at.Agent(), n)
			}
		}
	}
}

func testReadUnregistered(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 16)
	strange := memory(t, 1<<16)
	for i := range memB {
		memB[i], strange[i] = 1, 1
	}
	for name, d := range map[string]transport.Desc{
		"remote elsewhere":           {Local: addr(memA), Remote: addr(strange), Len: 64},
		"remote past its region":     {Local: addr(memA), Remote: addr(memB) + 1<<16 - 8, Len: 64},
		"remote that wraps":          {Local: addr(memA), Remote: addr(memB), Len: ^uint64(0) - addr(memB) + 2},
		"local past its region":      {Local: addr(memA) + 1<<16 - 8, Remote: addr(memB), Len: 64},
		"remote on a strange device": {Local: addr(memA), Remote: addr(memB), Len: 64, RemoteDevice: 7},
	} {
		p.refused(&transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}, d}})
		clear(memA[:8]) // the good half may have landed
		if !bytes.Equal(memA, make([]byte, len(memA))) {
			t.Errorf("%s: bytes were written", name)
			clear(memA)
		}
	}
	// Such a read says nothing about the connection.
	must(t, p.A.Send(toB, []byte("well")))
	p.expect(p.B, p.A.Agent(), []byte("well"))
}

func testAttached(t *testing.T, p *pair) {
	const size = 4 << 20
	memA, memB, toB, _ := p.link(size)
	for round := range 10 {
		for i := range memB {
			memB[i] = byte(round + 1)
		}
		clear(memA)
		msg := []byte{'r', 'e', 'q', byte(round)}
		x, err := p.A.PostRead(&transport.ReadSpec{
			Peer: toB, Notif: msg,
			Descs: []transport.Desc{
				{Local: addr(memA), Remote: addr(memB), Len: size / 2},
				{Local: addr(memA) + size/2, Remote: addr(memB) + size/2, Len: size / 2},
			},
		})
		must(t, err)
		xs, out := []transport.Xfer{x}, make([]transport.Status, 1)
		arrived := 0
		p.until("the read and its notification", func() bool {
			p.A.PollReads(xs, out, 0)
			if out[0] == transport.Failed {
				t.Fatal("read failed")
			}
			p.collect(p.B, func(agent, body []byte) {
				arrived++
				if string(agent) != p.A.Agent() || !bytes.Equal(body, msg) {
					t.Fatalf("got %q from %q", body, agent)
				}
				if bytes.IndexFunc(memA, func(r rune) bool { return r != rune(round+1) }) >= 0 {
					t.Fatal("the notification came before the data")
				}
			})
			return out[0] == transport.Done && arrived > 0
		})
		must(t, p.A.Release(x))
		must(t, p.A.Send(toB, []byte("end")))
		p.expect(p.B, p.A.Agent(), []byte("end"))
		if arrived != 1 {
			t.Fatalf("the attached notification arrived %d times", arrived)
		}
	}
	// A read without one sends nothing, also when its handle was used with one before.
	p.read(p.A, &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}})
	must(t, p.A.Send(toB, []byte("last")))
	p.expect(p.B, p.A.Agent(), []byte("last"))
}

func testRelease(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 12)
	memB[0] = 9
	spec := &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}}
	if p.Hold != nil {
		p.Hold(true)
		x, err := p.A.PostRead(spec)
		must(t, err)
		out := []transport.Status{transport.Done}
		for range 10 {
			if p.A.PollReads([]transport.Xfer{x}, out, 1000); out[0] != transport.Pending {
				t.Fatalf("held read has status %d", out[0])
			}
			if err := p.A.Release(x); !errors.Is(err, transport.ErrInvalid) {
				t.Fatalf("release of a pending read: %v, want ErrInvalid", err)
			}
		}
		p.Hold(false)
		if st := p.finish(p.A, x); st != transport.Done || memA[0] != 9 {
			t.Fatalf("status %d, byte %d", st, memA[0])
		}
		must(t, p.A.Release(x))
	}
	x, err := p.A.PostRead(spec)
	must(t, err)
	p.finish(p.A, x)
	if p.finish(p.A, x) != transport.Done {
		t.Error("an ended read changed its status")
	}
	must(t, p.A.Release(x))
	if err := p.A.Release(x); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("second release: %v, want ErrInvalid", err)
	}
	y, err := p.A.PostRead(spec)
	must(t, err)
	if x == y {
		t.Error("the handle of a released read was given again")
	}
	p.finish(p.A, y)
	must(t, p.A.Release(y))
}

func testPool(t *testing.T, p *pair) {
	if p.ReadsMax == 0 {
		t.Skip("this implementation has no bound on reads")
	}
	memA, memB, toB, _ := p.link(1 << 12)
	spec := &transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}}
	for range 2 {
		var xs []transport.Xfer
		for range p.ReadsMax {
			x, err := p.A.PostRead(spec)
			must(t, err)
			xs = append(xs, x)
		}
		if _, err := p.A.PostRead(spec); !errors.Is(err, transport.ErrFull) {
			t.Fatalf("read past the pool: %v, want ErrFull", err)
		}
		for _, x := range xs {
			if st := p.finish(p.A, x); st != transport.Done {
				t.Fatalf("status %d", st)
			}
			must(t, p.A.Release(x))
		}
	}
}

func testDropOpen(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 12)
	x, err := p.A.PostRead(&transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}})
	must(t, err)
	if err := p.A.Drop(toB); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("drop under a posted read: %v, want ErrInvalid", err)
	}
	p.finish(p.A, x)
	if err := p.A.Drop(toB); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("drop under a read that is not released: %v, want ErrInvalid", err)
	}
	must(t, p.A.Release(x))
	must(t, p.A.Drop(toB))
}

func testAllocs(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 16)
	descs := make([]transport.Desc, 128)
	for i := range descs {
		descs[i] = transport.Desc{Local: addr(memA) + uint64(i)*256, Remote: addr(memB) + uint64(i)*256, Len: 256}
	}
	spec := &transport.ReadSpec{Peer: toB, Descs: descs, Notif: []byte("req-1:1")}
	msg := []byte("HB:request-one,request-two")
	xs, out := make([]transport.Xfer, 1), make([]transport.Status, 1)
	step := func() {
		must(t, p.A.Send(toB, msg))
		x, err := p.A.PostRead(spec)
		must(t, err)
		xs[0] = x
		for got := 0; got < 2 || out[0] == transport.Pending; {
			p.A.PollReads(xs, out, 1000)
			p.inB.Reset()
			got += p.B.Poll(p.inB)
			p.B.Backlog()
		}
		must(t, p.A.Release(x))
		out[0] = transport.Pending
	}
	if n := testing.AllocsPerRun(200, step); n != 0 {
		t.Errorf("%v allocations in a step's calls, want 0", n)
	}
}
