package heartbeat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// C08, C11: ids on the wire are the owner's.
func TestEveryMessageCarriesTheOwnersIdAndNeverOurs(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	a, b := r.trackStock(e, "a~77"), r.trackStock(e, "b~78")
	r.run(sec(49), time.Second)
	r.read(a, record.Run{N: 1})
	r.k.Untrack(b, r.now)
	r.run(sec(51), time.Second)
	for _, m := range o.heard {
		for _, id := range m.ids {
			if id != "a~77" && id != "b~78" { // shows C08.1, C11.1
				t.Errorf("%s names %q", m.what, id)
			}
		}
	}
	if n := o.count("HB"); n < 9 || n > 11 {
		t.Errorf("%d heartbeats in 49 s, want 10 give or take one", n)
	}
	if n := o.count("done"); n != 2 {
		t.Errorf("%d completions, want one for the read and one for the untrack", n)
	}
	r.wantRest()
}

// C10
func TestHeartbeatsAreSplitSoThatNoneExceedsTheLimit(t *testing.T) {
	for _, tc := range []struct {
		name      string
		stock     bool
		requests  int
		perRound  int
		eachBytes int
	}{
		{"native: 200 requests of 16 bytes in messages of 1,040 bytes", false, 200, 4, 16},
		{"stock: 200 ids of 36 bytes in messages of 1,040 bytes", true, 200, 8, 36},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.BatchBytesMax = batchBytesLeast })
			o := r.owner("P", tc.stock)
			e := r.connect(o)
			want := map[string]bool{}
			for i := range tc.requests {
				if tc.stock {
					id := fmt.Sprintf("%036d", i)
					r.trackStock(e, id)
					want[id] = true
				} else {
					r.track(e, o, uint32(i), 0)
					want[fmt.Sprint(i)] = true
				}
			}
			r.run(sec(4), time.Second)
			got, messages := map[string]bool{}, 0
			for _, m := range o.heard {
				messages++
				if m.size > batchBytesLeast { // shows C10.1
					t.Errorf("a message of %d bytes", m.size)
				}
				for _, id := range m.ids {
					if got[id] {
						t.Errorf("%s is named twice in a round", id)
					}
					got[id] = true
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("named (-want +got):\n%s", diff)
			}
			if messages != tc.perRound {
				t.Errorf("%d messages, want %d", messages, tc.perRound)
			}
		})
	}
}

// C10: an id that no message can carry is counted, never sent.
func TestAnIdThatTheStockFormatCannotCarryIsCountedAndNeverSent(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	comma := r.trackStock(e, "a,b")
	r.trackStock(e, "c")
	r.run(sec(20), time.Second)
	for _, id := range o.ids("HB", false) {
		if id != "c" {
			t.Errorf("a heartbeat names %q", id)
		}
	}
	if n := r.k.Counters().BadIDs; n != 1 { // shows S04.2, C10.3
		t.Errorf("%d bad ids counted, want 1", n)
	}
	r.k.Untrack(comma, r.now)
	r.step(sec(21))
	if diff := cmp.Diff([]string{"a,b"}, o.ids("done", false)); diff != "" {
		t.Errorf("completions (-want +got):\n%s", diff)
	}
}

func TestTheFirstHeartbeatLeavesInTheStepAfterTheHandshake(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.add(o)
	h := r.track(e, o, 3, 0)
	r.run(sec(2), 100*time.Millisecond)
	if len(o.heard) != 0 {
		t.Fatalf("%d messages before the handshake", len(o.heard))
	}
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.step(sec(2.1))
	if o.count("renew") != 0 || r.k.View(e).State != Connected {
		t.Fatalf("after the step that loads: %d heartbeats, %v", o.count("renew"), r.k.View(e).State)
	}
	r.step(sec(2.2))
	if o.count("renew") != 1 { // shows S10.1
		t.Errorf("%d heartbeats in the step after it, want 1", o.count("renew"))
	}
	r.wantEngine(e, "up")
	r.wantSaid(h, "")
}

// Demo d: one batch an interval, however many wait.
func TestTwoHundredWaitingRequestsCostOneBatchAnInterval(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.step(sec(0.01))
	for i := range 200 {
		r.track(e, o, uint32(i), 0)
		r.step(r.now.Add(10 * time.Millisecond))
	}
	start := r.now
	before := len(o.heard)
	r.run(start.Add(60*time.Second), 10*time.Millisecond)
	if n := len(o.heard) - before; n < 12 || n > 13 {
		t.Errorf("%d messages in 60 s, want 12 or 13", n)
	}
	for _, m := range o.heard[before:] {
		if m.n != 200 {
			t.Errorf("a batch names %d, want 200", m.n)
		}
	}
}

// S06
func TestRequestsThatShareARemoteIdAreCountedAndTheLastOneEndsIt(t *testing.T) {
	for _, stock := range []bool{false, true} {
		t.Run(map[bool]string{false: "native", true: "stock"}[stock], func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", stock)
			e := r.connect(o)
			track := func() record.Handle {
				if stock {
					return r.trackStock(e, "x")
				}
				return r.track(e, o, 5, 0)
			}
			a, b := track(), track()
			r.run(sec(6), time.Second)
			r.k.Untrack(a, r.now)
			r.run(sec(20), time.Second)
			for _, m := range o.heard {
				if m.n != 1 {
					t.Errorf("a %s names %d", m.what, m.n)
				}
			}
			if n := o.count("release") + o.count("done"); n != 0 { // shows S06.1
				t.Errorf("%d messages of an end while a request is left", n)
			}
			r.read(b, record.Run{Local: 1, Remote: 2, N: 3})
			r.run(sec(22), time.Second)
			r.wantSaid(b, "done")
			if n := o.count("complete") + o.count("done"); n != 1 {
				t.Errorf("%d completions, want 1", n)
			}
			r.wantRest()
		})
	}
}

func TestTheLastOfSharedRequestsCompletesIfAnyOfThemHasReadAndReleasesElse(t *testing.T) {
	for _, tc := range []struct {
		name string
		read bool
		want string
	}{
		{"the first has read, the second is untracked: completion", true, "complete"},
		{"both are untracked: release", false, "release"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", false)
			e := r.connect(o)
			a, b := r.track(e, o, 5, 0), r.track(e, o, 5, 0)
			r.run(sec(2), time.Second)
			if tc.read {
				r.read(a, record.Run{N: 1})
			} else {
				r.k.Untrack(a, r.now)
			}
			r.run(sec(3), time.Second)
			r.k.Untrack(b, r.now)
			r.run(sec(4), time.Second)
			if last := o.heard[len(o.heard)-1]; last.what != tc.want {
				t.Errorf("last message is %s, want %s", last.what, tc.want)
			}
			r.wantRest()
		})
	}
}

func TestAStepNeverWaitsForTheRegistry(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	r.track(e, o, 1, 0)
	r.k.reg.mu.Lock()
	r.run(sec(3), time.Second) // a deadlock if it did
	r.k.reg.mu.Unlock()
	if c := r.k.Counters(); c.RegistryBusy != 3 || c.Loads != 0 {
		t.Errorf("busy %d times, %d loads; want 3, 0", c.RegistryBusy, c.Loads)
	}
	r.run(sec(5), time.Second)
	if o.count("renew") != 1 {
		t.Errorf("%d heartbeats after it was let go, want 1", o.count("renew"))
	}
}

// A stopped peer takes what it is sent and reads nothing.
func TestWhatASilentPeerHasNotHeardIsBoundedInBytes(t *testing.T) {
	for _, stock := range []bool{false, true} {
		t.Run(map[bool]string{false: "native, rows unanswered", true: "stock, probe unanswered"}[stock], func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.UnheardBytesMax = 40 << 10 })
			o := r.owner("P", stock)
			e := r.connect(o)
			if stock {
				r.trackStock(e, "a")
			} else {
				r.track(e, o, 1, 0)
			}
			r.run(sec(11), time.Second)
			if c := r.k.Counters(); c.BeatsDropped != 0 || r.k.Gauges().UnheardMax > 10<<10 {
				t.Fatalf("%d dropped, %d bytes unheard of a peer that answers", c.BeatsDropped, r.k.Gauges().UnheardMax)
			}
			r.hub.Stop("P")
			before := r.k.Counters().BeatBatches
			r.run(sec(110), time.Second)
			sent := r.k.Counters().BeatBatches - before
			if c := r.k.Counters(); sent < 8 || sent > 10 || c.BeatsDropped < 5 {
				t.Errorf("%d sent and %d dropped in 100 s, want about 9 (40 KiB) and the rest", sent, c.BeatsDropped)
			}
			r.hub.Resume("P")
			n := o.count("renew") + o.count("HB")
			r.run(sec(121), time.Second)
			if o.count("renew")+o.count("HB") <= n {
				t.Error("no heartbeat after the peer went on")
			}
		})
	}
}

func TestAnEngineWithoutRequestsIsLeftAlone(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	h := r.track(e, o, 1, 0)
	r.run(sec(12), time.Second)
	r.k.Untrack(h, r.now)
	r.run(sec(18), time.Second)
	n := len(o.heard)
	r.run(sec(100), time.Second)
	if len(o.heard) != n || r.k.NextDue(r.now) != clock.Never {
		t.Errorf("%d messages with nothing tracked, next due %v", len(o.heard)-n, r.k.NextDue(r.now))
	}
	r.track(e, o, 2, 0)
	r.step(sec(101))
	if last := o.heard[len(o.heard)-1]; last.what != "renew" || last.at != sec(101) {
		t.Errorf("last message %s at %v, want a heartbeat in the next step", last.what, last.at)
	}
}

func TestMessagesSayWhoSpeaks(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	a, b := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(2), time.Second)
	r.read(a, record.Run{N: 1})
	r.k.Untrack(b, r.now)
	r.run(sec(4), time.Second)
	want := map[string]wire.Header{
		"renew":    {Kind: wire.Renew, Engine: wire.EngineHash([]byte("D")), Epoch: 77, Count: 2, Flags: 1}, // the hello was number 0
		"complete": {Kind: wire.Complete, Engine: wire.EngineHash([]byte("D")), Epoch: 77, Count: 1, Flags: 2, Readers: 1},
		"release":  {Kind: wire.Release, Engine: wire.EngineHash([]byte("D")), Epoch: 77, Count: 1, Flags: 3},
	}
	got := map[string]wire.Header{}
	for _, m := range o.heard {
		got[m.what] = m.h
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

// A round that is begun for an engine that is not connected leaves a trace: its next one is put off for ever.
func TestAStepLooksOnlyAtTheEnginesThatAreDue(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines = 128 })
	for i := range 100 {
		o := r.owner(fmt.Sprint("P", i), false)
		r.track(r.connect(o), o, 1, 0)
	}
	r.run(sec(7), 10*time.Millisecond)
	due, at := r.k.beats.First()
	if at <= r.now {
		t.Fatalf("an engine is due at %v, now is %v", at, r.now)
	}
	r.run(at-1, 10*time.Millisecond)
	next, later := 0, map[uint32]clock.Instant{}
	for i := range r.k.engines {
		switch when := r.k.beats.At(uint32(i)); {
		case when == at:
			next++
		case when != clock.Never:
			later[uint32(i)] = when
			r.k.engines[i].state = Broken
		}
	}
	before := r.k.Counters().BeatBatches
	r.step(at)
	if n := r.k.Counters().BeatBatches - before; n != uint64(next) || len(later) < 50 {
		t.Errorf("%d batches to %d engines that were due, %d were not", n, next, len(later))
	}
	for i, when := range later {
		if got := r.k.beats.At(i); got != when { // shows S23.1
			t.Errorf("engine %d, which is due at %v, was looked at with engine %d: now due at %v", i, when, due, got)
		}
	}
}

func TestRoundsOfManyEnginesAreCutIntoStepsAndAllLeaveWithinOneFifthOfAnInterval(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Engines, c.BatchesStepMax = 128, 4 })
	for i := range 100 {
		o := r.owner(fmt.Sprint("P", i), false)
		r.track(r.connect(o), o, 1, 0)
	}
	r.run(sec(4), 10*time.Millisecond)
	for k, o := range r.owners {
		if o.count("renew") != 1 {
			t.Fatalf("engine %d heard %d heartbeats by 4 s", k, o.count("renew"))
		}
	}
	most := 0
	for r.now < sec(60) {
		before := r.k.Counters().BeatBatches
		r.step(r.now.Add(10 * time.Millisecond))
		most = max(most, int(r.k.Counters().BeatBatches-before))
	}
	if most > 4 { // shows S23.1
		t.Errorf("%d batches in one step, want at most 4", most)
	}
	for k, o := range r.owners {
		last := o.heard[0].at
		for _, m := range o.heard[1:] {
			if m.what != "renew" {
				continue
			}
			if gap := m.at.Sub(last); gap > 6*time.Second {
				t.Errorf("engine %d: %v between heartbeats, want at most 1.2 intervals", k, gap)
			}
			last = m.at
		}
	}
}

func TestLongIdsHaveTheirOwnRoomAndRunningOutOfItFailsSafe(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LongIDs = 1 })
	o := r.owner("P", true)
	e := r.connect(o)
	long := strings.Repeat("x", 1000)
	a := r.trackStock(e, long+"a")
	b := r.trackStock(e, long+"b")
	r.run(sec(2), time.Second)
	if diff := cmp.Diff([]string{long + "a"}, o.ids("HB", false)); diff != "" {
		t.Errorf("named (-want +got):\n%s", diff)
	}
	r.wantSaid(b, "gone")
	r.read(b, record.Run{N: 1})
	r.k.Untrack(a, r.now)
	r.run(sec(4), time.Second)
	r.wantSaid(b, "gone failed(2)")
	c := r.trackStock(e, long+"c")
	r.run(sec(10), time.Second)
	r.wantSaid(c, "")
	r.k.Untrack(c, r.now)
	r.run(sec(12), time.Second)
	r.wantRest()
}

// An id that cannot be sent is set aside while the message is built, and its chunk may go to another engine before the
// retry: no owner may hear of another one's requests.
func TestAHeartbeatThatFoundNoRoomIsBuiltAnewFromItsOwnEngine(t *testing.T) {
	r := newRig(t, nil)
	a, b := r.owner("A", true), r.owner("B", true)
	ea, eb := r.connect(a), r.connect(b)
	r.step(sec(0.01))
	r.step(sec(0.02))
	for i := range 32 { // a chunk, and the comma alone in the next one
		r.trackStock(ea, fmt.Sprintf("a%d", i))
	}
	r.trackStock(ea, "x,y")
	r.d.FailNext(loopback.OpSend, transport.ErrFull)
	r.step(sec(0.03))
	r.trackStock(eb, "b0")
	r.run(sec(4), 10*time.Millisecond)
	for _, id := range a.ids("HB", false) {
		if id == "b0" {
			t.Error("A was told of B's request")
		}
	}
	if n := len(a.ids("HB", false)); n != 32 {
		t.Errorf("A was told of %d requests, want its 32", n)
	}
}
