package group_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// fence is what a reader of a lease finds in its row at a rank, less what it wants to find.
func (r *rank) fence(h record.Handle) int64 {
	_, rows := record.Board(r.mem.Board)
	return int64(rows[h.Slot()].Fence - (r.base + uint64(h.Use())))
}

// The parameters of a grant are out before anybody knows that its id holds a lease: who has them must not read what is freed.
func TestL10ADuplicateIsFreedWhenNoRankCanBeReadFromForIt(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	p.grant("twice", 1, 0, 4)
	l.run(50*time.Millisecond, 10*time.Millisecond)
	p.ranks[1].stopped = true
	second, remote := p.grant("twice", 2, 4, 4)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if n := p.count(record.EvFreed); n != 0 && p.ranks[1].fence(second) == 0 {
		t.Errorf("freed while the row of rank 1 says that it may be read (L10)")
	}
	p.ranks[1].stopped = false
	l.until("freed", func() bool { return p.count(record.EvFreed) == 1 })
	for _, r := range p.ranks {
		if r.fence(second) == 0 {
			t.Errorf("freed while the row of rank %d says that it may be read (L10)", r.n)
		}
		r.fill(3, 4, 4) // whoever has been given the blocks
	}
	track := d.track(peer, remote, 9)
	must(t, d.host.Read(track, runs(20, 4, 4)))
	l.until("outcome", func() bool { return d.count(record.EvReadDone)+d.count(record.EvReadFailed) > 0 })
	if d.count(record.EvReadDone) != 0 {
		t.Error("blocks that were given to another request were read as this one's")
	}
}

// What is left of a fixed lease is left from when it was tracked, however late a rank hears of it.
func TestAFixedLeaseEndsInTimeForARankThatStoodStill(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	var off clock.Offset
	off.Observe(clock.Sample{Sent: l.now, Received: l.now, Stamp: clock.RemoteInstant(l.now)})
	must(t, d.group.SetOffset(peer, off))
	l.run(100*time.Millisecond, 10*time.Millisecond)
	_, remote := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 4, Fixed: true, TTL: 600 * time.Second})
	over := l.now.Add(60 * time.Second)
	remote.ExpiresNs = uint64(over)
	for _, r := range d.ranks {
		r.stopped = true
	}
	d.track(peer, remote, 9)
	l.run(30*time.Second, 100*time.Millisecond)
	for _, r := range d.ranks {
		r.stopped = false
	}
	for l.now < over {
		if d.count(record.EvLeaseGone) > 0 {
			return
		}
		l.step(100 * time.Millisecond)
	}
	t.Error("a rank takes a lease for held after its end")
}

// close is the end of a rank context: its rows are closed before its host hears of it.
func (r *rank) close() {
	r.plane.Leases.FenceAll()
	r.link.Closed()
	r.carrier.Close()
	r.stopped = true
}

// A stream can end although the process on its other end lives: it was closed under it, or what stands in it contradicts itself.
// Blocks of such a rank are free when its rows must be closed.
func TestL10ARankThatMayLiveIsCountedAsEndedWhenItHasHadTheTimeToCloseItsRows(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	lease, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(50*time.Millisecond, 10*time.Millisecond)
	p.ranks[1].stopped = true
	must(t, p.host.Cancel(lease))
	l.run(50*time.Millisecond, 10*time.Millisecond)
	must(t, p.ranks[1].carrier.Close())
	lost := l.now
	l.run(time.Second, 50*time.Millisecond)
	if p.count(record.EvFreed) != 0 {
		t.Error("freed while rank 1 may live and has not closed its rows")
	}
	l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
	if waited := l.now.Sub(lost); waited < duration || waited > duration+time.Second {
		t.Errorf("freed after %v, want %v", waited, duration)
	}
	if freed := p.take(record.EvFreed); freed[0].Handle != uint64(lease) || freed[0].Reasons != record.FreedRevoked|record.FreedLost<<4 {
		t.Errorf("freed %+v", freed[0])
	}
	if down := p.take(record.EvRankDown); len(down) != 1 || down[0].Status != 1 {
		t.Errorf("rank down: %+v", down)
	}
}

// The other way about: a host that gave a rank up may live, and gives its blocks to others one duration later.
func TestL10ARankWhoseHostMayLiveClosesItsRows(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	lease, _ := p.grant("a", 1, 0, 4)
	l.run(50*time.Millisecond, 10*time.Millisecond)
	must(t, p.hosts.End(1).Close())
	l.run(50*time.Millisecond, 10*time.Millisecond)
	if p.ranks[1].fence(lease) == 0 || p.ranks[0].fence(lease) != 0 {
		t.Errorf("rows %d past their use: want that of rank 1 alone", []int64{p.ranks[0].fence(lease), p.ranks[1].fence(lease)})
	}
}

// A read that waits for its engine's clock is known to no rank: the loss of one ends it all the same.
func TestAReadThatWaitsForAClockIsLostWithARank(t *testing.T) {
	for _, parts := range []string{"read", "tracked"} {
		t.Run(parts, func(t *testing.T) {
			l, p, d, peer := pair(t, stream.KindProcess, two, two)
			_, remote := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 4, Fixed: true, TTL: 600 * time.Second})
			remote.ExpiresNs = 77
			track := d.track(peer, remote, 9)
			if parts == "read" {
				must(t, d.host.Read(track, runs(20, 0, 4)))
			}
			l.run(100*time.Millisecond, 10*time.Millisecond)
			d.ranks[1].close()
			l.run(100*time.Millisecond, 10*time.Millisecond)
			if parts == "tracked" {
				if gone := d.take(record.EvLeaseGone); len(gone) != 1 {
					t.Errorf("gone: %+v", gone)
				}
				must(t, d.host.Read(track, runs(20, 0, 4)))
			}
			l.run(time.Second, 10*time.Millisecond)
			if failed := d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadLost || failed[0].Flags != 0 || d.group.Tracked() != 0 {
				t.Errorf("failed %+v, tracked %d", failed, d.group.Tracked())
			}
		})
	}
}

// A rank whose core broke does no step any more. What it says is lost, and is said again to the full state that the host sends then.
func TestAHostHearsOfABrokenRankThoughTheWordIsLost(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindDelta, two, two)
	lease, _ := p.grant("a", 1, 0, 4)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	r, silent := p.ranks[1], true
	r.fault = func(fromHost bool, _ int, msg []byte) [][]byte {
		if silent && !fromHost {
			return nil
		}
		return [][]byte{msg}
	}
	r.plane.Leases.FenceAll()
	r.stopped, r.broken = true, true
	l.run(time.Second, 50*time.Millisecond)
	silent = false
	must(t, p.host.Cancel(lease))
	l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
	if freed := p.take(record.EvFreed); freed[0].Reasons != record.FreedRevoked|record.FreedPoisoned<<4 {
		t.Errorf("freed %+v", freed)
	}
}

func TestADrainDoesNotWaitForABrokenRank(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	r := p.ranks[1]
	r.plane.Leases.FenceAll()
	r.stopped, r.broken = true, true
	l.run(time.Second, 50*time.Millisecond)
	p.group.Drain(time.Second, l.now)
	l.until("drained", func() bool { return p.group.DrainLeft() == 0 })
}

// A rank of the reader hangs; the others beat to their ranks of the owner for as long as they live.
func TestWhatHasExpiredOnOneRankIsHeldByNoOther(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(2*duration, 100*time.Millisecond)
	if n := p.count(record.EvFreed); n != 0 {
		t.Fatalf("%d freed while both ranks beat, want none", n)
	}
	d.ranks[1].stopped = true
	l.run(2*duration, 100*time.Millisecond)
	ev := p.take(record.EvFreed)
	if len(ev) != 1 || ev[0].Status != record.FreedExpired || ev[0].Reasons != record.FreedRevoked|record.FreedExpired<<4 {
		t.Errorf("%+v, want one freed event that says expired, of rank 0 that it was revoked", ev)
	}
}
