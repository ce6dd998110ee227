package group_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/wire"
)

func TestAnEngineIsUpWhenAllRanksAreAndDownWithTheFirst(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	l.hub.Cut("D_1", "P_1")
	l.until("down", func() bool { return d.count(record.EvEngineDown) > 0 })
	down := d.take(record.EvEngineDown)
	if len(down) != 1 || down[0].Handle != peer || down[0].User != 5 || down[0].Value0 != 1 {
		t.Errorf("down %+v", down)
	}
	l.until("up again", func() bool { return d.count(record.EvEngineUp) > 0 })
	l.run(5*time.Second, 100*time.Millisecond)
	if up := d.take(record.EvEngineUp); len(up) != 1 || up[0].Handle != peer {
		t.Errorf("up %+v", up)
	}
}

func TestAnEngineThatIsRemovedTakesItsRequestsAlong(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	must(t, d.group.RemoveEngine(peer))
	l.until("gone", func() bool { return d.count(record.EvLeaseGone) > 0 })
	must(t, d.host.Untrack(track))
	l.until("untracked", func() bool { return d.group.Tracked() == 0 })
	late := d.track(peer, remote, 10) // under a handle that is stale
	must(t, d.host.Read(late, runs(20, 0, 4)))
	l.until("lost", func() bool { return d.count(record.EvReadFailed) > 0 })
	if failed := d.take(record.EvReadFailed); failed[0].Status != record.ReadLost {
		t.Errorf("status %d", failed[0].Status)
	}
	again, err := d.group.AddEngine(group.EngineDesc{ID: "P", TP: 2})
	must(t, err)
	if again == peer {
		t.Error("the same handle for another engine")
	}
	if err := d.group.RemoveEngine(peer); err == nil {
		t.Error("a stale handle was removed")
	}
}

func TestAPeerThatDiesIsReadNoMoreUntilItComesBack(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	d.group.EngineDied(wire.EngineHash([]byte("P")), p.era.Epoch) // as a reader: what is read from it is another matter
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if len(d.evs) != 0 {
		t.Fatalf("events: %v", kinds(d.evs))
	}
	must(t, d.group.EngineDead(peer))
	l.until("gone", func() bool { return d.count(record.EvLeaseGone) > 0 })
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.until("lost", func() bool { return d.count(record.EvReadFailed) > 0 })
	if failed := d.take(record.EvReadFailed); failed[0].Status != record.ReadLost {
		t.Errorf("status %d", failed[0].Status)
	}
}
