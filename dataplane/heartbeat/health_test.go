package heartbeat

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func (r *rig) wantFailing(failing, long int, oldest time.Duration) {
	r.t.Helper()
	if g := r.k.Gauges(); g.Failing != failing || g.FailingLong != long || time.Duration(g.FailingMs)*time.Millisecond != oldest {
		r.t.Errorf("at %v: %d failing, %d of them long, the oldest for %d ms; want %d, %d, %v", r.now.Sub(sec(0)), g.Failing, g.FailingLong, g.FailingMs, failing, long, oldest)
	}
}

// lastRound is when the last round of heartbeats to an engine began.
func (r *rig) lastRound(e uint64) clock.Instant {
	return r.k.engines[record.Handle(e).Slot()].lastRound
}

func TestADeadEngineCountsAsFailingFromItsFirstErrorOn(t *testing.T) {
	r := newRig(t, nil)
	o, live := r.owner("P", false), r.owner("Q", false)
	r.track(r.connect(o), o, 1, 0)
	r.track(r.connect(live), live, 1, 0)
	r.run(sec(9), time.Second)
	r.wantFailing(0, 0, 0)
	r.hub.Kill("P")
	for r.k.Gauges().Broken == 0 && r.now < sec(30) {
		r.step(r.now.Add(time.Second))
	}
	broke := r.now
	r.run(broke.Add(4*time.Second), time.Second)
	r.wantFailing(0, 0, 0) // it may be a reset
	r.run(broke.Add(10*time.Second), time.Second)
	r.wantFailing(1, 0, 10*time.Second) // shows C50.2
	r.run(broke.Add(29*time.Second), time.Second)
	r.wantFailing(1, 0, 29*time.Second)
	r.run(broke.Add(100*time.Second), time.Second)
	r.wantFailing(1, 1, 100*time.Second) // shows C50.2
	r.run(broke.Add(300*time.Second), time.Second)
	r.wantFailing(1, 0, 300*time.Second) // what was tracked there is lost, and nobody asks for it any more
}

// Only requests can say that an engine is missed: one that was drained and closed stays known for an hour.
func TestAnEngineThatNobodyMissesIsNoLongTrouble(t *testing.T) {
	const never = 1000
	for _, tc := range []struct {
		name string
		came int   // s after the engine's end at which a request is tracked there
		went int   // and at which it is untracked
		why  Over  // of the end
		long []int // what counts after 25, 35, 100 and 200 s
	}{
		{name: "nothing was ever tracked there", came: never, went: never, long: []int{0, 0, 0, 0}},
		{name: "what was tracked there had ended", came: -5, went: -1, long: []int{0, 0, 0, 0}},
		{name: "a request was there and was lost with it", came: -5, went: 1, long: []int{0, 1, 1, 0}},
		{name: "a request was there and nobody untracks it", came: -5, went: never, long: []int{0, 1, 1, 0}},
		{name: "a request came and gave up", came: 1, went: 20, long: []int{0, 1, 1, 0}},
		{name: "a request came when it was long gone", came: 110, went: 120, long: []int{0, 0, 0, 1}},
		{name: "it withdrew, and a request was lost with it", came: -5, went: 1, why: Withdrew, long: []int{0, 0, 0, 0}},
		{name: "it withdrew, and is named all the same", came: 1, went: 20, why: Withdrew, long: []int{0, 1, 1, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o, live := r.owner("P", false), r.owner("Q", false)
			e := r.connect(o)
			r.track(r.connect(live), live, 1, 0)
			r.run(sec(20), time.Second)
			died, h := r.now.Add(5*time.Second), record.Handle(0)
			var long []int
			for s := -5; s <= 200; s++ {
				r.step(died.Add(time.Duration(s) * time.Second))
				if s == 0 {
					r.hub.Kill("P")
					must(t, r.k.EngineOver(e, tc.why))
				}
				if s == tc.came {
					h = r.track(e, o, 1, 0)
				}
				if s == tc.went {
					r.k.Untrack(h, r.now)
				}
				switch s {
				case 25, 35, 100, 200:
					g := r.k.Gauges()
					long = append(long, g.FailingLong)
					if failing := g.Failing; failing != 1 || s > 30 && g.FailingLong+g.FailingUnused != 1 {
						t.Errorf("after %d s: %d failing, %d of them long, %d unused", s, failing, g.FailingLong, g.FailingUnused)
					}
				}
			}
			if diff := cmp.Diff(tc.long, long); diff != "" {
				t.Errorf("after 25, 35, 100 and 200 s these count (-want +got):\n%s", diff)
			}
		})
	}
}

// Who dies takes requests along that end before its trouble has lasted: what they ended in is missed all the same.
func TestAnEngineWhoseRequestsEndedInTheFirstMomentOfItsTroubleIsMissed(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(t *testing.T, r *rig, e uint64, h record.Handle)
		want int // of the engines that fail for long, 40 and 140 s after the death
	}{
		{name: "a read fails", want: 1, end: func(t *testing.T, r *rig, _ uint64, h record.Handle) {
			r.hub.Kill("P")
			r.read(h, record.Run{N: 1})
			r.step(r.now.Add(10 * time.Millisecond))
			if got := r.said(h); got != "failed(3)" {
				t.Fatalf("events: %q", got)
			}
		}},
		{name: "a read fails, and the engine had withdrawn", want: 0, end: func(t *testing.T, r *rig, e uint64, h record.Handle) {
			r.hub.Kill("P")
			r.read(h, record.Run{N: 1})
			r.step(r.now.Add(10 * time.Millisecond))
			if got := r.said(h); got != "failed(3)" {
				t.Fatalf("events: %q", got)
			}
			must(t, r.k.EngineOver(e, Withdrew))
		}},
		{name: "it is untracked as soon as trouble is seen", want: 1, end: func(_ *testing.T, r *rig, _ uint64, h record.Handle) {
			r.hub.Kill("P")
			for r.k.Gauges().Broken == 0 {
				r.step(r.now.Add(100 * time.Millisecond))
			}
			r.k.Untrack(h, r.now)
		}},
		{name: "it comes back, and is closed when nobody needs it", want: 0, end: func(t *testing.T, r *rig, e uint64, h record.Handle) {
			r.hub.Cut("D", "P")
			for r.k.Gauges().Broken == 0 {
				r.step(r.now.Add(100 * time.Millisecond))
			}
			r.k.Untrack(h, r.now)
			r.run(r.now.Add(10*time.Second), 100*time.Millisecond)
			if g := r.k.Gauges(); g.Connected != 2 || g.Failing != 0 {
				t.Fatalf("%d connected, %d failing", g.Connected, g.Failing)
			}
			r.hub.Kill("P")
			must(t, r.k.EngineDead(e))
		}},
		{name: "it is read before", want: 0, end: func(t *testing.T, r *rig, e uint64, h record.Handle) {
			r.read(h, record.Run{N: 1})
			r.run(r.now.Add(time.Second), 10*time.Millisecond)
			if got := r.said(h); got != "done" {
				t.Fatalf("events: %q", got)
			}
			r.hub.Kill("P")
			must(t, r.k.EngineDead(e))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o, live := r.owner("P", true), r.owner("Q", false)
			e := r.connect(o)
			r.track(r.connect(live), live, 1, 0)
			h := r.trackStock(e, "a")
			r.run(sec(20), time.Second)
			tc.end(t, r, e, h)
			died := r.now
			for _, after := range []time.Duration{40 * time.Second, 140 * time.Second} { // alerts wait a minute
				r.run(died.Add(after), time.Second)
				if g := r.k.Gauges(); g.FailingLong != tc.want || g.FailingUnused != 1-tc.want {
					t.Errorf("after %v: %d long, %d unused; want %d long", after, g.FailingLong, g.FailingUnused, tc.want)
				}
			}
		})
	}
}

func TestAnEngineThatNeverAnsweredCountsAsFailing(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	r.step(sec(1))
	e := r.add(o)
	r.track(e, o, 1, 0)
	r.run(sec(5), time.Second)
	r.wantFailing(0, 0, 0)
	r.run(sec(20), time.Second)
	r.wantFailing(1, 0, 19*time.Second)
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(sec(300), time.Second)
	r.wantFailing(0, 0, 0)
}

func TestAnEngineWhoseReadsFailInARowCountsAsFailingAlthoughItAnswers(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	r.trackStock(e, "waits")
	r.run(sec(3), time.Second)
	fail := func(id string) {
		h := r.trackStock(e, id)
		r.run(r.now.Add(2*time.Second), time.Second)
		for r.reads.Open() > 0 { // a look at the engine
			r.step(r.now.Add(100 * time.Millisecond))
		}
		r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(40*time.Second), time.Second) // it is healed, and heard
		if got := r.said(h); got != "failed(3)+held back" {
			t.Fatalf("events: %q", got)
		}
	}
	fail("a")
	first := r.now.Add(-38 * time.Second) // a little after it was seen to fail
	fail("b")
	r.wantFailing(0, 0, 0)
	fail("c")
	if g := r.k.Gauges(); g.Failing != 1 || g.Connected != 1 || time.Duration(g.FailingMs)*time.Millisecond < r.now.Sub(first) { // shows C33.2
		t.Errorf("%d failing for %d ms, %d connected after three reads that failed", g.Failing, g.FailingMs, g.Connected)
	}
	h := r.trackStock(e, "d")
	r.run(r.now.Add(2*time.Second), time.Second)
	r.read(h, record.Run{N: 1})
	r.run(r.now.Add(2*time.Second), time.Second)
	r.wantSaid(h, "done")
	r.wantFailing(0, 0, 0)
}

// A device or memory of ours that fails reads takes no engine down.
func TestReadsThatFailForAReasonOfThisSideSpeakAgainstNoEngine(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(2), time.Second)
	breaks := r.k.Counters().Disconnects
	for n := range uint32(3 * badReadsMax) {
		h := r.track(e, o, n, 0)
		r.run(r.now.Add(2*time.Second), time.Second)
		for range 8 { // rows and probes as well as the data
			r.d.FailNext(loopback.OpPostRead, transport.ErrInvalid)
		}
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(30*time.Second), time.Second)
		r.d.FailNone()
		if got := r.said(h); got != "failed(3)" {
			t.Fatalf("events: %q", got)
		}
	}
	if n := r.k.Counters().Disconnects - breaks; n != 0 || r.reads.Counters.FailedHere < 3*badReadsMax {
		t.Errorf("%d connections broken by %d failures of this side", n, r.reads.Counters.FailedHere)
	}
	r.wantFailing(0, 0, 0)
}

// An engine whose map names memory that it has not registered answers, and each read of it fails: that is its trouble, not ours, and none
// of the connection.
func TestAnEngineThatNamesWhatItHasNotRegisteredFails(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	m := o.handshake()
	m.BaseAddrs[0] += 1 << 40
	must(t, r.k.LoadHandshake(e, 0, m))
	r.run(sec(2), time.Second)
	for n := range uint32(badReadsMax) {
		h := r.track(e, o, n, 0)
		r.run(r.now.Add(2*time.Second), time.Second)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(2*time.Second), time.Second)
		if got := r.said(h); got != "failed(3)" {
			t.Fatalf("events: %q", got)
		}
	}
	if n := r.k.Counters().Disconnects; n != 0 || r.reads.Counters.FailedHere != 0 || r.k.Gauges().Failing != 1 {
		t.Errorf("%d connections broken, %d failures of this side, %d engines failing", n, r.reads.Counters.FailedHere, r.k.Gauges().Failing)
	}
}

// It answers after each of them: that ends no trouble of reads.
func TestAnEngineWhoseReadsFailInARowIsMissedAlthoughItAnswers(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	for n := range badReadsMax {
		h := r.trackStock(e, fmt.Sprint(n))
		r.run(r.now.Add(2*time.Second), time.Second)
		for r.reads.Open() > 0 { // a look at the engine
			r.step(r.now.Add(100 * time.Millisecond))
		}
		r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(40*time.Second), time.Second) // it is healed, and heard
		if got := r.said(h); got != "failed(3)+held back" {
			t.Fatalf("events: %q", got)
		}
	}
	if g := r.k.Gauges(); g.Connected != 1 || g.FailingLong != 1 {
		t.Errorf("%d connected, %d of them failing for long, %d unused", g.Connected, g.FailingLong, g.FailingUnused)
	}
}

func TestReadsThatFailedAtTheBootBeforeDoNotCountAgainstTheNext(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.run(sec(2), time.Second)
	for n := range uint32(badReadsMax) {
		h := r.track(e, o, n, 0)
		r.run(r.now.Add(2*time.Second), time.Second)
		for r.reads.Open() > 0 { // a look at the engine
			r.step(r.now.Add(100 * time.Millisecond))
		}
		r.d.FailNext(loopback.OpRead, transport.ErrInvalid)
		r.read(h, record.Run{N: 1})
		r.run(r.now.Add(40*time.Second), time.Second)
	}
	if g := r.k.Gauges(); g.Failing != 1 {
		t.Fatalf("%d failing after reads that failed", g.Failing)
	}
	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.run(r.now.Add(40*time.Second), time.Second)
	r.wantFailing(0, 0, 0)
}

// While our own memory is not registered nothing can be reached: that says nothing about the engines, however long it lasts.
func TestNoEngineCountsAsFailingForASleepOfOurs(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	h := r.track(e, o, 2, 0)
	r.run(sec(2), 100*time.Millisecond)
	r.k.ReadPart(&record.Read{Track: h, Part: 0, Parts: 2, N: 1}, []record.Run{{N: 1}}, r.now)
	r.k.Sleep(r.now)
	must(t, r.d.Drop(1))
	for range 10 {
		r.run(r.now.Add(10*time.Second), time.Second)
		r.wantFailing(0, 0, 0)
	}
	r.wantSaid(h, "failed(6)")
	r.k.Wake(99, r.now)
	r.track(e, o, 3, 0)
	r.step(r.now.Add(time.Millisecond))
	r.wantFailing(0, 0, 0)
	r.run(r.now.Add(2*time.Second), 100*time.Millisecond)
	var shown EngineShown
	if !r.k.ShowEngine(0, &shown) || shown.State != Connected || shown.Connect > time.Second {
		t.Errorf("%v, connected in %v: a sleep is no part of that", shown.State, shown.Connect)
	}
	r.hub.Kill("P")
	must(t, r.k.EngineDead(e))
	r.run(r.now.Add(40*time.Second), time.Second)
	if g := r.k.Gauges(); g.Failing != 1 || g.FailingLong != 1 {
		t.Errorf("after the sleep a dead engine: %d failing, %d of them long", g.Failing, g.FailingLong)
	}
}

// A network that swallows what is sent breaks no connection for minutes: only what does not answer says it.
func TestAnEngineThatAnswersNothingFailsThoughItsConnectionStands(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stock  bool
		breaks bool // its connection breaks in the end, else it answers again
	}{
		{name: "ours"}, {name: "stock", stock: true},
		{name: "ours, and then its connection breaks", breaks: true}, {name: "stock, and then its connection breaks", stock: true, breaks: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o, live := r.owner("P", tc.stock), r.owner("Q", false)
			e := r.connect(o)
			h := r.trackOf(e, o)
			r.track(r.connect(live), live, 1, 0)
			r.run(sec(20), time.Second)
			r.wantFailing(0, 0, 0)
			r.hub.Stop("P")
			asked := r.lastRound(e) // the one after it is the first that is not answered
			for r.step(r.now.Add(time.Second)); r.lastRound(e) == asked; r.step(r.now.Add(time.Second)) {
			}
			asked = r.lastRound(e)
			r.run(asked.Add(4*time.Second), time.Second)
			r.wantFailing(0, 0, 0) // it may answer late
			r.run(asked.Add(10*time.Second), time.Second)
			r.wantFailing(1, 0, 10*time.Second) // shows C50.2
			r.run(asked.Add(29*time.Second), time.Second)
			r.wantFailing(1, 0, 29*time.Second)
			r.run(asked.Add(100*time.Second), time.Second)
			r.wantFailing(1, 1, 100*time.Second) // shows C50.2
			if g := r.k.Gauges(); g.Connected != 2 {
				t.Errorf("%d engines are connected, and the transport has said nothing", g.Connected)
			}
			r.k.Untrack(h, r.now) // given up in its trouble: it is missed for a while
			r.run(asked.Add(110*time.Second), time.Second)
			r.wantFailing(1, 1, 110*time.Second)
			if tc.breaks { // the transport, or read_timeout, ends what was asked
				r.run(asked.Add(200*time.Second), time.Second)
				r.wantFailing(1, 1, 200*time.Second)
				r.run(asked.Add(300*time.Second), time.Second)
				r.wantFailing(1, 0, 300*time.Second)
				return
			}
			r.hub.Resume("P")
			r.run(r.now.Add(10*time.Second), time.Second)
			r.wantFailing(0, 0, 0) // without a request, too
		})
	}
}

// What an engine answers to a request that has ended meanwhile is a sign of its life all the same.
func TestAnAnswerThatNobodyWaitsForIsASignOfLife(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	place := &r.k.engines[record.Handle(e).Slot()]
	for (len(place.links) == 0 || place.links[0].askedAt == 0) && r.now < sec(30) {
		r.step(r.now.Add(time.Second))
	}
	if len(place.links) == 0 || place.links[0].askedAt == 0 {
		t.Fatal("its row is not read")
	}
	m := r.k.requests[h.Slot()].remote
	r.k.remotes.all[m].serial++ // as if its place had been given to another request of that engine
	r.step(r.now.Add(time.Second))
	if place.links[0].askedAt != 0 {
		t.Error("an engine that has answered counts as silent")
	}
}
