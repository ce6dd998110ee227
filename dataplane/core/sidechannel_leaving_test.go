package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Who goes on purpose, as reader or as owner, drains, sleeps or is closed, and nobody takes it for dead.

func TestAReaderThatDrainsEndsNothingByItsEnd(t *testing.T) {
	l := newSideLab(t)
	p, d, _ := l.met()
	d.core.side.leave()
	l.until("the good-bye is there", func() bool { return p.stat("side_readers_left") == 1 }, p, d)
	stop(d)
	l.until("the wire is gone", func() bool { return p.stat("side_readers_wires") == 0 }, p)
	end := time.Now().Add(2 * p.core.cfg.WireGrace)
	l.until("twice the grace is over", func() bool { return time.Now().After(end) }, p)
	if p.core.Held() != 1 || p.stat("side_readers_dead") != 0 {
		t.Errorf("%d leases are held, %d readers dead", p.core.Held(), p.stat("side_readers_dead"))
	}
}

func TestAnEngineThatSleepsAndWakesIsANewEngine(t *testing.T) {
	l := newSideLab(t)
	p, d, engine := l.met()
	before := p.core.mem.Epoch
	_, late := l.grant("late", 3, blocks(20, 2))
	if err := p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.until("its request is lost", func() bool { return len(d.take(record.EvLeaseGone)) == 1 }, p, d)
	d.wantSaid(t, log.EngineWithdrawn, "P", "")
	if lost := d.said(t, log.RequestLost); len(lost) != 1 || !strings.Contains(lost[0].What, "has given its memory up") {
		t.Errorf("of the request is said %+v", lost)
	}
	if said := d.said(t, log.EngineDead); len(said) != 0 || d.stat("side_owners_dead") != 0 || d.stat("side_owners_withdrawn") != 1 {
		t.Errorf("dead: %+v, %d; withdrawn: %d", said, d.stat("side_owners_dead"), d.stat("side_owners_withdrawn"))
	}
	l.until("nothing is tracked there", func() bool { return d.core.side.watch.of(engine)&seenTracked == 0 }, p, d)
	failed := d.sum("side_client_failures")
	l.until("it is asked in vain", func() bool { d.core.side.retry(engine); return d.sum("side_client_failures") >= failed+2 }, p, d)
	d.wantQuiet(t)
	l.track(late, "late", 3)
	l.until("that an answer is wanted is said", func() bool { d.core.side.retry(engine); return len(d.said(t, log.HandshakeFailing)) > 0 }, p, d)
	if err := p.core.Register(p.regions); err != nil {
		t.Fatal(err)
	}
	if p.core.mem.Epoch == before {
		t.Fatal("it is the same era")
	}
	loads := d.stat("side_loads")
	d.core.side.retry(engine)
	l.until("it is connected anew", func() bool { return d.view(engine).State == heartbeat.Connected && d.stat("side_loads") > loads }, p, d)
	_, track := l.handOver(p, d, engine, "s", 2)
	l.read(track, blocks(8, 4), blocks(0, 4))
	l.until("a read from it ends", func() bool { return len(d.take(record.EvReadDone)) == 1 }, p, d)
}

// What a reader leaves behind when it unregisters its memory, or is closed, is not read any more: the owner takes back at once what no
// message has ended, as at its death, and knows that it is none.
func TestAReaderThatGoesOnPurposeIsNotDead(t *testing.T) {
	for _, tc := range []struct {
		name string
		how  func(d *node) error
	}{
		{"it unregisters its memory", func(d *node) error { return d.core.Unregister() }},
		{"it is closed", func(d *node) error { return d.core.Close(5 * time.Second) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newSideLab(t)
			p, d, _ := l.met()
			began := time.Now()
			if err := tc.how(d); err != nil {
				t.Fatal(err)
			}
			l.until("the lease is freed", func() bool { return p.core.Held() == 0 && p.stat("side_readers_withdrawn") == 1 }, p)
			if took := time.Since(began); took > p.core.cfg.Duration/2 {
				t.Errorf("after %v", took)
			}
			p.wantSaid(t, log.ReaderWithdrawn, fmt.Sprintf("#%016x", wire.EngineHash([]byte("D"))), "")
			if said := p.said(t, log.ReaderDead); len(said) != 0 || p.stat("side_readers_dead") != 0 || p.stat("side_readers_left") != 0 {
				t.Errorf("dead: %+v, %d; left: %d", said, p.stat("side_readers_dead"), p.stat("side_readers_left"))
			}
		})
	}
}

// An owner that is closed has died for none of its readers, and what they track there is lost as at its death.
func TestAnOwnerThatIsClosedIsNotDead(t *testing.T) {
	l := newSideLab(t)
	p, d, _ := l.met()
	if err := p.core.Close(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	l.until("its request is lost", func() bool { return len(d.take(record.EvLeaseGone)) == 1 && d.stat("side_owners_withdrawn") == 1 }, d)
	d.wantSaid(t, log.EngineWithdrawn, "P", "")
	if said := d.said(t, log.EngineDead); len(said) != 0 || d.stat("side_owners_dead") != 0 {
		t.Errorf("dead: %+v, %d", said, d.stat("side_owners_dead"))
	}
	d.wantQuiet(t)
}

// wantQuiet checks that no warning has gone before the word that an engine goes on purpose.
func (n *node) wantQuiet(t *testing.T) {
	t.Helper()
	for _, k := range []log.Kind{log.EngineDown, log.LoadFailed, log.HandshakeFailing} {
		if said := n.said(t, k); len(said) != 0 {
			t.Errorf("of who goes on purpose is said %+v", said)
		}
	}
}

// A handshake that fails is of trouble that the wire of an engine will tell better, and sooner than it lasts. Of an engine that was never met
// it is all that is known.
func TestAFailedHandshakeWaitsForTheWordOfTheWire(t *testing.T) {
	l := newSideLab(t)
	_, d, engine := l.met()
	d.core.side.mu.Lock()
	met := d.core.side.peers[engine]
	d.core.side.mu.Unlock()
	fails := func(p *sidePeer, since time.Duration) int {
		n := len(d.said(t, log.HandshakeFailing))
		d.core.side.take(p, handshake.Result{Engine: p.engine, Err: errors.New("hung up"), Class: handshake.HungUp, Failures: 1, Failing: time.Now().Add(-since)})
		return len(d.said(t, log.HandshakeFailing)) - n
	}
	if n := fails(met, -time.Hour); n != 0 { // it has not lasted, however long this process is held up
		t.Errorf("its first failure is said %d times", n)
	}
	if n := fails(met, d.core.cfg.WireGrace+wordSlack); n != 1 {
		t.Errorf("what has lasted for longer is said %d times", n)
	}
	if n := fails(&sidePeer{engine: 1 << 40, id: "stranger"}, 0); n != 1 {
		t.Errorf("of an engine that was never met it is said %d times", n)
	}
}

// What breaks first when an owner goes is the connection: a read that it meets is refused, and its agent does not load again.
func TestAnOwnerThatGoesOnPurposeWarnsNobody(t *testing.T) {
	for _, tc := range []struct {
		name string
		how  func(p *node) error
	}{
		{"it unregisters its memory", func(p *node) error { return p.core.Unregister() }},
		{"it is closed", func(p *node) error { return p.core.Close(5 * time.Second) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newSideLab(t)
			p, d, engine := l.met()
			_, track := l.handOver(p, d, engine, "s", 2)
			if err := tc.how(p); err != nil {
				t.Fatal(err)
			}
			l.read(track, blocks(8, 4), blocks(0, 4))
			l.until("its connection has broken", func() bool { return len(d.take(record.EvEngineDown)) == 1 }, d)
			l.until("it is known to have withdrawn", func() bool { return len(d.said(t, log.EngineWithdrawn)) == 1 }, d)
			d.wantQuiet(t)
			if n, dead := d.stat("beat_engines_withdrawn"), d.stat("beat_engines_dead"); n != 1 || dead != 0 {
				t.Errorf("%d withdrawn, %d dead", n, dead)
			}
		})
	}
}

// An owner that has drained holds nothing, so how it ends is no news: with kvl_close or without. One that still holds something dies.
func TestAnOwnerThatHasDrainedDoesNotDie(t *testing.T) {
	for _, tc := range []struct {
		name  string
		holds bool
		stat  string
		kind  log.Kind
	}{
		{"all is read", false, "side_owners_withdrawn", log.EngineWithdrawn},
		{"a lease is left", true, "side_owners_dead", log.EngineDead},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newSideLab(t)
			p, d := l.node("P", `{}`), l.node("D", `{}`)
			engine := l.name(d, p)
			l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected && p.stat("side_readers_wires") == 1 }, p, d)
			if tc.holds {
				l.handOver(p, d, engine, "r", 1)
				l.until("it is held", func() bool { return p.core.Held() == 1 }, p, d)
			}
			err := p.core.Drain(0)
			if tc.holds != errors.Is(err, ErrTimeout) || !tc.holds && err != nil {
				t.Fatalf("drain = %v", err)
			}
			l.until("its reader has heard that it leaves", func() bool { return d.stat("side_owners_left") == 1 }, d)
			stop(p)
			l.until("its end is told", func() bool { return d.stat(tc.stat) == 1 && len(d.said(t, tc.kind)) == 1 }, d)
			if n := d.stat("side_owners_withdrawn") + d.stat("side_owners_dead"); n != 1 {
				t.Errorf("it has ended %d times", n)
			}
		})
	}
}
