package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

func TestWhatIsDueWhileTheTransportMayNotBeCalledStaysDue(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	o.rows[1].Fence, o.rows[2].Fence = o.base+0, o.base+0
	r.track(e, o, 1, 0)
	left := r.track(e, o, 2, 0)
	r.run(sec(6), time.Second)
	beats, rows := o.count("renew"), r.k.Counters().Rows
	if beats == 0 || rows == 0 {
		t.Fatalf("%d heartbeats, %d rows", beats, rows)
	}
	r.k.SetReach(ReachNothing)
	r.k.Untrack(left, r.now)
	r.run(sec(20), time.Second)
	if n, m := o.count("renew"), o.count("release"); n != beats || m != 0 {
		t.Errorf("%d heartbeats and %d releases meanwhile", n-beats, m)
	}
	if at := r.k.NextDue(r.now); at != clock.Never && !r.now.Before(at) {
		t.Errorf("a step is due at %v, now is %v: a pump would spin", at, r.now)
	}
	if !r.k.Calls(r.now) {
		t.Error("nothing is due")
	}
	r.k.SetReach(ReachMessages)
	r.run(sec(21), 100*time.Millisecond)
	if n, m := o.count("renew"), o.count("release"); n == beats || m != 1 {
		t.Errorf("%d heartbeats and %d releases once messages may leave", n-beats, m)
	}
	r.run(sec(80), time.Second)
	if c := r.k.Counters(); c.Rows != rows || c.Disconnects+c.SendFailed+c.RowsFailed+c.AtRisk != 0 {
		t.Errorf("without rows: %+v", c)
	}
	beats = o.count("renew")
	r.k.SetReach(ReachAll)
	r.run(sec(100), time.Second)
	if n := o.count("renew"); n == beats || r.k.Counters().Rows == rows || r.k.Counters().AtRisk != 0 {
		t.Errorf("%d heartbeats, %d rows", n-beats, r.k.Counters().Rows-rows)
	}
}
