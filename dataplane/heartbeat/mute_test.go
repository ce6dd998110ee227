package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestAMutedTrackerSendsNoHeartbeatAndDoesAllElse(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	o.rows[1].Fence, o.rows[2].Fence = o.base+0, o.base+0
	kept, left := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.run(sec(6), time.Second)
	beats := o.count("renew")
	if beats == 0 {
		t.Fatal("no heartbeat before the mute")
	}
	r.k.Mute(true)
	r.run(sec(12), time.Second)
	if n := o.count("renew"); n != beats {
		t.Errorf("%d heartbeats while muted, want none", n-beats)
	}
	r.k.Untrack(left, r.now)
	r.read(kept, record.Run{N: 1})
	r.run(sec(13), 100*time.Millisecond)
	r.wantSaid(kept, "done")
	if n, m := o.count("release"), o.count("complete"); n != 1 || m != 1 {
		t.Errorf("%d releases and %d completions while muted, want one of each", n, m)
	}
	again := r.track(e, o, 3, 0)
	r.k.Mute(false)
	r.run(sec(14), 100*time.Millisecond)
	if n := o.count("renew"); n == beats {
		t.Error("no heartbeat after the mute")
	}
	r.k.Untrack(again, r.now)
	r.run(sec(20), time.Second)
	r.wantRest()
}
