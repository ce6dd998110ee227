package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// kill ends an engine as the end of its processes would: agents and streams fall silent, wires and listener fall without a word.
func (m *team) kill() {
	m.stopped = true
	for n, r := range m.ranks {
		if r.core.pump != nil {
			r.core.pump.halt()
		}
		if r.core != m.core {
			m.die(n)
		} else {
			m.f.hub.Stop(r.core.tr.Agent())
		}
	}
	if m.core.pump != nil {
		m.core.pump.halt()
	}
	m.core.side.die()
	if m.core.hosted != nil {
		m.core.hosted.streams.Close()
	}
}

func TestTheDeathOfAReaderFreesWhatItHeldOnEveryRank(t *testing.T) {
	for _, tc := range []struct{ p, d int }{{2, 1}, {1, 2}, {2, 2}} {
		for _, leaves := range []bool{false, true} {
			t.Run(fmt.Sprintf("TP %d reads from TP %d, leaves %v", tc.d, tc.p, leaves), func(t *testing.T) {
				f := newFleet(t, stream.KindShm).realTime()
				p, d := f.team("P", tc.p, 1), f.team("D", tc.d, 1)
				e := f.connect(d, p)
				lease, remote := p.grant("r", 7, blocks(3, 4))
				d.track(e, remote, 1)
				f.until("every rank of P was named it", func() bool {
					return !slices.ContainsFunc(p.cores(), func(c *Core) bool { return c.stat("beats_applied") == 0 })
				})
				f.until("the wire is up", func() bool { return p.core.stat("side_readers_wires") == 1 })
				f.turns(100)
				if leaves { // what it tracks is released by its drain; the fall of its wire ends nothing
					if err := d.core.Drain(0); err != nil && d.core.hosted == nil {
						t.Logf("drain: %v", err)
					}
					f.until("released", func() bool { return p.of(record.EvFreed, lease) == 1 })
					if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedReleased {
						t.Errorf("freed: %+v", freed)
					}
					d.kill()
					f.until("the wire fell", func() bool { return p.core.stat("side_readers_wires") == 0 })
					time.Sleep(p.core.cfg.WireGrace)
					f.turns(200)
					if n := p.core.stat("side_readers_dead"); n != 0 {
						t.Errorf("%d readers died, one has left", n)
					}
					return
				}
				died := time.Now()
				d.kill()
				f.until("freed", func() bool { return p.of(record.EvFreed, lease) == 1 })
				t.Logf("freed after %v", time.Since(died))
				freed := p.event(record.EvFreed, lease)
				if freed.Status == record.FreedExpired || freed.Status == record.FreedLost {
					t.Errorf("freed: %+v", freed)
				}
				if n := p.core.stat("side_readers_dead"); n != 1 {
					t.Errorf("%d readers died", n)
				}
			})
		}
	}
}

func TestTheDeathOfAnOwnerOfTwoRanksIsTold(t *testing.T) {
	for _, tp := range []int{1, 2} {
		t.Run(fmt.Sprint("reader TP ", tp), func(t *testing.T) {
			f := newFleet(t, stream.KindShm).realTime()
			p, d := f.team("P", 2, 1), f.team("D", tp, 1)
			e := f.connect(d, p)
			_, remote := p.grant("r", 7, blocks(3, 4))
			track := d.track(e, remote, 1)
			f.turns(200)
			f.until("the wire is up", func() bool { return d.core.stat("side_owners_ups") > 0 })
			died := time.Now()
			p.kill()
			d.event(record.EvLeaseGone, track)
			t.Logf("told after %v", time.Since(died))
			d.read(track, blocks(20, 4), blocks(3, 4))
			if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
				t.Errorf("failed: %+v", failed)
			}
		})
	}
}

// The host has the wire, and its ranks say what is lost: not that P has died.
func TestRanksAreToldWhyAnEngineIsNoMore(t *testing.T) {
	for _, tc := range []struct {
		name string
		how  func(p *team)
		kind log.Kind
		text string
		page string // its state
	}{
		{"it sleeps", func(p *team) { p.unregister(0); p.unregister(1) }, log.EngineWithdrawn, "has given its memory up", stateWithdrawn},
		{"it is killed", (*team).kill, log.EngineDead, "is gone", "broken"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFleet(t, stream.KindShm).realTime()
			p, d := f.team("P", 2, 1), f.team("D", 2, 1)
			e := f.connect(d, p)
			_, remote := p.grant("r", 7, blocks(3, 4))
			track := d.track(e, remote, 1)
			f.turns(200)
			f.until("the wire is up", func() bool { return d.core.stat("side_owners_ups") > 0 })
			tc.how(p)
			d.event(record.EvLeaseGone, track)
			if got := states(shown(t, d.core))["P"]; got != tc.page {
				t.Errorf("on the host's page it is %q, want %q", got, tc.page)
			}
			for i, r := range d.ranks {
				n := node{core: r.core}
				n.wantSaid(t, tc.kind, "P", "")
				if got := states(shown(t, r.core))["P"]; got != tc.page {
					t.Errorf("on the page of rank %d it is %q, want %q", i, got, tc.page)
				}
				if lost := n.said(t, log.RequestLost); len(lost) != 1 || !strings.Contains(lost[0].What, tc.text) {
					t.Errorf("rank %d says of the request %+v", i, lost)
				}
			}
		})
	}
}

func TestEnginesAreNamedRemovedAndNamedAgainAtAnyTime(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p := f.team("P", 2, 1)
			c, h := f.context("host", "D", 2, 1, 0)
			d := &team{f: f, id: "D", tp: 2, pp: 1, core: c, host: h}
			f.teams = append(f.teams, d)
			t.Cleanup(func() { d.close(0) })
			e := f.name(d, p) // nobody is attached
			lease, remote := p.grant("early", 7, blocks(3, 4))
			track := d.track(e, remote, 1)
			d.read(track, blocks(20, 4), blocks(3, 4))
			f.turns(20)
			for r := range 2 {
				c, h := f.context("rank", "D", 2, 1, r)
				d.ranks = append(d.ranks, d.newRank(r, c, h))
				f.turns(3)
				d.register(r)
			}
			d.event(record.EvReadDone, track)
			if bad := d.wrong(7, blocks(20, 4)); bad != 0 {
				t.Errorf("%d bytes are wrong", bad)
			}
			p.event(record.EvFreed, lease)

			for n := range uint64(40) { // the maps of the one before are anywhere on their way
				if err := d.core.RemoveEngine(e); err != nil {
					t.Fatal(err)
				}
				f.turns(int(n % 7))
				again := f.name(d, p)
				if again == e {
					t.Fatal("a handle was used twice")
				}
				e = again
				f.turns(int(n % 5))
			}
			f.until("connected", func() bool { return d.connected(e) })
			f.exchange(p, d, e, 9)
			_, remote = p.grant("removed", 10, blocks(3, 4))
			track = d.track(e, remote, 2)
			f.turns(20)
			if err := d.core.RemoveEngine(e); err != nil {
				t.Fatal(err)
			}
			d.event(record.EvLeaseGone, track)
			if _, err := d.host.Track(e, remote, nil, 3, f.now()); err != nil {
				t.Fatal(err)
			}
			f.until("told", func() bool { return d.core.stat("group_tracked") <= 2 && kinds(d.evs, record.EvLeaseGone) >= 2 })
		})
	}
}

// A second turn: D grants its blocks for a fixed time, P reads them, each with two ranks; the end is in D's clock.
func TestASecondTurnIsReadWithinItsFixedLife(t *testing.T) {
	f := newFleet(t, stream.KindShm).realTime()
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	e := f.connect(p, d)
	fixed := func(id string, request uint64, ttl time.Duration, there []uint32) (record.Handle, *host.Remote) {
		d.fill(request, there)
		lease, err := d.host.Grant(host.Grant{ID: []byte(id), Blocks: uint32(len(there)), User: request, Fixed: true, TTL: ttl}, f.now())
		if err != nil {
			t.Fatal(err)
		}
		r := d.remote(id, lease)
		r.ExpiresNs = uint64(clock.Instant(monotonic()).Add(ttl))
		return lease, r
	}
	there, here := blocks(3, 4), blocks(20, 4)
	_, remote := fixed("turn", 7, time.Minute, there)
	track := p.track(e, remote, 1)
	p.read(track, here, there)
	p.event(record.EvReadDone, track)
	if bad := p.wrong(7, here); bad != 0 {
		t.Errorf("%d bytes are wrong", bad)
	}
	lease, remote := fixed("short", 8, 200*time.Millisecond, blocks(10, 4))
	late := p.track(e, remote, 2)
	f.until("D has taken it back", func() bool { return d.of(record.EvFreed, lease) == 1 })
	p.event(record.EvLeaseGone, late)
	p.read(late, here, blocks(10, 4))
	if failed := p.event(record.EvReadFailed, late); failed.Status == record.ReadOK {
		t.Errorf("failed: %+v", failed)
	}
	if p.ranks[0].core.stat("beat_beats")+p.ranks[1].core.stat("beat_beats") != 0 {
		t.Error("a fixed lease was beaten for")
	}
}
