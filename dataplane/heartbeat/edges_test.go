package heartbeat

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
)

func TestARowOfTheLastRankThatIsReachedCounts(t *testing.T) {
	r := newRigOver(t, func(c *Config) { c.KVHeads = topology.RanksMax }, nil)
	p := r.party("P", topology.Shape{TP: topology.RanksMax, PP: 1}, false, blockLen/topology.RanksMax)
	e := p.connect()
	h := r.track(e, p.ranks[0], 1, 0)
	r.run(sec(2), 10*time.Millisecond) // one is loaded a step
	r.run(sec(12), 500*time.Millisecond)
	r.wantSaid(h, "")
	p.ranks[topology.RanksMax-1].rows[1].Fence++
	r.run(sec(20), 500*time.Millisecond)
	r.wantSaid(h, "gone")
	r.k.Untrack(h, r.now)
	r.run(sec(30), 500*time.Millisecond)
	r.wantRest()
}

func TestALeaseWhoseRowShowsItsEndIsNotToldAsAtRisk(t *testing.T) {
	const step = 500 * time.Millisecond
	var risk clock.Instant
	for _, ended := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", false)
		h := r.track(r.connect(o), o, 1, 0)
		r.run(sec(6), step)
		o.deaf = true
		if !ended { // when would the risk be told?
			r.run(sec(40), step)
			r.wantSaid(h, "risk")
			for i, e := range r.events {
				if e.Kind == record.EvAtRisk {
					risk = r.times[i]
				}
			}
			continue
		}
		r.run(risk.Add(-step), step)
		o.rows[1].Fence++ // the look that would tell the risk shows the end
		r.run(sec(40), step)
		r.wantSaid(h, "gone")
		if c := r.k.Counters(); c.AtRisk != 0 || c.Gone != 1 {
			t.Errorf("%d at risk and %d gone, want 0 and 1", c.AtRisk, c.Gone)
		}
	}
}

func TestAnEngineThatComesBackAsAnotherOneHasNothingUnheard(t *testing.T) {
	r := newRig(t, func(c *Config) { c.UnheardBytesMax = 40 << 10 })
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(100), time.Second) // far more bytes than may be unheard, and all were heard
	if c := r.k.Counters(); c.BeatsDropped != 0 {
		t.Fatalf("%d heartbeats dropped", c.BeatsDropped)
	}
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.track(e, o, 2, 0)
	r.run(sec(120), time.Second)
	if c := r.k.Counters(); c.BeatsDropped != 0 || o.count("renew") < 3 {
		t.Errorf("%d heartbeats dropped and %d heard by the new engine, want none and one an interval", c.BeatsDropped, o.count("renew"))
	}
}

func TestAReadThatWaitsTooLongForMemoryToReadIntoIsLostAndCounted(t *testing.T) {
	r := newRig(t, nil)
	must(t, r.k.SetLocal(nil))
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(2), time.Second)
	r.read(h, record.Run{N: 1})
	r.run(sec(121.5), time.Second) // four durations from then
	r.wantSaid(h, "")
	r.run(sec(123), time.Second)
	r.wantSaid(h, "failed(6)")
	if c := r.k.Counters(); c.ReadsWaited != 1 || c.WaitTimeouts != 1 {
		t.Errorf("%d waited and %d for too long, want 1 and 1", c.ReadsWaited, c.WaitTimeouts)
	}
	r.wantRest()
}

func TestAPeerThatIsNotLoadedIsNoLink(t *testing.T) {
	e := engine{links: []link{{}, {peer: 1}}}
	if k := e.linkOf(0); k != none {
		t.Errorf("link %d, want none", k)
	}
	if k := e.linkOf(1); k != 1 {
		t.Errorf("link %d, want 1", k)
	}
}

func TestALongIdIsFoundAtEveryPlace(t *testing.T) {
	const places = 1<<16 + 300
	r := newRemotes(1, places, 0, 1) // 64 MiB, of which two pages are touched
	for _, place := range []uint32{0, 200, 0x1234, places - 1} {
		for r.longFree.Take() != place {
		}
		r.longFree.Give(place) // it is the next one
		id := bytes.Repeat([]byte{byte(place) | 1}, 500)
		v := identity{id: id}
		m, full := r.take(&v, r.hashOf(&v))
		if full {
			t.Fatalf("no room at place %d", place)
		}
		if got := r.all[m].longPlace(); got != place {
			t.Fatalf("place %d, want %d", got, place)
		}
		if !bytes.Equal(r.idOf(&r.all[m]), id) {
			t.Errorf("the id at place %d is another one", place)
		}
		r.drop(m)
	}
}

func TestADeadEngineIsNotToldAsUpAlthoughItsBlobLoads(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(10), time.Second)
	r.hub.Kill("P")
	loads := r.k.Counters().Loads
	r.run(sec(40), 250*time.Millisecond)
	r.wantEngine(e, "up down")
	if c := r.k.Counters(); c.Loads == loads || c.LoadsFailed > 0 {
		t.Errorf("%d loads, %d of them failed; want some, all of which succeed", c.Loads-loads, c.LoadsFailed)
	}
}

func TestARequestOfAnotherBootThatCameBeforeTheHandshakeIsNotBeatenFor(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	now := r.track(e, o, 1, 0)
	before := r.slot()
	req := o.req(before, e, 2, 0, r.now)
	req.Epoch = o.epoch - 7
	r.k.Track(req, []byte("p-2-0"), []byte("local"), r.now)
	r.run(sec(1), time.Second)
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(12), time.Second)
	for _, slot := range o.ids("renew", false) {
		if slot != "1" {
			t.Errorf("a heartbeat names slot %s, want that of this boot alone", slot)
		}
	}
	if o.count("renew") == 0 {
		t.Error("no heartbeat")
	}
	r.wantSaid(now, "")
	r.run(sec(60), time.Second)
	r.wantSaid(before, "gone")
	r.k.Untrack(before, r.now)
	r.k.Untrack(now, r.now)
	r.run(sec(70), time.Second)
	r.wantRest()
}

func TestTheGaugesOfEnginesFollowTheirStates(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	want := func(what string, idle, loading, connected, broken int) {
		t.Helper()
		if g := r.k.Gauges(); g.Idle != idle || g.Loading != loading || g.Connected != connected || g.Broken != broken {
			t.Errorf("%s: %d idle, %d loading, %d connected, %d broken; want %d, %d, %d, %d",
				what, g.Idle, g.Loading, g.Connected, g.Broken, idle, loading, connected, broken)
		}
	}
	want("before", 0, 0, 0, 0)
	e := r.add(o)
	r.track(e, o, 1, 0) // the step meets the handle
	r.step(sec(1))
	want("added", 1, 0, 0, 0)
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(3), time.Second)
	want("loaded", 0, 0, 1, 0)
	r.hub.Kill("P")
	for n := 0; r.k.Gauges().Connected > 0 && n < 1000; n++ {
		r.step(r.now.Add(10 * time.Millisecond)) // until the next heartbeat finds it out
	}
	want("killed", 0, 0, 0, 1)
	must(t, r.k.RemoveEngine(e))
	r.run(sec(60), time.Second)
	want("removed", 0, 0, 0, 0)
}

func TestMessagesAboutEndsAreBoundedInAStepOverAllEngines(t *testing.T) {
	r := newRig(t, func(c *Config) { c.EndsStepMax = 2 })
	var owners []*owner
	var hs []record.Handle
	for i := range uint32(7) {
		o := r.owner("P"+string(rune('0'+i)), false)
		owners = append(owners, o)
		hs = append(hs, r.track(r.connect(o), o, i, 0))
	}
	r.run(sec(3), 100*time.Millisecond)
	for _, h := range hs {
		r.k.Untrack(h, r.now)
	}
	before, cut := r.k.Counters().EndBatches, r.k.Counters().EndsCut
	for _, want := range []uint64{2, 4, 6, 7, 7} {
		r.step(r.now.Add(time.Millisecond))
		if got := r.k.Counters().EndBatches - before; got != want {
			t.Fatalf("%d messages sent, want %d", got, want)
		}
	}
	if got := r.k.Counters().EndsCut - cut; got != 3 {
		t.Errorf("%d steps cut, want 3", got)
	}
	for _, o := range owners {
		if o.count("release") != 1 {
			t.Errorf("%s heard %d releases, want one", o.name, o.count("release"))
		}
	}
	r.wantRest()
}

func TestAnEngineThatHasToHearOfManyEndsLetsAnotherOneHearInBetween(t *testing.T) {
	r := newRig(t, func(c *Config) { c.EndsStepMax = 1 })
	a, b := r.owner("A", true), r.owner("B", true)
	e, f := r.connect(a), r.connect(b)
	var many []record.Handle
	for i := range 8 {
		many = append(many, r.trackStock(e, "a"+string(rune('0'+i))))
	}
	one := r.trackStock(f, "b")
	r.run(sec(3), 100*time.Millisecond)
	for _, h := range many {
		r.k.Untrack(h, r.now)
	}
	r.step(r.now.Add(time.Millisecond))
	r.k.Untrack(one, r.now)
	for range 2 {
		r.step(r.now.Add(time.Millisecond))
	}
	if a.count("done") != 2 || b.count("done") != 1 {
		t.Errorf("after three messages A has heard of %d ends and B of %d, want 2 and 1", a.count("done"), b.count("done"))
	}
}

func TestAMessageAboutEndsToManyRanksCountsForEach(t *testing.T) {
	r := newRig(t, func(c *Config) { c.EndsStepMax = 3; c.Shape = topology.Shape{TP: 1, PP: 1} })
	var hs []record.Handle
	for _, id := range []string{"P", "Q", "R"} {
		p := r.party(id, topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
		hs = append(hs, r.track(p.connect(), p.ranks[0], 1, 0))
	}
	r.run(sec(3), 100*time.Millisecond)
	for _, h := range hs {
		r.k.Untrack(h, r.now)
	}
	before := r.k.Counters().EndBatches
	for _, want := range []uint64{4, 6} { // two engines use the three up, since what is begun goes to all ranks
		r.step(r.now.Add(time.Millisecond))
		if got := r.k.Counters().EndBatches - before; got != want {
			t.Fatalf("%d messages sent, want %d", got, want)
		}
	}
}

func TestAnEngineWhoseRequestsAreBeingLostDelaysNoLoadOfAnother(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks = 2048 })
	a, b := r.owner("A", false), r.owner("B", false)
	e := r.connect(a)
	for slot := range uint32(1500) {
		r.track(e, a, slot, 0)
	}
	r.run(sec(3), 500*time.Millisecond)
	a.reboot()
	must(t, r.k.LoadHandshake(e, 0, a.handshake()))
	f := r.connect(b)
	h := r.track(f, b, 1, 0)
	for range 3 {
		r.step(r.now.Add(time.Millisecond))
	}
	if g := r.k.Gauges(); g.Connected != 1 || g.Loading != 1 || r.k.Counters().Lost == 1500 {
		t.Fatalf("%d connected, %d loading, %d lost; want B connected while A's requests are being lost", g.Connected, g.Loading, r.k.Counters().Lost)
	}
	r.run(sec(4), 10*time.Millisecond)
	if g := r.k.Gauges(); g.Connected != 2 {
		t.Errorf("%d engines connected, want both", g.Connected)
	}
	r.wantSaid(h, "")
}

func TestADeadEnginesHandshakeThatComesAgainSavesNoneOfWhatIsBeingLost(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks = 2048 })
	o := r.owner("P", false)
	e := r.connect(o)
	for slot := range uint32(1500) {
		r.track(e, o, slot, 0)
	}
	r.run(sec(3), 500*time.Millisecond)
	must(t, r.k.EngineDead(e))
	r.step(r.now.Add(time.Millisecond))
	if n := r.k.Counters().Lost; n == 0 || n == 1500 {
		t.Fatalf("%d requests lost after one step, want some of 1500", n)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake())) // of the same boot
	r.run(sec(4), 10*time.Millisecond)
	if n := r.k.Counters().Lost; n != 1500 {
		t.Errorf("%d requests lost, want all 1500", n)
	}
	h := r.track(e, o, 1, 0) // after all
	r.run(sec(10), 100*time.Millisecond)
	if n := r.k.Gauges().Connected; n != 1 {
		t.Errorf("%d engines connected, want the one that answers again", n)
	}
	r.wantSaid(h, "")
}

func TestAnEngineThatDrainsIsToldOnceAndIsNotUpOnceMore(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.run(sec(6), time.Second)
	r.wantEngine(e, "up")
	header, _ := record.Board(o.board)
	header.Version, header.Flags = record.BoardVersion, record.BoardDraining
	r.run(sec(40), time.Second)
	r.wantEngine(e, "up")
	drains := 0
	for _, ev := range r.events {
		if ev.Kind == record.EvEngineDrains && ev.Handle == e {
			drains++
		}
	}
	if c := r.k.Counters(); drains != 1 || c.Draining != 1 {
		t.Errorf("told %d times and counted %d, want once", drains, c.Draining)
	}
}
