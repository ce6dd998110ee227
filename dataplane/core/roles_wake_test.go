package core

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// wakeRegions make a map that no step tells as a whole.
const wakeRegions = 1200

// manyRegions gives the ranks regions with long names in place of what they have.
func (m *team) manyRegions(n int) {
	for _, r := range m.ranks {
		kv, err := pages(n * 64)
		if err != nil {
			m.f.t.Fatal(err)
		}
		r.kv, r.regions = kv, nil
		for i := range n {
			r.regions = append(r.regions, Region{
				Addr: record.Addr(kv[64*i:]), Bytes: 64, BlockLen: 64, BlockStride: 64, Blocks: 1, Group: -1, Name: fmt.Sprint(strings.Repeat("layer", 20), i),
			})
		}
	}
}

func TestMapsThatTakeManyStepsBeginNoOtherEra(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		t.Run(carrier, func(t *testing.T) {
			f := newFleet(t, carrier)
			p := f.open("P", 2, 1)
			p.manyRegions(wakeRegions)
			f.until("it has an era", func() bool { return p.ranks[0].core.ranked.told.Era != 0 && p.ranks[1].core.ranked.told.Era != 0 })
			p.register(0)
			f.turns(100)
			p.register(1)
			f.until("P has all its maps", p.whole)
			f.turns(50)
			if !p.whole() || p.core.hosted.eras != 1 {
				t.Errorf("whole: %v, %d eras", p.whole(), p.core.hosted.eras)
			}
			for r := range p.ranks {
				if err := p.ranks[r].core.Unregister(); err != nil {
					t.Fatal(err)
				}
			}
			f.until("the next era begins", func() bool { return p.core.hosted.eras == 2 })
		})
	}
}

// A loop that sleeps on kvl_wait_fd is the only one that steps: what a call of another thread leaves for a step wakes it.
func TestALoopThatSleepsIsWokenByCallsThatLeaveItWork(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	f.wake = func() int { // as the C library makes it
		fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	readable := func(c *Core) bool {
		fds := []unix.PollFd{{Fd: c.mem.Control.WakeFd, Events: unix.POLLIN}}
		unix.Poll(fds, 0)
		return fds[0].Revents != 0
	}
	// sleepers steps whoever is woken, as a loop does, until nobody is.
	sleepers := func(m *team) {
		t.Helper()
		for range 1000 {
			woken := false
			for _, c := range append([]*Core{m.core}, m.ranks[0].core, m.ranks[1].core) {
				if !readable(c) && atomic.LoadUint32(&c.mem.Control.Held) == 0 { // held: idle_tick
					continue
				}
				woken = true
				empty(int(c.mem.Control.WakeFd))
				f.stepOne(c)
			}
			if !woken {
				return
			}
		}
		for n, c := range []*Core{m.core, m.ranks[0].core, m.ranks[1].core} {
			t.Logf("%d: readable %v, held %d, alive %d", n, readable(c), c.mem.Control.Held, c.half().Alive())
		}
		t.Fatalf("%s: they wake each other for ever", m.id)
	}
	p, d := f.open("P", 2, 1), f.open("D", 2, 1)
	p.manyRegions(wakeRegions)
	d.manyRegions(wakeRegions)
	f.turns(20)
	for _, m := range []*team{p, d} {
		sleepers(m)
		m.register(0)
		m.register(1)
		sleepers(m)
		if !m.whole() {
			t.Fatalf("%s: its ranks have registered, and their loops sleep", m.id)
		}
	}
	e, err := d.core.AddEngine(heartbeat.EngineDesc{ID: "P", TP: 2, PP: 1})
	if err != nil {
		t.Fatal(err)
	}
	sleepers(d)
	for r := range uint32(2) {
		m, err := p.core.OwnHandshake(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.core.Handshake(e, r, m); err != nil {
			t.Fatal(err)
		}
	}
	if !readable(d.core) {
		t.Error("the maps of an engine are handed in, and the host's loop sleeps")
	}
	sleepers(d)
	for n, r := range d.ranks {
		if c := r.core.ranked.link.Counters; c.MapsReceived != 1 {
			t.Errorf("D's rank %d has %d maps", n, c.MapsReceived)
		}
	}
	for r := range p.ranks {
		if err := p.ranks[r].core.Unregister(); err != nil {
			t.Fatal(err)
		}
	}
	sleepers(p)
	if _, err := p.core.OwnHandshake(0); err == nil {
		t.Error("its ranks have unregistered, and their loops sleep")
	}
}

func TestARankWhoseMapNoPeerWouldTakeIsToldWhenItRegisters(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	for _, m := range []*team{f.open("P", 2, 1), f.open("O", 1, 1)} {
		m.manyRegions(4000)
		for i := range m.ranks[0].regions {
			m.ranks[0].regions[i].Name = strings.Repeat("layer", 60) + m.ranks[0].regions[i].Name
		}
		if err := m.ranks[0].core.Register(m.ranks[0].regions); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "shorter names") {
			t.Errorf("%s: %v", m.id, err)
		}
		m.manyRegions(4)
		m.register(0) // nothing is left of the first
	}
}

// One rank has come and gone before the other registers, which holds a lease already: the next era begins there, too.
func TestARankThatHoldsLeasesBeforeItRegistersEntersTheNextEra(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p := f.open("P", 2, 1)
	f.until("it has an era", func() bool { return p.ranks[0].core.ranked.told.Era != 0 && p.ranks[1].core.ranked.told.Era != 0 })
	p.register(0)
	h, _ := p.grant("a", 1, []uint32{1})
	f.until("both hold it", func() bool { return p.ranks[0].core.leases.Held()+p.ranks[1].core.leases.Held() == 2 })
	if err := p.ranks[0].core.Unregister(); err != nil {
		t.Fatal(err)
	}
	f.until("the next era begins", func() bool { return p.core.hosted.eras == 2 && p.ranks[1].core.ranked.told.Era == 2 })
	p.register(0)
	p.register(1)
	f.until("P has all its maps", p.whole)
	f.until("the lease is over", func() bool { return p.of(record.EvFreed, h) == 1 })
	if ev := p.event(record.EvFreed, h); ev.Status != record.FreedClosed {
		t.Errorf("freed %+v", ev)
	}
}

// What was granted for memory that has gone may reach its rank after the next memory has come: it must not hold a lease there. No
// matter whether the host knew of the memory, or had told an era at all, and what the other rank does.
func TestAGrantForMemoryThatHasGoneIsEndedThoughNobodyKnewOfIt(t *testing.T) {
	for _, told := range []bool{false, true} {
		for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
			t.Run(fmt.Sprint(carrier, ", the era was told ", told), func(t *testing.T) {
				f := newFleet(t, carrier)
				p := f.open("P", 2, 1)
				if told {
					f.until("it has an era", func() bool { return p.ranks[0].core.ranked.told.Era != 0 && p.ranks[1].core.ranked.told.Era != 0 })
				}
				p.register(1)
				p.register(0)
				lease, _ := p.grant("r", 7, blocks(3, 4))
				before := p.epoch()
				p.unregister(0)
				p.register(0)
				f.until("P is up", p.whole)
				if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedClosed {
					t.Errorf("freed: %+v, want closed", freed)
				}
				if p.epoch() == before {
					t.Error("parameters from before the memory went are still good")
				}
				d := f.team("D", 2, 1)
				f.exchange(p, d, f.connect(d, p), 100)
			})
		}
	}
}
