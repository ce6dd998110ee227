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
)

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
