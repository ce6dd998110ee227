package heartbeat

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

func TestARoundThatTheUnheardBoundCutsGoesOnInTheNext(t *testing.T) {
	const requests = 500 // more messages than the bound lets leave
	for _, stock := range []bool{false, true} {
		r := newRig(t, func(c *Config) { c.BatchBytesMax, c.UnheardBytesMax = 2048, 2*(2048+NotifOverhead) })
		o := r.owner("P", false)
		e := r.connect(o)
		named := map[string]int{}
		for i := range uint32(requests) {
			if stock {
				r.trackStock(e, fmt.Sprintf("p-%030d", i))
			} else {
				r.track(e, o, i, 0)
			}
		}
		r.run(sec(40), 100*time.Millisecond) // two extensions
		for _, what := range []string{"renew", "HB"} {
			for _, id := range o.ids(what, false) {
				named[id]++
			}
		}
		if len(named) != requests {
			t.Errorf("stock %v: %d of %d requests named by the heartbeats of two extensions", stock, len(named), requests)
		}
		if r.k.Counters().BeatsDropped == 0 {
			t.Errorf("stock %v: the bound was never met", stock)
		}
	}
}

func TestASignOfLifeThatFoundNoRoomIsAskedForAgain(t *testing.T) {
	r := newRigOver(t, nil, func(c *read.Config) { c.RowsMax = 1 })
	a, b := r.owner("P1", false), r.owner("P2", false)
	silent := r.connect(a)
	r.track(silent, a, 1, 0)
	e := r.connect(b)
	h := r.track(e, b, 1, 0)
	r.run(sec(2), 100*time.Millisecond)
	r.hub.Stop("P1")
	r.run(sec(6), 100*time.Millisecond) // the only place is taken by the row of P1
	r.k.Untrack(h, r.now)
	r.hub.Cut("D", "P2")
	r.run(sec(8), 100*time.Millisecond) // P2 was found unreachable and loaded again
	r.hub.Resume("P1")
	r.run(sec(20), 100*time.Millisecond)
	r.wantEngine(e, "up down up")
}

func TestRequestsAtAnEngineThatCannotBeLoadedAreGone(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	for range 100 {
		r.d.FailNext(loopback.OpLoad, errors.New("nobody there"))
	}
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(37), time.Second)
	r.wantSaid(h, "")
	r.run(sec(50), time.Second)
	r.wantSaid(h, "gone")
}
