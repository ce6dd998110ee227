package group_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// pair is an owner and a reader that knows it.
func pair(t testing.TB, kind string, p, d topology.Shape) (l *lab, owner, reader *engine, known uint64) {
	t.Helper()
	l = newLab(t)
	owner, reader = l.engine("P", p, kind, nil), l.engine("D", d, kind, nil)
	owner.ready()
	reader.ready()
	return l, owner, reader, reader.know(owner)
}

func TestARequestOfSeveralRanksIsReadByAllAndFreedOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		p, d topology.Shape
	}{
		{"TP 1 to 1", topology.Shape{TP: 1, PP: 1}, topology.Shape{TP: 1, PP: 1}},
		{"TP 2 to 2", topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 2, PP: 1}},
		{"TP 4 to 4", topology.Shape{TP: 4, PP: 1}, topology.Shape{TP: 4, PP: 1}},
	} {
		for _, kind := range []string{stream.KindProcess, stream.KindDelta} {
			t.Run(tc.name+" over "+kind, func(t *testing.T) {
				l, p, d, peer := pair(t, kind, tc.p, tc.d)
				lease, remote := p.grant("r1", 7, 3, 8)
				track := d.track(peer, remote, 70)
				l.run(60*time.Second, 100*time.Millisecond) // twice the lease: heartbeats hold it on every rank
				if len(p.evs)+len(d.evs) != 0 {
					t.Fatalf("events while it waits: %v %v", kinds(p.evs), kinds(d.evs))
				}
				must(t, d.host.Read(track, runs(20, 3, 8)))
				l.until("read and freed", func() bool {
					return d.count(record.EvReadDone)+d.count(record.EvReadFailed) > 0 && p.count(record.EvFreed) > 0
				})
				done := d.take(record.EvReadDone)
				want := uint64(tc.d.Ranks()) * 8 * blockLen
				if len(done) != 1 || done[0].Handle != uint64(track) || done[0].User != 70 || done[0].Value0 != want {
					t.Fatalf("read: %+v, other events %v", done, kinds(d.evs))
				}
				for _, r := range d.ranks {
					if !r.right(7, 20, 8, tc.d, tc.p) {
						t.Errorf("rank %d has wrong data", r.n)
					}
				}
				freed := p.take(record.EvFreed)
				var reasons uint64
				for n := range tc.p.Ranks() {
					reasons |= record.FreedCompleted << (4 * n)
				}
				if len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedCompleted ||
					freed[0].User != 7 || freed[0].Value0 != 8 || freed[0].Reasons != reasons {
					t.Fatalf("freed: %+v, want reasons %#x", freed, reasons)
				}
				if held := time.Duration(freed[0].Value1); held < 60*time.Second || held > 62*time.Second {
					t.Errorf("held %v", held)
				}
				l.run(time.Second, 10*time.Millisecond)
				if what := l.idle(); what != "" || len(p.evs)+len(d.evs) != 0 {
					t.Errorf("left: %s, events %v %v", what, kinds(p.evs), kinds(d.evs))
				}
			})
		}
	}
}

// A table of slots, each used many times: a slot is used again only when every rank has ended its former use (L11).
func TestL11ASlotIsUsedAgainWhenEveryRankHasEndedIt(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, topology.Shape{TP: 2, PP: 1}, topology.Shape{TP: 2, PP: 1})
	lease, remote := p.grant("r1", 1, 0, 1)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	p.ranks[1].stopped = true // it stands still: the lease cannot end there
	must(t, p.host.Cancel(lease))
	l.run(5*time.Second, 10*time.Millisecond)
	if n := p.count(record.EvFreed); n != 0 || p.group.Held() != 1 {
		t.Fatalf("freed %d times while rank 1 holds it, held %d", n, p.group.Held())
	}
	if next, _ := p.grant("r2", 2, 1, 1); next.Slot() == lease.Slot() {
		t.Errorf("slot %d was granted again while rank 1 holds its former use", next.Slot())
	}
	p.ranks[1].stopped = false
	l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
	freed := p.take(record.EvFreed)
	if len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Reasons != record.FreedRevoked|record.FreedRevoked<<4 {
		t.Fatalf("freed %+v", freed)
	}
	track := d.track(peer, remote, 1) // of the revoked one
	must(t, d.host.Read(track, runs(0, 0, 1)))
	l.until("stale", func() bool { return d.count(record.EvReadFailed) > 0 })
	if ev := d.take(record.EvReadFailed)[0]; ev.Status != record.ReadStale {
		t.Errorf("status %d", ev.Status)
	}
}
