package heartbeat

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// L = 30: extension 20, interval 5, hand-over 10, margin 2.51.
func TestTheTimeGuardOfStockPeers(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(r *rig, o *owner, e uint64) record.Handle
		want string
	}{
		{"read at 8 in an unbroken chain", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(8), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"read right after connecting, 17 after arrival, without a heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 15*time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"the same 17.6 after arrival: past 30 - 10 - 2.51", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 15600*time.Millisecond)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"first heartbeat 19 after arrival", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 18*time.Second)
			r.run(sec(3), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"first heartbeat 21 after arrival", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.late(e, "x", 20*time.Second)
			r.run(sec(3), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"17 s without a step", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.step(sec(19))
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"18 s without a step: two heartbeats 17.5 or more apart", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.step(sec(20))
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"a heartbeat that the transport had no room for", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(4), time.Second)
			r.d.FailNext(loopback.OpSend, transport.ErrFull)
			r.run(sec(8), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"a reset and a reconnect since the first heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			r.run(sec(9), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"read asked for while the connection is down", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			for r.k.View(e).State != Broken {
				r.step(r.now.Add(100 * time.Millisecond))
			}
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"tracked after the reset", func(r *rig, o *owner, e uint64) record.Handle {
			r.trackStock(e, "y")
			r.run(sec(3), time.Second)
			r.hub.Cut("D", "P")
			r.run(sec(9), time.Second)
			h := r.trackStock(e, "x")
			r.run(sec(15), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"its owner was stopped for longer than its lease", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(7), time.Second)
			r.hub.Stop("P")
			r.run(sec(28), time.Second)
			r.hub.Resume("P")
			r.run(sec(32), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "failed(2)"},
		{"its owner was stopped for 4 s", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(7), time.Second)
			r.hub.Stop("P")
			r.run(sec(11), time.Second)
			r.hub.Resume("P")
			r.run(sec(15), time.Second)
			r.read(h, record.Run{N: 1})
			return h
		}, "done"},
		{"read while its owner is stopped", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(7), time.Second)
			r.hub.Stop("P")
			r.run(sec(8), time.Second)
			r.read(h, record.Run{N: 1})
			r.run(sec(28), time.Second)
			r.hub.Resume("P")
			return h
		}, "failed(2)"},
		// C27
		{"the read ends 18 after the last heartbeat", func(r *rig, o *owner, e uint64) record.Handle {
			h := r.trackStock(e, "x")
			r.run(sec(2), time.Second)
			r.d.HoldReads(true)
			r.read(h, record.Run{N: 1})
			r.step(sec(2.1))
			r.d.HoldReads(false)
			r.step(sec(20.5))
			return h
		}, "failed(2)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, nil)
			o := r.owner("P", true)
			e := r.connect(o)
			h := tc.do(r, o, e)
			r.run(r.now.Add(3*time.Second), time.Second)
			r.wantSaid(h, tc.want) // shows C27.1, S20.2, S29.2
		})
	}
}

// late tracks a stock request that the owner's answer brought some time ago, in the step that connects.
func (r *rig) late(engine uint64, id string, ago time.Duration) record.Handle {
	h := r.slot()
	r.k.Track(&record.TrackReq{Track: h, Engine: engine, SaidNs: uint64(r.now.Add(-ago))}, []byte(id), nil, r.now)
	return h
}
