package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// A stock owner knows a lease by its id alone. Of two under one id that end at other points in time it holds at most one, and a request of
// the other would be read under the time guard of the first.
func TestARequestOfAnotherLeaseUnderAStockIdThatIsInUseIsNotRead(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first, second clock.Instant // ends of fixed leases; 0: heartbeats renew it
		beats         int
	}{
		{"renewed, and one whose end has come", 0, sec(1), 2},
		{"renewed, and one whose end has not", 0, sec(100), 2},
		{"fixed, and one that heartbeats should renew", sec(100), 0, 0},
		{"two ends", sec(100), sec(60), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o, e := r.timed(true)
			track := func(end clock.Instant) record.Handle { return r.trackUntil(e, o, end) }
			a := track(tc.first)
			r.run(sec(3), time.Second)
			b := track(tc.second)
			c := track(tc.first)
			r.run(sec(6), time.Second)
			r.wantSaid(b, "gone")
			r.read(b, record.Run{N: 1, Local: 4})
			r.run(sec(7), time.Second)
			r.wantSaid(b, "gone failed(2)")
			if n := o.count("done"); n != 0 {
				t.Errorf("%d completions while another request uses the id, want 0", n)
			}
			d := track(tc.second)
			r.read(a, record.Run{N: 1})
			r.read(c, record.Run{N: 1, Local: 8})
			r.run(sec(8), time.Second)
			r.wantSaid(a, "done")
			r.wantSaid(c, "done")
			r.k.Untrack(d, r.now)
			r.run(sec(12), time.Second)
			if n, m := o.count("HB"), o.count("done"); n != tc.beats || m != 1 {
				t.Errorf("%d heartbeats, %d completions, want %d and 1", n, m, tc.beats)
			}
			if n := r.k.Counters().OtherLeases; n != 2 {
				t.Errorf("%d requests of another lease counted, want 2", n)
			}
			r.wantRest()
		})
	}
}

// What is owed for a lease that is over here would end the next one under its id, and neither its end nor its beats are the next one's.
func TestAStockIdForWhichAMessageIsOwedIsTakenOverByItsNextLease(t *testing.T) {
	for _, tc := range []struct {
		name          string
		first, second clock.Instant // ends of fixed leases; 0: heartbeats renew it
		want          string
	}{
		{"one that heartbeats renew", sec(10), 0, "done"},
		{"a later end", sec(10), sec(60), "done"},
		{"an end that has come", sec(60), sec(10), "gone"},
		{"an end that has come, where heartbeats renewed it", 0, sec(10), "gone"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o, e := r.timed(true)
			track := func(end clock.Instant) record.Handle { return r.trackUntil(e, o, end) }
			a := track(tc.first)
			r.run(sec(2), time.Second)
			for range 100 {
				r.d.FailNext(loopback.OpSend, transport.ErrFull)
			}
			r.k.Untrack(a, r.now)
			r.run(sec(12), time.Second)
			b := track(tc.second)
			r.d.FailNone()
			r.run(sec(16), time.Second)
			if tc.want == "done" {
				r.wantSaid(b, "")
				r.read(b, record.Run{N: 1})
			}
			r.run(sec(18), time.Second)
			r.wantSaid(b, tc.want)
			if tc.want == "gone" {
				r.k.Untrack(b, r.now)
			}
			r.run(sec(24), time.Second)
			if n := o.count("done"); n != 1 {
				t.Errorf("%d completions, want 1: that of the second lease", n)
			}
			r.wantRest()
		})
	}
}

// Its host has heard that the lease is over, and has not untracked it yet.
func TestADrainOrASleepTellsNobodyTwiceThatItsLeaseIsGone(t *testing.T) {
	for name, end := range map[string]func(r *rig){
		"drain": func(r *rig) { r.k.Drain(r.now) },
		"sleep": func(r *rig) { r.k.Sleep(r.now) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			o, e := r.timed(true)
			over, a := r.trackFixed(e, o, 2, sec(3)), r.trackFixed(e, o, 1, sec(100))
			other := r.trackStock(e, "f-1")
			r.run(sec(2), time.Second)
			end(r)
			r.run(sec(4), time.Second)
			for _, h := range []record.Handle{over, a, other} {
				r.wantSaid(h, "gone")
			}
		})
	}
}
