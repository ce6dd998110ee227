package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestWhatPressureTakesOnOneRankIsTakenOnAll(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	for i := range 4 {
		p.grant(fmt.Sprint("r", i), uint64(i), uint32(i), 1)
	}
	l.run(100*time.Millisecond, 10*time.Millisecond)
	must(t, p.host.Pressure(2))
	l.until("two freed", func() bool { return p.count(record.EvFreed) >= 2 })
	l.run(time.Second, 50*time.Millisecond)
	freed := p.take(record.EvFreed)
	if len(freed) != 2 || p.group.Held() != 2 {
		t.Fatalf("freed %v, held %d", kinds(freed), p.group.Held())
	}
	for _, ev := range freed {
		if ev.Status != record.FreedRevoked || ev.Reasons != record.FreedRevoked|record.FreedRevoked<<4 {
			t.Errorf("freed %+v", ev)
		}
	}
}

func TestAnExpectationLapsesAtTheHostAloneAndAGrantThatCameFirstWins(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindProcess, func(c *group.Config) { c.ExpectMax = time.Second })
	p.ready()
	lapses, err := p.host.Expect([]byte("a"))
	must(t, err)
	wins, err := p.host.Expect([]byte("b"))
	must(t, err)
	l.run(900*time.Millisecond, 50*time.Millisecond)
	for _, r := range p.ranks {
		if n := r.plane.Leases.Expected(); n != 2 {
			t.Fatalf("rank %d expects %d", r.n, n)
		}
	}
	l.now = l.now.Add(200 * time.Millisecond) // both are due, and the grant of one is in the ring before the step
	_, _ = p.grantAs(host.Grant{ID: []byte("b"), Blocks: 1, Expected: wins})
	l.run(200*time.Millisecond, 50*time.Millisecond)
	lapsed := p.take(record.EvExpectLapsed)
	if len(lapsed) != 1 || lapsed[0].Handle != uint64(lapses) {
		t.Fatalf("lapsed %+v", lapsed)
	}
	for _, r := range p.ranks {
		if e, h := r.plane.Leases.Expected(), r.plane.Leases.Held(); e != 0 || h != 1 {
			t.Errorf("rank %d expects %d and holds %d", r.n, e, h)
		}
	}
	// Its slot is used again at once.
	again, _ := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 1})
	if again.Slot() != lapses.Slot() || again.Use() != lapses.Use()+1 {
		t.Errorf("the next grant has slot %d use %d", again.Slot(), again.Use())
	}
	must(t, p.host.Cancel(again))
	must(t, p.host.Cancel(wins))
	l.until("freed", func() bool { return p.count(record.EvFreed) == 2 })
}

func TestACloseEndsEveryLeaseOnceWhenTheLastRankHas(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	lease, _ := p.grant("a", 1, 0, 4)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	p.ranks[1].stopped = true
	p.group.CancelAll()
	p.group.CancelAll() // a close that is said twice
	l.run(time.Second, 10*time.Millisecond)
	if p.count(record.EvFreed) != 0 || p.group.Held() != 1 {
		t.Fatal("freed while rank 1 holds it (L11)")
	}
	p.ranks[1].stopped = false
	l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
	l.run(time.Second, 50*time.Millisecond)
	freed := p.take(record.EvFreed)
	if len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedRevoked ||
		freed[0].Reasons != record.FreedRevoked|record.FreedRevoked<<4 || p.group.Alive() != 0 {
		t.Errorf("freed %+v, alive %d", freed, p.group.Alive())
	}
}

func TestAReaderThatDiesFreesWhatItAloneHolds(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(time.Second, 50*time.Millisecond)
	p.group.EngineDied(wire.EngineHash([]byte("D")), d.era.Epoch)
	l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
	if freed := p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased {
		t.Errorf("freed %+v", freed)
	}
}

func TestACancelledExpectationLeavesNothingOnTheRanks(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindProcess, nil)
	p.ready()
	e, err := p.host.Expect([]byte("a"))
	must(t, err)
	l.run(50*time.Millisecond, 10*time.Millisecond)
	for _, r := range p.ranks {
		if r.plane.Leases.Expected() != 1 {
			t.Fatalf("rank %d expects %d", r.n, r.plane.Leases.Expected())
		}
	}
	must(t, p.host.Cancel(e))
	l.run(50*time.Millisecond, 10*time.Millisecond)
	for _, r := range p.ranks {
		if r.plane.Leases.Expected() != 0 {
			t.Errorf("rank %d still expects %d", r.n, r.plane.Leases.Expected())
		}
	}
	if p.group.Expected() != 0 || len(p.evs) != 0 {
		t.Errorf("expected %d, events %v", p.group.Expected(), kinds(p.evs))
	}
}

// Two grants of one id: the second is refused on every rank alike, also by a rank that hears of both from a full state, where a
// lower slot comes first.
func TestASecondGrantOfAnIdIsADuplicateOnEveryRank(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindDelta, two, two)
	low, err := p.host.Expect([]byte("low"))
	must(t, err)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	silent := true
	p.ranks[1].silence(true, &silent)
	first, _ := p.grantAs(host.Grant{ID: []byte("twice"), Blocks: 1})
	l.step(10 * time.Millisecond)
	must(t, p.host.Cancel(low))
	l.run(100*time.Millisecond, 10*time.Millisecond)
	second, _ := p.grantAs(host.Grant{ID: []byte("twice"), Blocks: 2})
	if second.Slot() >= first.Slot() {
		t.Fatalf("slots %d and %d: a full state names the first one first", first.Slot(), second.Slot())
	}
	l.run(100*time.Millisecond, 10*time.Millisecond)
	silent = false
	l.until("freed", func() bool { return p.count(record.EvFreed) == 1 })
	l.run(time.Second, 50*time.Millisecond)
	for _, ev := range p.take(record.EvFreed) {
		if ev.Handle != uint64(second) || ev.Status != record.FreedDuplicate || ev.Reasons != record.FreedDuplicate|record.FreedDuplicate<<4 || ev.Value0 != 2 {
			t.Errorf("freed %+v", ev)
		}
	}
	for _, r := range p.ranks {
		if r.plane.Leases.Held() != 1 {
			t.Errorf("rank %d holds %d", r.n, r.plane.Leases.Held())
		}
	}
	if p.group.Held() != 1 || first == second {
		t.Errorf("held %d", p.group.Held())
	}
}
