package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
)

// There is nowhere to land yet: a job that began would have the layout of memory that is no more, and the machine takes no other one under it.
func TestReadsWaitUntilThereIsMemoryToReadInto(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	o.rows[1].Fence, o.rows[2].Fence = o.base+0, o.base+0
	early := r.track(e, o, 1, 0)
	r.run(sec(1), 100*time.Millisecond)
	r.k.SetReach(ReachMessages)
	r.read(early, record.Run{N: 1})
	r.run(sec(2), 100*time.Millisecond)
	late := r.track(e, o, 2, 0)
	r.read(late, record.Run{N: 1})
	r.run(sec(3), 100*time.Millisecond)
	if g := r.k.Gauges(); r.reads.Gauges().Reads != 0 || g.Waiting != 2 {
		t.Errorf("%d reads began, %d wait, want 0 and 2", r.reads.Gauges().Reads, g.Waiting)
	}
	if at := r.k.NextDue(r.now); !r.now.Before(at) {
		t.Errorf("a step is due at %v, now is %v: a pump would spin", at, r.now)
	}
	next := &read.Layout{Regions: []read.Region{{Addr: record.Addr(r.kv), BlockLen: blockLen, BlockStride: blockLen, Blocks: blockCount}}}
	if err := r.reads.SetLocal(next); err != nil {
		t.Errorf("the next memory: %v", err)
	}
	r.k.SetReach(ReachAll)
	if at := r.k.NextDue(r.now); r.now.Before(at) {
		t.Errorf("the next step is due at %v, now is %v", at, r.now)
	}
	r.run(sec(4), 100*time.Millisecond)
	for _, h := range []record.Handle{early, late} {
		if got := r.said(h); got != "done" {
			t.Errorf("events: %q", got)
		}
	}
}

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
