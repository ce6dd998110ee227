package core

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// exchange grants, reads and frees one request, whole.
func (f *fleet) exchange(p, d *team, e, request uint64) {
	f.t.Helper()
	there, here := blocks(3, 4), blocks(20, 4)
	lease, remote := p.grant(fmt.Sprint("x-", request), request, there)
	track := d.track(e, remote, request)
	d.read(track, here, there)
	d.event(record.EvReadDone, track)
	if bad := d.wrong(request, here); bad != 0 {
		f.t.Errorf("request %d: %d bytes are wrong", request, bad)
	}
	if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedCompleted {
		f.t.Errorf("request %d: freed: %+v", request, freed)
	}
}

func (m *team) epoch() uint64 {
	epoch, _, ok := m.core.mem.Control.ReadEra()
	if !ok {
		m.f.t.Fatal("between two eras")
	}
	return epoch
}

// unregister gives a rank's memory back.
func (m *team) unregister(rank int) {
	m.f.t.Helper()
	if err := m.ranks[rank].core.Unregister(); err != nil {
		m.f.t.Fatal(err)
	}
}

func TestAnEngineOfTwoRanksSleepsAndWakesAsAnother(t *testing.T) {
	for _, carrier := range []string{stream.KindProcess, stream.KindShm, stream.KindDelta} {
		for _, side := range []bool{false, true} {
			t.Run(fmt.Sprint(carrier, " side channel ", side), func(t *testing.T) {
				f := newFleet(t, carrier)
				f.side = side
				p, d := f.team("P", 2, 1), f.team("D", 2, 1)
				e := f.connect(d, p)
				for round := range uint64(10) {
					f.exchange(p, d, e, 100+round)
					before := p.epoch()
					there, here := blocks(8, 4), blocks(24, 4)
					lease, old := p.grant(fmt.Sprint("held-", round), 200+round, there)
					track := d.track(e, old, 1)
					f.until("both ranks hold it", func() bool { return p.ranks[0].core.Held() == 1 && p.ranks[1].core.Held() == 1 })
					p.unregister(int(round) % 2)
					f.until("the maps are withdrawn with the first", func() bool {
						_, first := p.core.OwnHandshake(0)
						_, second := p.core.OwnHandshake(1)
						return first != nil && second != nil
					})
					f.turns(3)
					if n := p.of(record.EvFreed, lease); n != 0 {
						t.Fatal("the end was told before the other rank had closed its row")
					}
					p.unregister(1 - int(round)%2)
					if freed := p.event(record.EvFreed, lease); freed.Status != record.FreedClosed || freed.Reasons != eachRank(2, record.FreedClosed) {
						t.Errorf("freed: %+v", freed)
					}
					f.until("another era", func() bool { return p.epoch() != before })
					for r := range p.ranks {
						clear(p.ranks[r].kv)
						p.register((r + int(round)/2) % 2)
					}
					f.until("the maps are there again", p.whole)
					if !side {
						f.offer(d, e, p)
					}
					d.read(track, here, there)
					if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
						t.Errorf("failed: %+v", failed)
					}
					f.until("D is connected to the new era", func() bool { return d.connected(e) })
					track = d.track(e, old, 2) // parameters of the era before: perhaps of one that D has not met yet, so it waits
					d.read(track, here, there)
					f.turns(20)
					if err := d.host.Untrack(track); err != nil {
						t.Fatal(err)
					}
					if failed := d.event(record.EvReadFailed, track); failed.Status == record.ReadOK {
						t.Errorf("failed: %+v", failed)
					}
				}
				f.exchange(p, d, e, 999)
			})
		}
	}
}

// A rank may have slept and woken before the other has had any memory, or before the host has heard of it at all.
func TestRanksThatComeAndGoOutOfStepMeetInOneEra(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(f *fleet, p *team)
	}{
		{"one registers again before the other has unregistered", func(f *fleet, p *team) {
			p.register(0)
			p.register(1)
			f.until("all maps", p.whole)
			p.unregister(0)
			p.register(0)
			f.turns(20)
			if p.whole() {
				f.t.Error("maps of two eras at once")
			}
			p.unregister(1)
			p.register(1)
		}},
		{"one sleeps before the other has registered", func(f *fleet, p *team) {
			p.register(0)
			f.turns(20)
			p.unregister(0)
			f.turns(20)
			p.register(0)
			p.register(1)
		}},
		{"one sleeps while the other registers", func(f *fleet, p *team) {
			p.register(0)
			f.turns(20)
			p.unregister(0)
			f.stepOne(p.ranks[0].core)
			p.register(1)
			f.stepOne(p.ranks[1].core)
			f.stepOne(p.core)
			f.turns(20)
			p.register(0)
		}},
		{"the host has not heard of a registration that is over", func(f *fleet, p *team) {
			f.turns(20)
			p.register(0)
			p.unregister(0)
			p.register(0)
			p.register(1)
		}},
		{"the host hears of a registration together with its end", func(f *fleet, p *team) {
			f.turns(20)
			p.register(0)
			f.stepOne(p.ranks[0].core)
			p.unregister(0)
			f.stepOne(p.ranks[0].core)
			p.register(0)
			p.register(1)
		}},
		{"nobody is attached when they come and go", func(f *fleet, p *team) {
			for r := range 2 {
				p.register(r)
				p.unregister(r)
				p.register(r)
			}
		}},
		{"one wakes after it was told the new era", func(f *fleet, p *team) {
			p.register(0)
			p.register(1)
			f.until("all maps", p.whole)
			p.unregister(0)
			p.unregister(1)
			f.turns(20)
			p.register(1)
			f.turns(20)
			p.register(0)
		}},
		{"a grant is said while they sleep", func(f *fleet, p *team) {
			p.register(0)
			p.register(1)
			f.until("all maps", p.whole)
			p.unregister(0)
			p.unregister(1)
			f.turns(20)
			lease, _ := p.grant("asleep", 5, blocks(0, 2))
			f.turns(20)
			p.register(0)
			p.register(1)
			p.event(record.EvFreed, lease)
		}},
	} {
		for _, carrier := range []string{stream.KindProcess, stream.KindDelta} {
			t.Run(carrier+": "+tc.name, func(t *testing.T) {
				f := newFleet(t, carrier)
				d := f.team("D", 1, 1)
				p := f.open("P", 2, 1)
				tc.do(f, p)
				f.until("all maps are there", p.whole)
				e := f.connect(d, p)
				f.exchange(p, d, e, 7)
			})
		}
	}
}

func TestARankThatReadsCannotGiveItsMemoryBack(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	p, d := f.team("P", 2, 1), f.team("D", 2, 1)
	e := f.connect(d, p)
	there, here := blocks(3, 4), blocks(20, 4)
	lease, remote := p.grant("r", 7, there)
	track := d.track(e, remote, 1)
	f.turns(20)
	knobs := d.ranks[1].core.tr.(interface{ HoldReads(bool) })
	knobs.HoldReads(true)
	d.read(track, here, there)
	f.until("the read is open", func() bool { return d.ranks[1].core.stat("reads_open") > 0 })
	if err := d.ranks[1].core.Unregister(); !errors.Is(err, ErrBusy) {
		t.Fatalf("unregister with a read in flight: %v", err)
	}
	knobs.HoldReads(false)
	d.event(record.EvReadDone, track)
	if bad := d.wrong(7, here); bad != 0 {
		t.Errorf("%d bytes are wrong", bad)
	}
	p.event(record.EvFreed, lease)
	d.unregister(1)
	d.unregister(0)
	late, lateRemote := p.grant("late", 8, there)
	track = d.track(e, lateRemote, 2) // nobody is there to read it: it waits
	d.read(track, here, there)
	f.turns(20)
	d.register(0)
	f.turns(20)
	d.register(1)
	d.event(record.EvReadDone, track)
	if bad := d.wrong(8, here); bad != 0 {
		t.Errorf("%d bytes are wrong", bad)
	}
	p.event(record.EvFreed, late)
	f.exchange(p, d, e, 9)
}

// stat reads a counter of a context.
func (c *Core) stat(name string) uint64 { return (&node{core: c}).stat(name) }
