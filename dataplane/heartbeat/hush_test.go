package heartbeat

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// A connection that breaks is the first sign of an engine that is closed, sleeps or has died. Its death wire says which, and that alone is
// told of it.
func TestABreakIsSaidUnlessItsEngineIsToldToBeOver(t *testing.T) {
	const wait = 3 * time.Second
	for _, tc := range []struct {
		name  string
		stock bool
		wait  time.Duration
		then  func(r *rig, e uint64) // when the connection breaks, and what comes to it breaks, too
		soon  bool                   // it is said at once
		late  bool                   // and not before its time
		over  log.Kind
	}{
		{name: "no word comes", wait: wait, late: true},
		{name: "it is closed", wait: wait, then: func(r *rig, e uint64) { must(r.t, r.k.EngineOver(e, Withdrew)) }, over: log.EngineWithdrawn},
		{name: "it has died", wait: wait, then: func(r *rig, e uint64) { must(r.t, r.k.EngineOver(e, Died)) }, over: log.EngineDead},
		{name: "another boot answers", wait: wait, then: func(r *rig, e uint64) {
			o := r.owners[0]
			o.reboot()
			must(r.t, r.k.LoadHandshake(e, 0, o.handshake()))
		}, over: log.EngineReplaced},
		{name: "it is removed", wait: wait, then: func(r *rig, e uint64) { must(r.t, r.k.RemoveEngine(e)) }},
		{name: "we sleep ourselves", wait: wait, then: func(r *rig, _ uint64) { r.k.Sleep(r.now) }},
		{name: "a stock engine has no wire", stock: true, wait: wait, soon: true},
		{name: "there are no wires", soon: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.WordWait = tc.wait })
			o := r.owner("P", tc.stock)
			e := r.connect(o)
			if tc.stock {
				r.trackStock(e, "x")
			} else {
				r.track(e, o, 1, 0)
			}
			r.run(sec(6), 100*time.Millisecond)
			r.hub.Kill("P")
			for r.k.View(e).State != Broken {
				r.step(r.now.Add(10 * time.Millisecond))
			}
			broke := r.now
			until := func(at clock.Instant) { // every load fails
				for r.now < at {
					r.d.FailNext(loopback.OpLoad, errors.New("it is gone"))
					r.step(min(r.now.Add(10*time.Millisecond), at))
				}
			}
			want := func(when string, down, loads bool) {
				t.Helper()
				d, l := len(r.book.Of(t, log.EngineDown)), len(r.book.Of(t, log.LoadFailed))
				if (d > 0) != down || d > 1 || (l > 0) != loads {
					t.Errorf("%s: the break is said %d times, a failed load %d times", when, d, l)
				}
			}
			want("at the break", tc.soon, false)
			until(broke.Add(wait / 2))
			if r.k.Counters().LoadsFailed == 0 {
				t.Fatal("no load has failed yet")
			}
			want("before a word", tc.soon, tc.soon)
			if tc.then != nil {
				tc.then(r, e)
			}
			loads := tc.soon || tc.over == log.EngineReplaced // those of another boot
			until(broke.Add(wait - 1))
			want("before its time", tc.soon, loads)
			until(broke.Add(wait))
			want("in time", tc.soon || tc.late, loads)
			until(broke.Add(20 * time.Second))
			want("later", tc.soon || tc.late, loads || tc.late)
			if tc.over != 0 && len(r.book.Of(t, tc.over)) != 1 {
				t.Errorf("%s is said %d times", log.Defs[tc.over].Name, len(r.book.Of(t, tc.over)))
			}
		})
	}
}

// A connection that is made anew before its break is said leaves no riddle: the break is said when the engine is heard, and before its return.
func TestABreakThatMendsIsSaidBeforeItsReturn(t *testing.T) {
	for _, wait := range []time.Duration{time.Hour, 0} {
		r := newRig(t, func(c *Config) { c.WordWait = wait })
		o := r.owner("P", false)
		e := r.connect(o)
		r.track(e, o, 1, 0)
		r.run(sec(6), 100*time.Millisecond)
		began := len(r.book.Of(t, log.EngineUp))
		r.d.FailNext(loopback.OpSend, transport.ErrPeer)
		r.run(sec(30), 100*time.Millisecond)
		ups := len(r.book.Of(t, log.EngineUp)) - began
		var said []string
		for _, n := range r.book.Lines {
			if n.Kind == log.Defs[log.EngineDown].Name || n.Kind == log.Defs[log.EngineUp].Name {
				said = append(said, n.Kind)
			}
		}
		if want := []string{"engine_down", "engine_up"}; ups != 1 || !slices.Equal(said[began:], want) {
			t.Errorf("after a wait of %v: said %v, want %v", wait, said[began:], want)
		}
	}
}

// Whoever counts deaths counts nothing else.
func TestTheEndsOfEnginesAreCountedForWhatTheyAre(t *testing.T) {
	for why, want := range map[Over][3]uint64{Died: {1, 0, 0}, Withdrew: {0, 1, 0}, Misfits: {0, 0, 1}, Another: {0, 0, 1}} {
		r := newRig(t, nil)
		e := r.connect(r.owner("P", false))
		r.run(sec(1), 100*time.Millisecond)
		for range 2 { // said again it is no other end
			must(t, r.k.EngineOver(e, why))
			r.run(r.now.Add(time.Second), 100*time.Millisecond)
		}
		c := r.k.Counters()
		if got := [3]uint64{c.EnginesDead, c.EnginesWithdrawn, c.EnginesUnusable}; got != want {
			t.Errorf("%v: dead, withdrawn and unusable %v, want %v", why, got, want)
		}
	}
}
