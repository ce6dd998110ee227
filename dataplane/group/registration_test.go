package group_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

func TestARankRegistersUnregistersAndRegistersAgain(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindProcess, nil)
	p.ready()
	if p.group.EraOver() {
		t.Fatal("the era is over while all are registered")
	}
	for _, r := range p.ranks {
		r.link.SetMap(nil)
	}
	l.until("both down", func() bool { return p.count(record.EvRankDown) == 2 })
	for _, ev := range p.take(record.EvRankDown) {
		if ev.Status != 0 {
			t.Errorf("down %+v: unregistered is status 0", ev)
		}
	}
	if !p.group.EraOver() {
		t.Fatal("the era is not over")
	}
	if m := p.group.OwnMap(0); m != nil {
		t.Errorf("a map of %d bytes of a rank that has unregistered", len(m))
	}
	next := record.Era{Era: 2, Epoch: 77, Secret: [2]uint64{1, 2}}
	p.group.SetEra(next)
	if p.group.EraOver() {
		t.Error("the new era is over before anybody has registered in it")
	}
	l.run(50*time.Millisecond, 10*time.Millisecond)
	long := make([]byte, 12000) // several pieces
	for i := range long {
		long[i] = byte(i * 7)
	}
	for _, r := range p.ranks {
		if era, ok := r.link.Era(); !ok || era != next {
			t.Fatalf("rank %d has era %+v", r.n, era)
		}
		r.link.SetMap(long)
	}
	l.until("both up", func() bool { return p.count(record.EvRankUp) == 2 })
	if m := p.group.OwnMap(1); string(m) != string(long) {
		t.Errorf("map of %d bytes, want the %d that rank 1 handed in", len(m), len(long))
	}
}

// A full state has the rank tell its map again: that is no new registration.
func TestAFullStateIsNoSignOfARankThatWentAway(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindDelta, nil)
	for _, r := range p.ranks {
		r.link.SetMap(make([]byte, 16000))
	}
	p.ready()
	for lose := range 6 {
		lost := 0
		p.ranks[1].fault = func(fromHost bool, _ int, msg []byte) [][]byte {
			if fromHost == (lose%2 == 0) && lost < 2 {
				lost++
				return nil
			}
			return [][]byte{msg}
		}
		h, _ := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 1})
		must(t, p.host.Cancel(h))
		l.until("freed", func() bool { return p.count(record.EvFreed) > lose })
	}
	if p.group.Rank(1).FullStates < 3 {
		t.Fatalf("%d full states", p.group.Rank(1).FullStates)
	}
	if up, down := p.count(record.EvRankUp), p.count(record.EvRankDown); up+down != 0 {
		t.Errorf("%d times up and %d times down", up, down)
	}
}

func TestADrainIsOverWhenEveryRankHasToldItsOwners(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	d.group.Drain(time.Minute, l.now)
	if d.group.DrainLeft() == 0 {
		t.Fatal("nothing is left before the ranks have heard of it")
	}
	l.until("drained", func() bool { return d.group.DrainLeft() == 0 })
	l.until("released", func() bool { return p.count(record.EvFreed) == 1 })
	if freed := p.take(record.EvFreed); freed[0].Status != record.FreedReleased {
		t.Errorf("freed %+v", freed)
	}
	if gone := d.take(record.EvLeaseGone); len(gone) != 1 || gone[0].Handle != uint64(track) {
		t.Errorf("gone %+v", gone)
	}
}

func TestAnEraIsToldBeforeTheGrantsOfIt(t *testing.T) {
	mem := memory(t, 1, 1<<12)
	out, err := dataplane.NewEvents(mem.Events, nil)
	must(t, err)
	w := &wireEnd{room: 1 << 16, gap: true, lose: func() bool { return false }}
	g, err := group.New(group.Config{Self: topology.Shape{TP: 1, PP: 1}, Duration: duration, Engines: 4, MapMax: 64}, mem, []stream.Carrier{w}, out)
	must(t, err)
	h, err := host.New(mem, nil)
	must(t, err)
	now := clock.Instant(time.Hour)
	for era := range uint64(3) {
		mem.Control.BeginEra(era+1, [2]uint64{era, 2})
		g.SetEra(record.Era{Era: era + 1, Epoch: era + 1, Secret: [2]uint64{era, 2}})
		_, err := h.Grant(host.Grant{ID: []byte{byte(era)}, Blocks: 1}, now)
		must(t, err)
		w.down = nil
		now = now.Add(time.Millisecond)
		g.Step(now)
		var tags []uint32
		for _, r := range w.down {
			if r.tag == record.TagEra || r.tag == record.TagGrant {
				tags = append(tags, r.tag)
			}
		}
		if want := []uint32{record.TagEra, record.TagGrant}; !slices.Equal(tags, want) {
			t.Errorf("era %d: told %v, want %v", era+1, tags, want)
		}
	}
}
