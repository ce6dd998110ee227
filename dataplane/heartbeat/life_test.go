package heartbeat

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func TestADeadEngineLosesEverythingNowAndComesBackWithAHandshake(t *testing.T) {
	for _, again := range []string{"the same boot", "another boot"} {
		t.Run(again, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			a, b, c := r.track(e, o, 1, 0), r.track(e, o, 2, 0), r.track(e, o, 3, 0)
			r.run(sec(3), 100*time.Millisecond)
			r.d.HoldReads(true)
			r.read(b, record.Run{N: 1})
			r.step(sec(3.1))
			must(t, r.k.EngineDead(e))
			r.step(sec(3.2))
			r.step(sec(3.3))
			r.wantSaid(a, "gone")
			r.wantSaid(b, "failed(6)+held")
			r.wantSaid(c, "gone")
			r.wantEngine(e, "up down")
			d := r.track(e, o, 4, 0) // parameters of the boot that is dead
			r.step(sec(3.4))
			r.wantSaid(d, "gone")
			n := o.count("renew")
			r.d.HoldReads(false)
			r.run(sec(60), 100*time.Millisecond)
			if o.count("renew") != n || r.k.Counters().Loads != 1 {
				t.Errorf("%d heartbeats and %d loads of a dead engine", o.count("renew")-n, r.k.Counters().Loads-1)
			}
			r.wantSaid(b, "failed(6)+held back")
			if again == "another boot" {
				o.reboot()
			}
			must(t, r.k.LoadHandshake(e, 0, o.handshake()))
			r.step(sec(60.1))
			f := r.track(e, o, 5, 0)
			r.run(sec(70), 100*time.Millisecond)
			r.read(f, record.Run{N: 1})
			r.run(sec(71), 100*time.Millisecond)
			r.wantSaid(f, "done")
			r.wantEngine(e, "up down up")
			for _, h := range []record.Handle{a, c, d} {
				r.k.Untrack(h, r.now)
			}
			r.run(sec(90), 100*time.Millisecond)
			r.wantRest()
		})
	}
}

func TestWhatADeadEngineLosesIsBoundedInAStep(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks, c.EventsStepMax = 2000, 4000 })
	o := r.owner("P", false)
	e := r.connect(o)
	for i := range uint32(2000) {
		r.track(e, o, i, 0)
	}
	r.run(sec(2), 100*time.Millisecond)
	must(t, r.k.EngineDead(e))
	lost := r.k.Counters().Lost
	steps := 0
	for ; r.k.Counters().Lost-lost < 2000 && steps < 100; steps++ {
		before := r.k.Counters().Lost
		if r.step(r.now.Add(time.Millisecond)); r.k.Counters().Lost-before > looksStepMax/loseCost {
			t.Fatalf("%d requests lost in one step", r.k.Counters().Lost-before)
		}
		if r.k.NextDue(r.now) > r.now && r.k.Counters().Lost-lost < 2000 {
			t.Fatal("nothing is due while a walk is under way")
		}
	}
	if steps != 8 {
		t.Errorf("%d steps, want 8", steps)
	}
	// A request of the next boot that comes while the old ones are being lost is none of them.
	o.reboot()
	for i := range uint32(2000) {
		r.k.Untrack(record.NewHandle(i, 0), r.now)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(r.now.Add(time.Millisecond))
	for i := range uint32(1500) {
		r.track(e, o, i, 0)
	}
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(r.now.Add(time.Millisecond))
	h := r.track(e, o, 7, 0)
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	r.wantSaid(h, "")
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	r.wantSaid(h, "done")
}

func TestAStockRequestThatComesWhileThoseBeforeAreBeingLostIsNoneOfThem(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Tracks = 2000 })
	o := r.owner("P", true)
	e := r.connect(o)
	for i := range 1500 {
		r.trackStock(e, fmt.Sprint("old-", i))
	}
	r.run(sec(2), 100*time.Millisecond)
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(r.now.Add(time.Millisecond))
	h := r.trackStock(e, "new")
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	r.wantSaid(h, "")
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(time.Second), 10*time.Millisecond)
	r.wantSaid(h, "done")
}

func TestTwoProcessesThatClaimOneIdDoNotThrash(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.owner("P", false), r.owner("P#", false)
	b.engine = "P"
	e := r.connect(a)
	r.run(sec(1), 100*time.Millisecond)
	for i := range 100 { // their handshakes come in turn, one a second
		o := []*owner{b, a}[i%2]
		must(t, r.k.LoadHandshake(e, 0, o.handshake()))
		r.run(r.now.Add(time.Second), 100*time.Millisecond)
	}
	if c := r.k.Counters(); c.Loads > 6 || c.Loads < 3 || c.Flaps < 3 {
		t.Errorf("%d loads and %d changes put off in 100 s, want a change each 30 s at most", c.Loads, c.Flaps)
	}
	// The last word counts, if later: a is there again when its time has come.
	must(t, r.k.LoadHandshake(e, 0, a.handshake()))
	r.run(r.now.Add(40*time.Second), 100*time.Millisecond)
	h := r.track(e, a, 1, 0)
	r.run(r.now.Add(time.Second), 100*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(time.Second), 100*time.Millisecond)
	r.wantSaid(h, "done")
}

func TestRequestsAtAnEngineThatNeverAnsweredAreGoneWhenNoLeaseCanStand(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.add(o)
		track := func() record.Handle {
			if stock {
				return r.trackStock(e, fmt.Sprint("x", r.now))
			}
			return r.track(e, o, uint32(len(r.next)), 0)
		}
		a := track()
		r.run(sec(20), time.Second)
		b := track()
		r.run(sec(39), time.Second)
		r.wantSaid(a, "")
		r.run(sec(46), time.Second)
		r.wantSaid(a, "gone")
		r.run(sec(59), time.Second)
		r.wantSaid(b, "")
		r.run(sec(66), time.Second)
		r.wantSaid(b, "gone")
	}
}

// known is an offset of a clock that is 1000 s behind ours, good to 1 ms at the time of its sample.
func known(at clock.Instant) clock.Offset {
	var o clock.Offset
	ms := clock.Instant(time.Millisecond)
	o.Observe(clock.Sample{Sent: at - ms, Received: at + ms, Stamp: clock.RemoteInstant(at) - 1000e9})
	return o
}

func (r *rig) trackFixed(e uint64, o *owner, slot uint32, end clock.Instant) record.Handle {
	h := r.slot()
	req := o.req(h, e, slot, 0, r.now)
	req.ExpiresNs = uint64(end) - 1000e9
	if o.stock {
		req.Native = 0
	}
	r.k.Track(req, []byte(fmt.Sprint("f-", slot)), nil, r.now)
	return h
}

// trackUntil tracks the lease of one id whose end is given, or that heartbeats renew if it is 0.
func (r *rig) trackUntil(e uint64, o *owner, end clock.Instant) record.Handle {
	if end != 0 {
		return r.trackFixed(e, o, 1, end)
	}
	return r.trackStock(e, "f-1")
}

// timed is an owner that is connected and whose clock is known, which fixed leases need.
func (r *rig) timed(stock bool) (o *owner, e uint64) {
	r.t.Helper()
	o = r.owner("P", stock)
	e = r.connect(o)
	must(r.t, r.k.SetOffset(e, known(sec(0))))
	r.step(sec(0.1))
	return o, e
}

// interval 5, margin 2.51: the last moment at which a lease that ends at 100 may be used is 97.49, less 20 ms of drift.
func TestAFixedLeaseIsOverWhenTheConvertedEndLessErrorAndMarginHasCome(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o, e := r.timed(stock)
		a, b, c := r.trackFixed(e, o, 1, sec(100)), r.trackFixed(e, o, 2, sec(100)), r.trackFixed(e, o, 3, sec(100))
		r.run(sec(90), 500*time.Millisecond)
		for _, what := range []string{"renew", "HB"} {
			if o.count(what) != 0 {
				t.Errorf("stock %v: %d heartbeats for fixed leases", stock, o.count(what))
			}
		}
		if rows := r.k.Counters().Rows; !stock && (rows < 3*16 || rows > 3*20) || stock && rows != 0 {
			t.Errorf("stock %v: %d rows read in 90 s, want one an interval from our peers", stock, rows)
		}
		r.read(a, record.Run{N: 1})
		r.run(sec(96.5), 500*time.Millisecond)
		r.wantSaid(a, "done")
		end := "complete"
		if stock {
			end = "done"
		}
		if o.count(end) != 1 {
			t.Errorf("stock %v: %d completions, want 1", stock, o.count(end))
		}
		r.wantSaid(b, "")
		r.run(sec(98), 100*time.Millisecond)
		r.wantSaid(b, "gone")
		for i, ev := range r.events {
			if ev.Handle == uint64(b) && (r.times[i] < sec(97.3) || r.times[i] > sec(97.6)) {
				t.Errorf("told gone at %v, want 97.4", r.times[i].Sub(sec(0)))
			}
		}
		r.read(c, record.Run{N: 1})
		r.step(sec(98.1))
		if got := r.said(c); got != "gone failed(1)" && got != "gone failed(2)" {
			t.Errorf("stock %v: a read past the end: %q", stock, got)
		}
		r.k.Untrack(b, r.now)
		r.run(sec(110), 500*time.Millisecond)
		r.wantRest()
	}
}

// What the conversion may be wrong by is taken off the end, and what is left counts from when the request was tracked, not from when a
// rank that stood still heard of it. Margin 2.51.
func TestTheEndOfAFixedLeaseIsTheEarliestThatItCanBe(t *testing.T) {
	for _, tc := range []struct {
		name string
		over time.Duration
		say  func(r *rig, e uint64, req *record.TrackReq)
	}{
		{"a clock known to a second", 36490 * time.Millisecond, func(r *rig, e uint64, req *record.TrackReq) {
			var o clock.Offset
			o.Observe(clock.Sample{Sent: sec(-1), Received: sec(1), Stamp: clock.RemoteInstant(sec(0)) - 1000e9})
			must(t, r.k.SetOffset(e, o))
			r.step(sec(20.05))
			req.ExpiresNs = uint64(sec(40)) - 1000e9
		}},
		{"a rank that heard of it ten seconds late", 37490 * time.Millisecond, func(r *rig, _ uint64, req *record.TrackReq) {
			req.ExpiresNs, req.LeftNs, req.SaidNs = 1, uint64(30*time.Second), uint64(sec(10))
		}},
	} {
		r := newRig(t, nil)
		o := r.owner("P", false)
		e := r.connect(o)
		r.run(sec(20), 500*time.Millisecond)
		h := r.slot()
		req := o.req(h, e, 1, 0, r.now)
		tc.say(r, e, req)
		r.k.Track(req, []byte("f"), nil, r.now)
		r.run(sec(0).Add(tc.over-100*time.Millisecond), 50*time.Millisecond)
		if got := r.said(h); got != "" {
			t.Errorf("%s: %q before the end", tc.name, got)
		}
		r.run(sec(0).Add(tc.over+100*time.Millisecond), 50*time.Millisecond)
		if got := r.said(h); got != "gone" {
			t.Errorf("%s: %q at the end, want gone", tc.name, got)
		}
	}
}

func TestAReadUnderAFixedLeaseThatOutlivesItIsUnprovenFromAStockOwnerAndProvenByTheFenceFromOurs(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o, e := r.timed(stock)
		a := r.trackFixed(e, o, 1, sec(20))
		r.run(sec(16), 500*time.Millisecond)
		r.d.HoldReads(true)
		r.read(a, record.Run{N: 1})
		r.run(sec(19), 500*time.Millisecond)
		r.d.HoldReads(false)
		r.run(sec(21), 500*time.Millisecond)
		want := map[bool]string{false: "done", true: "failed(2)"}[stock]
		r.wantSaid(a, want)
		if !stock && o.count("complete") != 1 {
			t.Errorf("%d completions after the end by our clock, want 1: the owner may still hold it", o.count("complete"))
		}
		r.run(sec(60), 500*time.Millisecond)
		r.wantRest()
	}
}

func TestWithoutAnOffsetAFixedLeaseIsReadOnlyUnderAFence(t *testing.T) {
	for _, stock := range []bool{false, true} {
		r := newRig(t, nil)
		o := r.owner("P", stock)
		e := r.connect(o)
		r.step(sec(0.1))
		a, b := r.trackFixed(e, o, 1, sec(100)), r.trackFixed(e, o, 2, sec(100))
		r.run(sec(5), 500*time.Millisecond)
		r.read(a, record.Run{N: 1})
		r.step(sec(5.5))
		r.wantSaid(a, map[bool]string{false: "done", true: "failed(2)"}[stock])
		must(t, r.k.SetOffset(e, known(sec(5))))
		r.run(sec(20), 500*time.Millisecond)
		r.read(b, record.Run{N: 1})
		r.step(sec(20.5))
		r.wantSaid(b, "done")
		r.k.Untrack(a, r.now)
		r.run(sec(60), 500*time.Millisecond)
		r.wantRest()
	}
}

func TestAnEndThatTheHostHasConvertedNeedsNoOffset(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	r.step(sec(0.1))
	h := r.slot()
	req := o.req(h, e, 1, 0, r.now)
	req.Native, req.ExpiresNs, req.LeftNs = 0, 5, uint64(20*time.Second)
	r.k.Track(req, []byte("f"), nil, r.now)
	r.run(sec(17), 500*time.Millisecond)
	r.wantSaid(h, "")
	r.run(sec(18.1), 500*time.Millisecond)
	r.wantSaid(h, "gone")
}

func TestARankTakesTheHandlesOfItsHost(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines = 4 })
	o, q := r.owner("P", false), r.owner("Q", false)
	e := uint64(record.NewHandle(2, 7))
	must(t, r.k.AddEngineAt(e, EngineDesc{ID: "P", User: 3}))
	must(t, r.k.AddEngineAt(e, EngineDesc{ID: "P", User: 3})) // said again
	if got, err := r.k.AddEngine(EngineDesc{ID: "P"}); err != nil || got != e {
		t.Errorf("the same id: %#x, %v", got, err)
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	a := r.track(e, o, 1, 0)
	r.run(sec(1), 100*time.Millisecond)
	r.d.HoldReads(true)
	r.read(a, record.Run{N: 1})
	r.step(sec(1.1))
	// The place is used again while a transfer of its former use is open.
	later := uint64(record.NewHandle(2, 8))
	must(t, r.k.RemoveEngine(e))
	must(t, r.k.AddEngineAt(later, EngineDesc{ID: "Q", User: 4}))
	must(t, r.k.LoadHandshake(later, 0, q.handshake()))
	b := r.track(later, q, 1, 0)
	r.run(sec(3), 100*time.Millisecond)
	r.wantSaid(a, "failed(6)+held")
	r.wantSaid(b, "gone")
	r.d.HoldReads(false)
	r.run(sec(5), 100*time.Millisecond)
	c := r.track(later, q, 2, 0)
	r.run(sec(6), 100*time.Millisecond)
	r.read(c, record.Run{N: 1})
	r.run(sec(7), 100*time.Millisecond)
	r.wantSaid(c, "done")
	for _, bad := range []uint64{0, e, uint64(record.NewHandle(4, 0)), uint64(record.NewHandle(2, 1))} {
		if err := r.k.AddEngineAt(bad, EngineDesc{ID: "R"}); !errors.Is(err, ErrStale) {
			t.Errorf("handle %#x: %v", bad, err)
		}
	}
	r.k.Untrack(b, r.now)
	r.run(sec(20), 100*time.Millisecond)
	r.wantRest()
}

func TestSleepGivesUpWhatIsTrackedAndWakeIsAnotherEngine(t *testing.T) {
	r := newRig(t, nil)
	p := r.party("P", topology.Shape{TP: 2, PP: 1}, false, blockLen/2)
	e := p.connect()
	a, b := r.track(e, p.ranks[0], 1, 0), r.track(e, p.ranks[0], 2, 0)
	r.run(sec(2), 100*time.Millisecond)
	r.k.ReadPart(&record.Read{Track: b, Part: 0, Parts: 2, N: 1}, []record.Run{{N: 1}}, r.now)
	r.k.Sleep(r.now)
	r.step(sec(3))
	r.wantSaid(a, "gone")
	r.wantSaid(b, "failed(6)")
	r.wantEngine(e, "up down")
	for k, o := range p.ranks {
		if o.count("release") == 0 {
			t.Errorf("rank %d was not told", k)
		}
	}
	n := p.ranks[0].count("renew")
	for k := range p.ranks { // the agent goes, and with it what it had loaded
		must(t, r.d.Drop(transport.Peer(k+1)))
	}
	c := r.track(e, p.ranks[0], 3, 0)
	r.run(sec(20), 100*time.Millisecond)
	if p.ranks[0].count("renew") != n {
		t.Error("heartbeats while asleep")
	}
	r.k.Wake(99, r.now)
	r.run(sec(22), 100*time.Millisecond)
	r.wantEngine(e, "up down up")
	if last := p.ranks[1].heard[len(p.ranks[1].heard)-1]; last.what != "renew" || last.h.Epoch != 99 {
		t.Errorf("last heard: %+v, want a renew of epoch 99", last)
	}
	r.read(c, record.Run{N: 1})
	r.run(sec(24), 100*time.Millisecond)
	r.wantSaid(c, "done")
	r.k.Untrack(a, r.now)
	r.run(sec(40), 100*time.Millisecond)
	r.wantRest()
}

func TestAReadThatFindsNoRoomInTheTransportTimesOut(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(1), 100*time.Millisecond)
	for range 5000 {
		r.d.FailNext(loopback.OpPostRead, transport.ErrFull)
	}
	r.read(h, record.Run{N: 1})
	r.run(sec(119), time.Second)
	r.wantSaid(h, "risk") // its rows find none either
	r.run(sec(123), time.Second)
	r.wantSaid(h, "risk failed(4)")
	r.d.FailNone()
}

func TestDrainDoesNotWaitForPartsThatNeverCome(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(1), 100*time.Millisecond)
	r.k.ReadPart(&record.Read{Track: h, Part: 0, Parts: 2, N: 1}, []record.Run{{N: 1}}, r.now)
	r.k.Drain(r.now)
	r.run(sec(2), 100*time.Millisecond)
	r.wantSaid(h, "failed(6)")
	if n := r.k.DrainLeft(); n != 0 {
		t.Errorf("%d left to drain", n)
	}
}

func TestATrackThatIsSaidAgainChangesNothing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.k.Track(o.req(h, e, 1, 0, r.now), []byte("p-1-0"), nil, r.now)
	r.run(sec(2), 100*time.Millisecond)
	if c, g := r.k.Counters(), r.k.Gauges(); c.Repeats != 1 || c.Tracked != 1 || g.Tracked != 1 || g.Remotes != 1 {
		t.Errorf("%d repeats, %d tracked, gauges %+v", c.Repeats, c.Tracked, g)
	}
	r.k.Untrack(h, r.now)
	r.run(sec(20), 100*time.Millisecond)
	r.wantRest()
}

// A router that goes on naming an engine that was replaced: the address answers, and as another. Nothing better will be heard, so
// what was tracked meanwhile is lost at once and not when no lease can stand any more.
func TestAnEngineThatWasNeverMetAndIsSaidToBeDeadLosesWhatWaits(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	a, b, c := r.track(e, o, 1, 0), r.track(e, o, 2, 0), r.trackStock(e, "c")
	r.step(sec(1))
	r.read(b, record.Run{N: 1})
	r.step(sec(1.1))
	must(t, r.k.EngineDead(e))
	r.step(sec(1.2))
	r.step(sec(1.3))
	r.wantSaid(a, "gone") // shows C47.1
	r.wantSaid(b, "failed(6)")
	r.wantSaid(c, "gone")
	must(t, r.k.LoadHandshake(e, 0, o.handshake())) // it was at another address
	d := r.track(e, o, 4, 0)
	r.run(sec(3), 100*time.Millisecond)
	r.read(d, record.Run{N: 1})
	r.run(sec(4), 100*time.Millisecond)
	r.wantSaid(d, "done")
	for _, h := range []record.Handle{a, c} {
		r.k.Untrack(h, r.now)
	}
	r.run(sec(30), 100*time.Millisecond)
	r.wantRest()
}
