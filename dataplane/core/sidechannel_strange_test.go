package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Leases of these tests last 30 s, and nothing tells of another boot but the parameters: there is no death wire.

func TestAnOwnerThatIsAnotherWhileNothingIsTrackedThereIsAskedAnew(t *testing.T) {
	const config = `{"death_wire": false}`
	for _, tc := range []struct {
		name    string
		another func(l *sideLab, p *node) *node
	}{
		{"it sleeps and wakes", func(l *sideLab, p *node) *node {
			if err := p.core.Unregister(); err != nil {
				l.t.Fatal(err)
			}
			l.awake(p)
			return p
		}},
		{"it starts again at the same place", func(l *sideLab, p *node) *node {
			port := p.port()
			if err := p.core.Close(0); err != nil {
				l.t.Fatal(err)
			}
			return l.node("P", config, port)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			noLeaks(t)
			l := newSideLab(t)
			p, d := l.node("P", config), l.node("D", config)
			engine := l.name(d, p)
			l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
			for round := range uint64(3) {
				_, track := l.handOver(p, d, engine, fmt.Sprint("r-", round), round)
				l.read(track, blocks(8, 4), blocks(0, 4))
				l.until("it is read", func() bool { return len(d.take(record.EvReadDone)) == 1 }, p, d)
				if n := d.wrong(round, blocks(8, 4)); n != 0 {
					t.Errorf("round %d: %d words are wrong", round, n)
				}
				l.until("nothing is left", func() bool { return p.core.Held() == 0 && d.view(engine).Tracked == 0 }, p, d)
				l.until("it has been asked once more after its last maps", func() bool { return d.calm(round + 1) }, p, d)
				if v := d.view(engine); v.Strange {
					t.Errorf("round %d: %+v", round, v)
				}
				p = tc.another(l, p)
			}
			if n := d.stat("side_client_doubts"); n < 2 {
				t.Errorf("P was doubted %d times", n)
			}
		})
	}
}

// calm reports that the one owner of a reader is asked no more for now: once more after each of its maps, which count as a break.
func (n *node) calm(maps uint64) bool {
	return n.stat("side_retries") == maps && n.stat("side_client_fetched") == 1+maps+n.stat("side_client_doubts")
}

func TestAnOwnerOfTwoRanksThatWakesWhileNothingIsTrackedThereIsAskedAnew(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier).realTime()
			f.config = teamConfig[:len(teamConfig)-1] + `,"death_wire":false}`
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			for round := range uint64(3) {
				f.exchange(p, d, e, 100+round)
				f.until("nothing is tracked", func() bool { return !d.anyTracked(e) })
				before := p.epoch()
				p.unregister(0)
				p.unregister(1)
				f.until("another era", func() bool { return p.epoch() != before })
				p.register(0)
				p.register(1)
				f.until("the maps are there again", p.whole)
			}
			f.exchange(p, d, e, 999)
			if n := d.core.stat("side_client_doubts"); n == 0 {
				t.Error("P was never doubted")
			}
		})
	}
}

// anyTracked reports that requests are tracked at an engine.
func (m *team) anyTracked(e uint64) bool {
	m.core.mu.Lock()
	defer m.core.mu.Unlock()
	return m.core.hosted.group.View(e).Tracked > 0
}

// strangers is how many requests of boots that never were a reader gets.
const strangers = 1000

// doubtsWithin is how many questions the waits allow within a time, the first at once and then one a second at most.
func doubtsWithin(took time.Duration) uint64 { return 2 + uint64(took/time.Second) }

// A router can make up epochs. They cost what the waits between questions allow, and the engine that they are tracked at nothing.
func TestInventedEpochsCostAFewQuestionsAndNoConnection(t *testing.T) {
	noLeaks(t)
	l := newSideLab(t)
	p, d := l.node("P", `{"death_wire": false}`), l.node("D", `{"death_wire": false}`)
	engine := l.name(d, p)
	l.until("P is connected", func() bool { return d.view(engine).State == heartbeat.Connected }, p, d)
	l.until("it has been asked once more after its maps", func() bool { return d.calm(1) }, p, d)
	l.p, l.d, l.peer = p, d, engine
	retries, breaks, began := d.stat("side_retries"), d.view(engine).Breaks, time.Now()
	serve := func(user uint64) {
		_, track := l.handOver(p, d, engine, fmt.Sprint("r-", user), user)
		l.read(track, blocks(8, 4), blocks(0, 4))
		l.until("it is read", func() bool { return len(d.take(record.EvReadDone)) == 1 }, p, d)
		if n := d.wrong(user, blocks(8, 4)); n != 0 {
			t.Errorf("request %d: %d words are wrong", user, n)
		}
		l.until("its lease ends", func() bool { return len(p.take(record.EvFreed)) == 1 }, p, d)
	}
	var last []record.Handle
	for n := range uint64(strangers) {
		r := host.Remote{ID: []byte("never"), Native: true, Epoch: 0xbad00000 + n, Key: n, Slot: uint32(n % 16), Generation: 1}
		last = append(last, l.track(&r, "d-never", n))
		l.turn(p, d)
		if n%100 == 99 {
			if v := d.view(engine); !v.Strange {
				t.Errorf("after %d: %+v", n, v)
			}
			serve(5000 + n)
			for _, h := range last {
				if err := d.host.Untrack(h); err != nil {
					t.Fatal(err)
				}
			}
			last = last[:0]
			l.turn(p, d)
		}
	}
	l.until("its maps were fetched again, and were the same", func() bool { return d.stat("beat_handshakes_same") > 0 }, p, d)
	took := time.Since(began)
	if n, most := d.stat("side_client_doubts"), doubtsWithin(took); n == 0 || n > most {
		t.Errorf("%d questions within %v, want 1 to %d", n, took, most)
	}
	if v := d.view(engine); v.Breaks != breaks || v.State != heartbeat.Connected || d.stat("side_retries") != retries {
		t.Errorf("%+v, %d retries; there were %d breaks and %d retries", v, d.stat("side_retries"), breaks, retries)
	}
	serve(9999)
}

func TestInventedEpochsCostAHostAFewQuestionsAndNoConnection(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier).realTime()
			f.config = teamConfig[:len(teamConfig)-1] + `,"death_wire":false}`
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			f.exchange(p, d, e, 1)
			before, retries, began := d.core.stat("side_client_doubts"), d.core.stat("side_retries"), time.Now()
			var last []record.Handle
			for n := range uint64(strangers) {
				r := host.Remote{ID: []byte("never"), Native: true, Epoch: 0xbad00000 + n, Key: n, Slot: uint32(n % 16), Generation: 1}
				last = append(last, d.track(e, &r, n))
				if n%100 == 99 {
					f.exchange(p, d, e, 5000+n)
					for _, h := range last {
						if err := d.host.Untrack(h); err != nil {
							t.Fatal(err)
						}
					}
					last = last[:0]
					f.until("they are untracked", func() bool { return !d.anyTracked(e) })
				}
			}
			f.until("the ranks were told the same maps again", func() bool { return d.ranks[1].core.stat("beat_handshakes_same") > 0 })
			took := time.Since(began)
			if n, most := d.core.stat("side_client_doubts")-before, doubtsWithin(took); n == 0 || n > most {
				t.Errorf("%d questions within %v, want 1 to %d", n, took, most)
			}
			if n := d.core.stat("side_retries"); !d.connected(e) || n != retries {
				t.Errorf("connected: %v, %d retries, were %d", d.connected(e), n, retries)
			}
			f.exchange(p, d, e, 9999)
		})
	}
}
