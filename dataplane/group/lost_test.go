package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

var two = topology.Shape{TP: 2, PP: 1}

func TestARankThatStandsStillCostsTheOthersNothing(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	p.ranks[1].stopped = true
	var granted int
	for i := range 10000 { // far more than its ring holds
		h, err := p.host.Grant(host.Grant{ID: fmt.Appendf(nil, "r%d", i), Blocks: 1, User: uint64(i)}, l.now)
		if err != nil { // every slot is in use: what rank 1 has not ended is not given back
			break
		}
		granted++
		must(t, p.host.Cancel(h))
		l.step(time.Millisecond)
	}
	if granted != slots {
		t.Fatalf("%d grants, want the table's %d: no slot may come back while rank 1 holds it", granted, slots)
	}
	if held := p.ranks[0].plane.Leases.Held(); held != 0 {
		t.Errorf("rank 0 still holds %d: it was not told while rank 1 stood still", held)
	}
	// The reader's requests go on all the while: they are not this host's.
	_, remote := p.grantNothing()
	track := d.track(peer, remote, 1)
	must(t, d.host.Untrack(track))
	l.until("untracked", func() bool { return d.group.Tracked() == 0 })

	p.ranks[1].stopped = false
	l.until("all freed", func() bool { return p.count(record.EvFreed) == slots })
	if g := p.group.Gauges(); g.Held != 0 || g.Behind != 0 {
		l.run(time.Second, 10*time.Millisecond)
		if g = p.group.Gauges(); g.Held != 0 || g.Behind != 0 {
			t.Errorf("left: %+v", g)
		}
	}
	if p.group.Rank(1).FullStates < 2 {
		t.Errorf("rank 1 caught up with %d full states: its ring was never full", p.group.Rank(1).FullStates)
	}
	seen := map[uint64]bool{}
	for _, ev := range p.take(record.EvFreed) {
		if seen[ev.Handle] || ev.Status != record.FreedRevoked {
			t.Errorf("freed %+v twice or wrongly (L3)", ev)
		}
		seen[ev.Handle] = true
	}
}

// grantNothing is a remote that no lease stands behind.
func (e *engine) grantNothing() (record.Handle, *host.Remote) {
	return 0, &host.Remote{ID: []byte("none"), Native: true, Epoch: e.era.Epoch, Key: 1, Slot: 200, Generation: 3}
}

func TestARankThatIsLostEndsWhatItHeldAndNothingElse(t *testing.T) {
	for _, stage := range []string{"before the grant", "held", "cancelled", "all but it have ended"} {
		t.Run(stage, func(t *testing.T) {
			l, p, _, _ := pair(t, stream.KindProcess, two, two)
			lose := func() { p.ranks[1].close() }
			if stage == "before the grant" {
				lose()
				l.run(50*time.Millisecond, 10*time.Millisecond)
			}
			lease, _ := p.grant("r1", 1, 0, 4)
			l.run(50*time.Millisecond, 10*time.Millisecond)
			status, reasons := int32(record.FreedLost), uint64(record.FreedRevoked|record.FreedLost<<4)
			switch stage {
			case "held":
				lose()
			case "cancelled":
				p.ranks[1].stopped = true
				must(t, p.host.Cancel(lease))
				lose()
			case "all but it have ended":
				p.ranks[1].stopped = true
				must(t, p.host.Cancel(lease))
				l.run(50*time.Millisecond, 10*time.Millisecond)
				if p.count(record.EvFreed) != 0 {
					t.Fatal("freed while rank 1 holds it")
				}
				lose()
			}
			l.run(50*time.Millisecond, 10*time.Millisecond)
			if stage == "before the grant" || stage == "held" {
				if p.count(record.EvFreed) != 0 {
					t.Fatal("freed while rank 0 holds it")
				}
				must(t, p.host.Cancel(lease))
			}
			l.until("freed", func() bool { return p.count(record.EvFreed) > 0 })
			l.run(time.Second, 50*time.Millisecond)
			freed := p.take(record.EvFreed)
			if len(freed) != 1 || freed[0].Status != status || freed[0].Reasons != reasons || freed[0].Value0 != 4 {
				t.Errorf("freed %+v, want status %d reasons %#x", freed, status, reasons)
			}
			down := p.take(record.EvRankDown)
			if len(down) != 1 || down[0].Handle != 1 || down[0].Status != 1 {
				t.Errorf("rank down: %+v", down)
			}
			if what := l.idle(); what != "" {
				t.Errorf("left: %s", what)
			}
		})
	}
}

func TestARequestOfALostRankIsLost(t *testing.T) {
	for _, stage := range []string{"before the track", "tracked", "reading", "read on the other"} {
		t.Run(stage, func(t *testing.T) {
			l, p, d, peer := pair(t, stream.KindProcess, two, two)
			_, remote := p.grant("r1", 1, 0, 4)
			lose := func() { d.ranks[1].close() }
			if stage == "before the track" {
				lose()
				l.run(50*time.Millisecond, 10*time.Millisecond)
			}
			track := d.track(peer, remote, 9)
			l.run(50*time.Millisecond, 10*time.Millisecond)
			if stage == "tracked" {
				lose()
				l.run(50*time.Millisecond, 10*time.Millisecond)
			}
			if stage == "reading" {
				d.ranks[0].agent.HoldReads(true)
				d.ranks[1].agent.HoldReads(true)
			}
			if stage == "read on the other" {
				d.ranks[1].agent.HoldReads(true)
			}
			must(t, d.host.Read(track, runs(20, 0, 4)))
			l.run(100*time.Millisecond, 10*time.Millisecond)
			if stage == "reading" || stage == "read on the other" {
				if d.count(record.EvReadDone)+d.count(record.EvReadFailed) != 0 {
					t.Fatal("an outcome while a rank reads")
				}
				lose()
				l.run(50*time.Millisecond, 10*time.Millisecond)
				d.ranks[0].agent.HoldReads(false)
			}
			l.until("outcome", func() bool { return d.count(record.EvReadFailed) > 0 })
			l.run(2*time.Second, 50*time.Millisecond)
			failed, held := d.take(record.EvReadFailed), 0
			if len(failed) != 1 || failed[0].Status != record.ReadLost || failed[0].Handle != uint64(track) || failed[0].User != 9 {
				t.Fatalf("outcome %+v", failed)
			}
			if failed[0].Flags&record.FlagBlocksHeld != 0 {
				held = 1
			}
			if back := len(d.take(record.EvBlocksBack)); back != held {
				t.Errorf("%d blocks back, held %d", back, held)
			}
			if len(d.take(record.EvReadDone)) != 0 || d.group.Tracked() != 0 {
				t.Errorf("left: %+v %v", d.group.Gauges(), kinds(d.evs))
			}
		})
	}
}

func TestBlocksThatABrokenRankReadsIntoStayAsideWhenItIsCountedAsEnded(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("r1", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(50*time.Millisecond, 10*time.Millisecond)
	d.ranks[1].agent.HoldReads(true)
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.run(100*time.Millisecond, 10*time.Millisecond)
	d.ranks[1].broken, d.ranks[1].stopped = true, true // its core: the process lives, and so does its transfer
	l.until("outcome", func() bool { return d.count(record.EvReadFailed) > 0 })
	l.run(time.Minute, 100*time.Millisecond)
	failed := d.take(record.EvReadFailed)
	if len(failed) != 1 || failed[0].Status != record.ReadLost || failed[0].Flags&record.FlagBlocksHeld == 0 {
		t.Errorf("outcome %+v, want lost with its blocks held", failed)
	}
	if d.count(record.EvBlocksBack) != 0 {
		t.Error("blocks are back that a transfer may write to")
	}
}

func TestARankWhoseHostIsGoneSaysSoAndLetsItsRequestsGo(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("r1", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(time.Second, 50*time.Millisecond)
	must(t, d.hosts.Close())
	for range 10 {
		l.now = l.now.Add(50 * time.Millisecond)
		p.group.Step(l.now)
		for _, r := range append(d.ranks, p.ranks...) {
			r.plane.Step(l.now)
		}
		p.poll()
	}
	for _, r := range d.ranks {
		var kinds []uint16
		for {
			_, rec, ok := r.own.Next()
			if !ok {
				break
			}
			kinds = append(kinds, record.AsEvent(rec).Kind)
		}
		if len(kinds) != 1 || kinds[0] != record.EvHostDown {
			t.Errorf("rank %d told %v, want host down once", r.n, kinds)
		}
		if n := r.plane.Tracker.Gauges().Tracked; n != 0 {
			t.Errorf("rank %d still tracks %d", r.n, n)
		}
	}
	if freed := p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased {
		t.Errorf("the owner was told: %+v", freed)
	}
	// Leases of a rank without a host end at their deadlines, and nobody waits for their events.
	must(t, p.hosts.Close())
	for range 50 {
		l.now = l.now.Add(time.Second)
		for _, r := range p.ranks {
			r.plane.Step(l.now)
		}
	}
	for _, r := range p.ranks {
		if n := r.plane.Leases.Held() + r.plane.Leases.Ending(); n != 0 {
			t.Errorf("rank %d holds %d", r.n, n)
		}
	}
}

func TestAPoisonedHostTellsItsRanksOnce(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("r1", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(time.Second, 50*time.Millisecond)
	p.mem.Control.Poisoned = 1
	for range 3 {
		if !p.group.Poison(l.now) {
			t.Fatal("not told, although there is room")
		}
	}
	for _, r := range p.ranks {
		r.plane.Step(l.now)
		if r.mem.Control.Poisoned == 0 {
			t.Errorf("rank %d is not poisoned", r.n)
		}
		_, rows := record.Board(r.mem.Board)
		for i := range rows {
			if rows[i].Fence != record.FenceClosed {
				t.Fatalf("rank %d: row %d is open", r.n, i)
			}
		}
	}
	must(t, d.host.Read(track, runs(20, 0, 4)))
	for range 50 {
		l.now = l.now.Add(20 * time.Millisecond)
		d.group.Step(l.now)
		for _, r := range d.ranks {
			r.plane.Step(l.now)
		}
		d.poll()
	}
	if failed := d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadStale {
		t.Errorf("a read of a poisoned owner: %+v", failed)
	}
}

func TestARankWhoseCoreBrokeHoldsItsLeasesForOneDuration(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	lease, _ := p.grantAs(host.Grant{ID: []byte("r1"), Blocks: 4, TTL: 10 * duration})
	l.run(time.Second, 50*time.Millisecond)
	p.ranks[1].link.Poisoned()
	p.ranks[1].stopped = true
	must(t, p.host.Cancel(lease))
	l.run(duration-2*time.Second, time.Second)
	if p.count(record.EvFreed) != 0 {
		t.Fatal("freed before readers that do not check the fence had their time")
	}
	l.run(4*time.Second, time.Second)
	freed := p.take(record.EvFreed)
	if len(freed) != 1 || freed[0].Status != record.FreedPoisoned || freed[0].Reasons != record.FreedRevoked|record.FreedPoisoned<<4 {
		t.Errorf("freed %+v", freed)
	}
}

func TestAHostDoesNotSpinForARankThatStandsStill(t *testing.T) {
	l, p, _, _ := pair(t, stream.KindProcess, two, two)
	l.run(time.Second, 50*time.Millisecond)
	if due := p.group.NextDue(l.now); due != clock.Never || p.group.Pending() {
		t.Fatalf("due in %v, pending %v, with nothing to do", due.Sub(l.now), p.group.Pending())
	}
	p.ranks[1].stopped = true
	for i := range slots {
		h, _ := p.grantAs(host.Grant{ID: fmt.Appendf(nil, "r%d", i), Blocks: 1})
		must(t, p.host.Cancel(h))
		l.step(time.Millisecond)
	}
	l.run(100*time.Millisecond, time.Millisecond)
	if wait := p.group.NextDue(l.now).Sub(l.now); wait < time.Millisecond || wait > 100*time.Millisecond || p.group.Pending() {
		t.Errorf("due in %v, pending %v, while rank 1 has no room", wait, p.group.Pending())
	}
	if !p.group.Rank(1).Behind {
		t.Error("rank 1 is not behind: its ring was never full")
	}
	// And a rank does not for a host that does.
	p.ranks[1].stopped = false
	r := p.ranks[1]
	for range 200 { // the host is not stepped
		l.now = l.now.Add(time.Millisecond)
		r.plane.Step(l.now)
	}
	if r.plane.Pending() {
		t.Error("rank 1 is pending, and has nothing to take and no room to tell")
	}
	l.until("freed", func() bool { return p.count(record.EvFreed) == slots })
}
