package transporttest

import (
	"errors"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func testAbandon(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 16)
	blob, err := p.B.Metadata()
	must(t, err)
	whole := func(peer transport.Peer, at int) *transport.ReadSpec {
		return &transport.ReadSpec{Peer: peer, Descs: []transport.Desc{{Local: addr(memA[at:]), Remote: addr(memB), Len: 4096}}}
	}
	for i := range memB {
		memB[i] = 7
	}
	if p.Hold != nil {
		p.Hold(true)
	}
	x, err := p.A.PostRead(whole(toB, 0))
	must(t, err)
	must(t, p.A.Abandon(toB))
	for name, call := range map[string]func() error{
		"send":           func() error { return p.A.Send(toB, []byte("x")) },
		"read":           func() error { _, err := p.A.PostRead(whole(toB, 0)); return err },
		"drop":           func() error { return p.A.Drop(toB) },
		"second abandon": func() error { return p.A.Abandon(toB) },
	} {
		if err := call(); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("%s of an abandoned peer: %v, want ErrInvalid", name, err)
		}
	}
	if p.Hold != nil {
		if err := p.A.Release(x); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("release of a pending read of an abandoned peer: %v, want ErrInvalid", err)
		}
		if err := p.A.Close(); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("close over it: %v, want ErrInvalid", err)
		}
	}
	again, err := p.A.Load(blob)
	must(t, err)
	if again == toB {
		t.Fatalf("the peer loaded again is %d, the abandoned one", again)
	}
	if p.Hold != nil {
		p.Hold(false)
	}
	st := p.finish(p.A, x)
	if p.Hold != nil && st != transport.Done { // who can hold reads back can also let this one go on
		t.Errorf("the read has status %d after the peer was loaded again, want Done", st)
	}
	if st == transport.Done && (memA[0] != 7 || memA[4095] != 7) {
		t.Error("the read is Done and its bytes are not there")
	}
	must(t, p.A.Release(x))
	if err := p.A.Release(x); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("second release: %v, want ErrInvalid", err)
	}
	p.read(p.A, whole(again, 8192))
	if memA[8192] != 7 || memA[8192+4095] != 7 {
		t.Error("a read after the peer was loaded again brought nothing")
	}
	must(t, p.A.Send(again, []byte("again")))
	p.expect(p.B, p.A.Agent(), []byte("again"))
	must(t, p.A.Drop(again))
}

// testAbandonAgain: slots of peers come back once the last read of an abandoned one is released.
func testAbandonAgain(t *testing.T, p *pair) {
	memA, memB, toB, _ := p.link(1 << 12)
	blob, err := p.B.Metadata()
	must(t, err)
	seen := map[transport.Peer]bool{}
	var open []transport.Xfer
	for round := range 12 {
		if seen[toB] {
			t.Fatalf("peer %d was given before", toB)
		}
		seen[toB] = true
		if round%3 != 2 {
			if p.Hold != nil {
				p.Hold(true)
			}
			x, err := p.A.PostRead(&transport.ReadSpec{Peer: toB, Descs: []transport.Desc{{Local: addr(memA), Remote: addr(memB), Len: 8}}})
			must(t, err)
			open = append(open, x)
		}
		must(t, p.A.Abandon(toB))
		toB, err = p.A.Load(blob)
		must(t, err)
	}
	if p.Hold != nil {
		p.Hold(false)
	}
	for _, x := range open {
		p.finish(p.A, x)
		must(t, p.A.Release(x))
	}
	must(t, p.A.Drop(toB))
	for _, peer := range []transport.Peer{0, toB, toB + 1<<16, ^transport.Peer(0)} {
		if err := p.A.Abandon(peer); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("abandon of peer %d: %v, want ErrInvalid", peer, err)
		}
	}
}
