package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
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
			lose := func() { must(t, p.ranks[1].carrier.Close()); p.ranks[1].stopped = true }
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
			lose := func() { must(t, d.ranks[1].carrier.Close()); d.ranks[1].stopped = true }
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
		if !p.group.Poison() {
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

func TestBlocksOfOneRankAreBackLast(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("r1", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	for _, r := range d.ranks {
		r.agent.HoldReads(true)
	}
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.run(100*time.Millisecond, 10*time.Millisecond)
	must(t, d.host.Untrack(track))
	l.until("outcome", func() bool { return d.count(record.EvReadFailed) > 0 })
	failed := d.take(record.EvReadFailed)
	if len(failed) != 1 || failed[0].Status != record.ReadCancelled || failed[0].Flags != record.FlagBlocksHeld {
		t.Fatalf("outcome %+v", failed)
	}
	d.ranks[0].agent.HoldReads(false)
	l.run(time.Second, 50*time.Millisecond)
	if d.count(record.EvBlocksBack) != 0 || d.group.Tracked() != 1 {
		t.Fatalf("back while rank 1 may still write, tracked %d", d.group.Tracked())
	}
	d.ranks[1].agent.HoldReads(false)
	l.until("back", func() bool { return d.count(record.EvBlocksBack) > 0 })
	l.run(time.Second, 50*time.Millisecond)
	if n := d.count(record.EvBlocksBack); n != 1 || d.group.Tracked() != 0 {
		t.Errorf("%d times back, %d tracked", n, d.group.Tracked())
	}
}

func TestAFixedLeaseWaitsForItsEnginesClock(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	const ahead = 1000 * time.Second // ours minus theirs
	fixed := func(id string) *host.Remote {
		_, remote := p.grantAs(host.Grant{ID: []byte(id), Blocks: 4, Fixed: true, TTL: 60 * time.Second})
		remote.ExpiresNs = uint64(l.now.Add(60 * time.Second).Add(-ahead))
		return remote
	}
	for _, r := range p.ranks {
		r.fill(1, 0, 4)
	}
	track := d.track(peer, fixed("a"), 9)
	gone := d.track(peer, fixed("b"), 10)
	lost := d.track(peer, fixed("c"), 11)
	must(t, d.host.Read(lost, runs(30, 0, 4)))
	must(t, d.host.Read(track, runs(20, 0, 4)))
	must(t, d.host.Untrack(gone))
	l.run(time.Second, 50*time.Millisecond)
	if n := d.ranks[0].plane.Tracker.Gauges().Tracked; n != 0 || d.group.Tracked() != 2 {
		t.Fatalf("ranks track %d, the host %d, before the clock is known", n, d.group.Tracked())
	}
	must(t, d.host.Untrack(lost))
	l.run(100*time.Millisecond, 50*time.Millisecond)
	if failed := d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadCancelled || failed[0].Handle != uint64(lost) {
		t.Fatalf("untracked before anybody knew: %+v", failed)
	}
	var off clock.Offset
	off.Observe(clock.Sample{Sent: l.now, Received: l.now.Add(time.Millisecond), Stamp: clock.RemoteInstant(l.now.Add(-ahead))})
	must(t, d.group.SetOffset(peer, off))
	l.until("read", func() bool { return d.count(record.EvReadDone)+d.count(record.EvReadFailed) > 0 })
	if done := d.take(record.EvReadDone); len(done) != 1 || done[0].Handle != uint64(track) {
		t.Errorf("outcome: %v", kinds(d.evs))
	}
}

func TestAReadOfAFixedLeaseWhoseClockNeverComesIsLost(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grantAs(host.Grant{ID: []byte("a"), Blocks: 4, Fixed: true, TTL: 600 * time.Second})
	remote.ExpiresNs = 77
	track := d.track(peer, remote, 9)
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.run(4*duration-time.Second, time.Second)
	if len(d.evs) != 0 {
		t.Fatalf("events: %v", kinds(d.evs))
	}
	l.run(3*time.Second, time.Second)
	if failed := d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadLost || d.group.Tracked() != 0 {
		t.Errorf("outcome: %+v, tracked %d", failed, d.group.Tracked())
	}
}

func TestAReadWhoseRunsFindNoRoomFailsAndHoldsNothing(t *testing.T) {
	l := newLab(t)
	p := l.engine("P", two, stream.KindProcess, nil)
	d := l.engine("D", two, stream.KindProcess, func(c *group.Config) { c.RunsMax = 320 })
	p.ready()
	d.ready()
	peer := d.know(p)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	var many []record.Run
	for i := range uint32(700) {
		many = append(many, record.Run{Group: 0, Local: 20 + i%4, Remote: i % 4, N: 1})
	}
	must(t, d.host.Read(track, many))
	l.until("failed", func() bool { return d.count(record.EvReadFailed) > 0 })
	l.run(time.Second, 50*time.Millisecond)
	failed := d.take(record.EvReadFailed)
	if len(failed) != 1 || failed[0].Status != record.ReadFailed || failed[0].Flags != 0 || d.group.Tracked() != 0 || d.group.Gauges().RunsLeft != 10 {
		t.Errorf("outcome %+v, %+v", failed, d.group.Gauges())
	}
	if freed := p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased {
		t.Errorf("the owner: %+v", freed)
	}
}

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

func TestAPeerThatDiesIsReadNoMoreUntilItComesBack(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	d.group.EngineDied(wire.EngineHash([]byte("P")), p.era.Epoch+1) // another boot: nothing happens
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if len(d.evs) != 0 {
		t.Fatalf("events: %v", kinds(d.evs))
	}
	d.group.EngineDied(wire.EngineHash([]byte("P")), p.era.Epoch)
	l.until("gone", func() bool { return d.count(record.EvLeaseGone) > 0 })
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.until("lost", func() bool { return d.count(record.EvReadFailed) > 0 })
	if failed := d.take(record.EvReadFailed); failed[0].Status != record.ReadLost {
		t.Errorf("status %d", failed[0].Status)
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

// The stream to the host is full while a rank has outcomes to tell: they wait where they are.
func TestOutcomesThatFindNoRoomAreToldWhenThereIs(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	const n = 100
	for i := range uint32(n) {
		_, remote := p.grantAs(host.Grant{ID: fmt.Appendf(nil, "r%d", i), Blocks: 1, User: uint64(i)})
		track := d.track(peer, remote, uint64(i))
		d.ranks[0].agent.HoldReads(true)
		must(t, d.host.Read(track, runs(i%blocksN, i%blocksN, 1)))
		_, _ = d.grantAs(host.Grant{ID: fmt.Appendf(nil, "d%d", i), Blocks: 1, TTL: time.Second})
		_, _ = d.grantAs(host.Grant{ID: fmt.Appendf(nil, "e%d", i), Blocks: 1, TTL: time.Second})
		l.step(time.Millisecond)
	}
	l.run(100*time.Millisecond, 10*time.Millisecond)
	step := func(pass time.Duration) { // the host does not
		l.now = l.now.Add(pass)
		p.group.Step(l.now)
		p.poll()
		for _, r := range append(p.ranks, d.ranks...) {
			r.plane.Step(l.now)
		}
	}
	for range 60 {
		step(50 * time.Millisecond) // the leases expire: their ends fill the stream
	}
	d.ranks[0].agent.HoldReads(false)
	for range 100 {
		step(10 * time.Millisecond)
	}
	if d.ranks[0].link.Counters.ToldHeld == 0 || d.ranks[0].plane.Tracker.Gauges().Events == 0 {
		t.Fatal("everything found room")
	}
	l.until("all outcomes", func() bool { return d.count(record.EvReadDone) == n && d.count(record.EvFreed) == 2*n })
	if d.group.Tracked() != 0 {
		l.run(time.Second, 50*time.Millisecond)
	}
	if d.group.Tracked() != 0 || d.group.Counters.FullStates != 2 {
		t.Errorf("tracked %d, %d full states: nothing was lost that had to be told again", d.group.Tracked(), d.group.Counters.FullStates)
	}
}
