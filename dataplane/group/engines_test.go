package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
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

// A host's requests stay in its books until they are untracked, whatever has become of them.
func TestAnEngineThatNobodyMissesIsNoLongTrouble(t *testing.T) {
	for _, tc := range []struct {
		name    string
		tracked bool           // a request is there when the engine ends
		drops   bool           // which the host untracks when it is told
		reads   bool           // which the host reads before it is told
		why     heartbeat.Over // of the end
		names   bool           // the host names it for another request, which it gives up
		long    []int          // what counts after 20, 40, 100 and 200 s
	}{
		{name: "nothing was tracked there", long: []int{0, 0, 0, 0}},
		{name: "a request was lost with it", tracked: true, drops: true, long: []int{0, 1, 1, 0}},
		{name: "a read there fails at once", tracked: true, reads: true, long: []int{0, 1, 1, 0}},
		{name: "a request stays there", tracked: true, long: []int{0, 1, 1, 1}},
		{name: "it withdrew, and a request was lost with it", tracked: true, drops: true, why: heartbeat.Withdrew, long: []int{0, 0, 0, 0}},
		{name: "it withdrew, and a read had just failed there", tracked: true, reads: true, why: heartbeat.Withdrew, long: []int{0, 0, 0, 0}},
		{name: "it withdrew, and is named all the same", why: heartbeat.Withdrew, names: true, long: []int{0, 1, 1, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, p, d, peer := pair(t, stream.KindProcess, two, two)
			_, remote := p.grant("a", 1, 0, 4)
			track := d.track(peer, remote, 9)
			l.run(100*time.Millisecond, 10*time.Millisecond)
			if !tc.tracked {
				must(t, d.host.Untrack(track))
				l.until("untracked", func() bool { return d.group.Tracked() == 0 })
			}
			for _, agent := range []string{"P_0", "P_1"} {
				l.hub.Kill(agent)
			}
			if tc.reads {
				must(t, d.host.Read(track, runs(20, 0, 4)))
				l.until("failed", func() bool { return d.count(record.EvReadFailed) > 0 })
			}
			must(t, d.group.EngineOver(peer, tc.why))
			l.until("down", func() bool { return d.count(record.EvEngineDown) > 0 })
			if tc.drops {
				must(t, d.host.Untrack(track))
			}
			if tc.names {
				_, remote = p.grant("b", 2, 4, 8)
				late := d.track(peer, remote, 10)
				l.run(time.Second, 100*time.Millisecond)
				must(t, d.host.Untrack(late))
			}
			var long []int
			for _, span := range []time.Duration{20 * time.Second, 20 * time.Second, 60 * time.Second, 100 * time.Second} {
				l.run(span, 500*time.Millisecond)
				g := d.group.Gauges()
				long = append(long, g.FailingLong)
				if g.Failing != 1 || len(long) > 1 && g.FailingLong+g.FailingUnused != 1 {
					t.Errorf("%d failing, %d of them long, %d unused", g.Failing, g.FailingLong, g.FailingUnused)
				}
			}
			if diff := cmp.Diff(tc.long, long); diff != "" {
				t.Errorf("after 20, 40, 100 and 200 s these count (-want +got):\n%s", diff)
			}
		})
	}
}

// One that came back is missed no more: what it is closed for then, nobody asks.
func TestAnEngineThatCameBackIsMissedNoMore(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	for n := range 2 {
		l.hub.Cut(fmt.Sprintf("D_%d", n), fmt.Sprintf("P_%d", n))
	}
	l.until("down", func() bool { return d.count(record.EvEngineDown) > 0 })
	must(t, d.host.Untrack(track))
	l.until("up again", func() bool { return d.count(record.EvEngineUp) > 0 })
	for _, agent := range []string{"P_0", "P_1"} {
		l.hub.Kill(agent)
	}
	must(t, d.group.EngineOver(peer, heartbeat.Died))
	l.run(40*time.Second, 500*time.Millisecond)
	if g := d.group.Gauges(); g.FailingLong != 0 || g.FailingUnused != 1 {
		t.Errorf("%d long, %d unused; want it unused", g.FailingLong, g.FailingUnused)
	}
}

// While a rank of ours has no memory registered nothing can be read: that says nothing about the engines, however long it lasts.
func TestNoEngineCountsAsFailingForASleepOfOurs(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	track := d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	own := d.ranks[1].plane.Tracker
	own.Sleep(l.now)
	must(t, d.ranks[1].agent.Drop(1)) // the agent goes, and with it what it had loaded
	d.ranks[1].link.SetMap(nil)
	l.until("lost", func() bool { return d.count(record.EvLeaseGone) > 0 && d.count(record.EvEngineDown) > 0 })
	must(t, d.host.Untrack(track))
	for range 10 {
		l.run(10*time.Second, 500*time.Millisecond)
		if g := d.group.Gauges(); g.Failing != 0 || g.FailingLong != 0 {
			t.Fatalf("%d failing, %d of them long", g.Failing, g.FailingLong)
		}
	}
	d.ranks[1].link.SetMap(d.describe(d.ranks[1]))
	l.run(2*time.Second, 500*time.Millisecond) // it is registered, and loads nothing yet
	if g := d.group.Gauges(); g.Failing != 0 {
		t.Errorf("%d failing as soon as all are registered", g.Failing)
	}
	l.run(60*time.Second, 500*time.Millisecond)
	if g := d.group.Gauges(); g.Failing != 1 || g.FailingUnused != 1 {
		t.Errorf("%d failing, %d of them unused, of an engine that stays away and that nobody has asked since", g.Failing, g.FailingUnused)
	}
	own.Wake(99, l.now)
	l.until("up", func() bool { return d.count(record.EvEngineUp) > 0 })
	if g := d.group.Gauges(); g.Failing != 0 {
		t.Errorf("%d failing after the wake", g.Failing)
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
	must(t, d.group.EngineOver(peer, heartbeat.Died))
	l.until("gone", func() bool { return d.count(record.EvLeaseGone) > 0 })
	must(t, d.host.Read(track, runs(20, 0, 4)))
	l.until("lost", func() bool { return d.count(record.EvReadFailed) > 0 })
	if failed := d.take(record.EvReadFailed); failed[0].Status != record.ReadLost {
		t.Errorf("status %d", failed[0].Status)
	}
}

func TestAnEngineIsSeenAsStrangeForADurationAfterARequestOfABootThatNobodyKnows(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	strange := func() bool { return d.group.View(peer).Strange }
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if strange() {
		t.Fatal("with a request of the boot that is known")
	}
	const next = 4711
	other := *remote
	other.ID, other.Epoch = []byte("b"), next
	first := d.track(peer, &other, 10)
	l.step(10 * time.Millisecond)
	_, remote = p.grant("c", 1, 4, 4)
	d.track(peer, remote, 11)
	l.step(10 * time.Millisecond)
	if !strange() {
		t.Fatal("a request of another boot is not seen, as one of the boot that is known came after it")
	}
	must(t, d.group.LoadEngine(peer, p.maps())) // asked anew, it is the same
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if v := d.group.View(peer); !v.Strange || v.State != heartbeat.Connected || v.Breaks != 0 {
		t.Fatalf("after the same maps: %+v", v)
	}
	l.until("its ranks have given it up", func() bool { return d.count(record.EvLeaseGone) > 0 })
	if gone := d.take(record.EvLeaseGone); len(gone) != 1 || gone[0].Handle != uint64(first) {
		t.Errorf("gone: %+v", gone)
	}
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if strange() {
		t.Error("the request is over")
	}
	d.track(peer, &other, 12)
	l.step(10 * time.Millisecond)
	if !strange() {
		t.Error("a second request of another boot is not seen")
	}
	var maps []group.PeerMap
	for _, m := range p.maps() {
		h := new(wire.Handshake)
		must(t, wire.ParseHandshake(m.Data, h))
		h.Lease.Epoch = next
		maps = append(maps, group.PeerMap{Rank: m.Rank, Data: wire.AppendHandshake(nil, h)})
	}
	must(t, d.group.LoadEngine(peer, maps))
	l.step(10 * time.Millisecond)
	if strange() {
		t.Error("its maps are there")
	}
	l.until("what was known before is lost", func() bool { return d.count(record.EvLeaseGone) > 0 })
	for _, e := range d.take(record.EvLeaseGone) {
		if e.User == 12 {
			t.Errorf("gone: %+v", e)
		}
	}
}

// The engine of a request is gone when a rank is told of the request once more, and another engine's clock has become known meanwhile:
// each request is told as its own.
func TestARequestOfARemovedEngineIsToldAsItIs(t *testing.T) {
	mem := memory(t, 1, 1<<12)
	out, err := dataplane.NewEvents(mem.Events, nil)
	must(t, err)
	w := &wireEnd{room: 1 << 20, gap: true, lose: func() bool { return false }}
	g, err := group.New(group.Config{Self: topology.Shape{TP: 1, PP: 1}, Duration: duration, Engines: 128, MapMax: 64}, mem, []stream.Carrier{w}, out)
	must(t, err)
	h, err := host.New(mem, nil)
	must(t, err)
	now := clock.Instant(time.Hour)
	step := func() {
		now = now.Add(time.Millisecond)
		g.Step(now)
	}
	var off clock.Offset
	off.Observe(clock.Sample{Sent: now, Received: now, Stamp: clock.RemoteInstant(now)})
	engine := func(id string) uint64 {
		e, err := g.AddEngine(group.EngineDesc{ID: id})
		must(t, err)
		return e
	}
	ids := map[record.Handle]string{}
	track := func(e uint64, id string) {
		u, err := h.Track(e, &host.Remote{ID: []byte(id), Native: true, Epoch: 1, ExpiresNs: uint64(now) + 1e12}, []byte("local"), 1, now)
		must(t, err)
		ids[u] = id
		step()
	}
	gone, late := engine("gone"), engine("late")
	must(t, g.SetOffset(gone, off))
	step()
	track(late, "b") // of a lower slot: told when the clock becomes known
	track(gone, "a")
	must(t, g.RemoveEngine(gone))
	step()
	for i := range 64 { // as many as a step takes news of before it speaks
		must(t, g.SetOffset(engine(fmt.Sprint(i)), off))
	}
	must(t, g.SetOffset(late, off))
	w.gap, w.down = true, nil
	step()
	step()
	for _, r := range w.down {
		if q, id, _, ok := record.AsTrack(r.b); r.tag == record.TagTrack {
			if !ok || ids[q.Track] != string(id) {
				t.Errorf("request %x is told as %q, it is %q", uint64(q.Track), id, ids[q.Track])
			}
			delete(ids, q.Track)
		}
	}
	if len(ids) != 0 {
		t.Errorf("not told: %v", ids)
	}
}
