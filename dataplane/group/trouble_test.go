package group_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// wantTrouble compares how many engines a host counts as failing.
func (e *engine) wantTrouble(when string, failing, long int) {
	e.lab.t.Helper()
	if g := e.group.Gauges(); g.Failing != failing || g.FailingLong != long {
		e.lab.t.Errorf("%s: %d failing, %d of them long; want %d and %d", when, g.Failing, g.FailingLong, failing, long)
	}
}

// A network that swallows what is sent breaks no connection for minutes: only ranks see that nothing answers, and their host speaks for the
// engine.
func TestAnEngineThatAnswersARankNothingFailsForTheHost(t *testing.T) {
	for _, tc := range []struct {
		name   string
		kind   string
		silent []int // ranks of the engine
	}{
		{"all ranks", stream.KindProcess, []int{0, 1}}, {"one rank", stream.KindProcess, []int{1}}, {"between machines", stream.KindDelta, []int{0, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, p, d, peer := pair(t, tc.kind, two, two)
			_, remote := p.grant("a", 1, 0, 4)
			track := d.track(peer, remote, 9)
			l.run(20*time.Second, 500*time.Millisecond)
			d.wantTrouble("all is well", 0, 0)
			for _, n := range tc.silent {
				l.hub.Stop(fmt.Sprintf("P_%d", n))
			}
			l.run(15*time.Second, 500*time.Millisecond)
			d.wantTrouble("after 15 s", 1, 0)
			l.run(25*time.Second, 500*time.Millisecond)
			d.wantTrouble("after 40 s", 1, 1)
			var e heartbeat.EngineShown
			if !d.group.ShowEngine(0, &e) || e.State != heartbeat.Connected || e.FailingFor < 30*time.Second || d.count(record.EvEngineDown) != 0 {
				t.Errorf("%v, failing for %v, %v: its connections stand", e.State, e.FailingFor, kinds(d.evs))
			}
			must(t, d.host.Untrack(track)) // given up in its trouble: it is missed
			l.run(5*time.Second, 500*time.Millisecond)
			d.wantTrouble("given up", 1, 1)
			for _, n := range tc.silent {
				l.hub.Resume(fmt.Sprintf("P_%d", n))
			}
			l.run(10*time.Second, 500*time.Millisecond)
			d.wantTrouble("heard again", 0, 0)
			l.run(60*time.Second, 500*time.Millisecond)
			d.wantTrouble("and missed no more", 0, 0)
			if n := d.group.Counters.Bad; n != 0 {
				t.Errorf("%d records that mean nothing", n)
			}
		})
	}
}

// What a rank says of it may be lost on the way, and is said again with the full state.
func TestWordsAboutTroubleThatAreLostAreSaidAgain(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindDelta, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(20*time.Second, 500*time.Millisecond)
	deaf := func(on bool) {
		for _, r := range d.ranks {
			r.fault = nil
			if on {
				r.fault = func(fromHost bool, _ int, msg []byte) [][]byte {
					if fromHost {
						return [][]byte{msg}
					}
					return nil
				}
			}
		}
	}
	stop := func(do func(string)) { do("P_0"); do("P_1") }
	deaf(true)
	stop(l.hub.Stop)
	l.run(40*time.Second, 500*time.Millisecond)
	d.wantTrouble("nothing came through", 0, 0)
	deaf(false)
	l.run(5*time.Second, 500*time.Millisecond)
	d.wantTrouble("it comes through", 1, 1)
	deaf(true)
	stop(l.hub.Resume)
	l.run(10*time.Second, 500*time.Millisecond)
	d.wantTrouble("nothing of the end came through", 1, 1)
	deaf(false)
	l.run(5*time.Second, 500*time.Millisecond)
	d.wantTrouble("it does", 0, 0)
}

// A rank that is lost says nothing more, and what it said last is nobody's trouble.
func TestTroubleOfARankThatIsLostCountsNoMore(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	_, remote := p.grant("a", 1, 0, 4)
	d.track(peer, remote, 9)
	l.run(20*time.Second, 500*time.Millisecond)
	l.hub.Stop("P_1")
	l.run(40*time.Second, 500*time.Millisecond)
	d.wantTrouble("rank 1 hears nothing", 1, 1)
	must(t, d.ranks[1].carrier.Close())
	l.run(time.Second, 100*time.Millisecond)
	d.wantTrouble("and is lost", 0, 0)
}
