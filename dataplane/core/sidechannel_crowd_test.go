package core

import (
	"io"
	"net"
	"testing"

	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
)

// Whoever takes the places for wires closes a reader's own, and each that it tries anew, for as long as it likes. That is not the death of
// the owner, which answers a handshake. Who stands before a dead one hangs up, too, and answers none.
func TestAnOwnerWithoutAPlaceForAWireIsNotDead(t *testing.T) {
	l := newSideLab(t)
	p, d := l.node("P", `{"death_wires_max": 1}`), l.node("D", `{}`)
	engine := l.name(d, p)
	l.until("it is connected, and not heard yet", func() bool {
		return d.view(engine).State == heartbeat.Connected && p.stat("side_readers_wires") == 1
	}, d)
	stranger := deathwire.Frame{Kind: deathwire.Hello, Engine: 99, Epoch: 1, Nonce: [16]byte{9}}
	p.core.side.Heard(stranger.Engine, stranger.Epoch, stranger.Nonce)
	l.until("another one is heard", func() bool { return p.stat("side_readers_known") == 1 }, d)
	c, err := net.Dial("tcp", p.core.side.server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(stranger.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, deathwire.FrameLen)); err != nil { // its welcome, before P can hear D
		t.Fatal(err)
	}
	l.until("its wire is closed, and no other one taken", func() bool { return d.stat("side_owners_full") == 1 || d.stat("side_owners_dead") == 1 }, p, d)
	if dead, said := d.stat("side_owners_dead"), d.said(t, log.EngineDead); dead != 0 || len(said) != 0 {
		t.Errorf("%d owners are dead: %+v", dead, said)
	}
	if evicted, fallen := p.stat("side_readers_evicted"), d.stat("side_owners_fallen"); evicted != 1 || fallen != 1 {
		t.Errorf("%d wires were closed for another one, %d fell", evicted, fallen)
	}
	l.handOver(p, d, engine, "r", 1)

	w := deathwire.Wire{Addr: p.core.side.server.Addr().String(), Owner: p.core.side.hash, OwnersEpoch: p.core.mem.Epoch}
	if !d.core.side.lives(t.Context(), engine, w) {
		t.Error("it does not live")
	}
	if w.OwnersEpoch++; d.core.side.lives(t.Context(), engine, w) {
		t.Error("another life of it does")
	}
	stop(p)
	if w.OwnersEpoch--; d.core.side.lives(t.Context(), engine, w) {
		t.Error("it lives where nobody answers")
	}
}
