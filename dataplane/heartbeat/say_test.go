package heartbeat

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// Each kind of the reader's side comes from its cause, and names engine and request.
func TestWhatGoesWrongForAReaderIsSaidWithEngineAndRequest(t *testing.T) {
	const pass = 500 * time.Millisecond
	one := record.Run{N: 1}
	// reading is an owner of ours and a read from it that has begun and does not end.
	reading := func(r *rig) (o *owner, e uint64) {
		o = r.owner("P", false)
		e = r.connect(o)
		h := r.track(e, o, 1, 0)
		r.run(sec(6), pass)
		r.d.HoldReads(true)
		r.read(h, one)
		r.run(sec(6.5), pass)
		return o, e
	}
	for _, tc := range []struct {
		kind    log.Kind
		request string
		change  func(*Config)
		machine func(*read.Config)
		do      func(r *rig)
	}{
		{kind: log.EngineUp, do: func(r *rig) { r.connect(r.owner("P", false)); r.run(sec(2), pass) }},
		{kind: log.EngineDown, do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			r.d.FailNext(loopback.OpSend, transport.ErrPeer)
			r.run(sec(14), pass)
		}},
		{kind: log.SendFailed, do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(1), pass)
			r.d.FailNext(loopback.OpSend, transport.ErrFull)
			r.run(sec(7), pass)
		}},
		{kind: log.LoadFailed, do: func(r *rig) {
			r.d.FailNext(loopback.OpLoad, errors.New("nobody there"))
			r.connect(r.owner("P", false))
			r.run(sec(1), pass)
		}},
		{kind: log.EngineDead, do: func(r *rig) {
			e := r.connect(r.owner("P", false))
			r.run(sec(1), pass)
			must(r.t, r.k.EngineDead(e))
			r.run(sec(2), pass)
		}},
		{kind: log.RequestLost, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			e := r.connect(o)
			r.track(e, o, 1, 0)
			r.run(sec(1), pass)
			must(r.t, r.k.EngineDead(e))
			r.run(sec(2), pass)
		}},
		{kind: log.EngineReplaced, do: func(r *rig) {
			o := r.owner("P", false)
			e := r.connect(o)
			r.run(sec(1), pass)
			o.reboot()
			must(r.t, r.k.LoadHandshake(e, 0, o.handshake()))
			r.run(sec(2), pass)
		}},
		{kind: log.EngineTwice, do: func(r *rig) {
			a, b := r.owner("P", false), r.owner("P#", false)
			b.engine = "P"
			e := r.connect(a)
			for i := range 6 {
				must(r.t, r.k.LoadHandshake(e, 0, []*owner{b, a}[i%2].handshake()))
				r.run(r.now.Add(time.Second), pass)
			}
		}},
		{kind: log.EngineDrains, do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			header, _ := record.Board(o.board)
			header.Version, header.Flags = record.BoardVersion, record.BoardDraining
			r.run(sec(40), pass)
		}},
		{kind: log.AgentAbandoned, do: func(r *rig) {
			reading(r)
			r.d.FailNext(loopback.OpSend, transport.ErrPeer) // the next completion or heartbeat
			r.run(sec(30), pass)
		}},
		{kind: log.HeartbeatsDropped, change: func(c *Config) { c.UnheardBytesMax = 8 << 10 }, do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			r.hub.Stop("P")
			r.run(sec(60), pass)
		}},
		{kind: log.HeartbeatsLate, do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			r.step(sec(25)) // the loop stood
		}},
		{kind: log.LeaseAtRisk, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			o.deaf = true
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(25), pass)
		}},
		{kind: log.LeaseGone, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			o.rows[1].Fence = o.base + 1
			r.run(sec(20), pass)
		}},
		{kind: log.LeaseOver, request: "f-1", do: func(r *rig) {
			o, e := r.timed(false)
			r.trackFixed(e, o, 1, sec(10))
			r.run(sec(12), pass)
		}},
		{kind: log.ReadStale, request: "p-1-0", do: func(r *rig) {
			o, _ := reading(r)
			o.rows[1].Fence = o.base + 1
			r.d.HoldReads(false)
			r.run(sec(8), pass)
		}},
		{kind: log.ReadTimeout, request: "p-1-0", machine: func(c *read.Config) { c.ReadTimeout = 10 * time.Second }, do: func(r *rig) {
			reading(r)
			r.run(sec(20), pass)
		}},
		{kind: log.BlocksAside, request: "p-1-0", machine: func(c *read.Config) { c.ReadTimeout = 10 * time.Second }, do: func(r *rig) {
			reading(r)
			r.run(sec(20), pass)
		}},
		{kind: log.ReadLost, request: "p-1-0", do: func(r *rig) {
			_, e := reading(r)
			must(r.t, r.k.EngineDead(e))
			r.run(sec(8), pass)
		}},
		{kind: log.ReadFailed, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			r.hub.Kill("P")
			r.read(h, one)
			r.run(sec(8), pass)
		}},
		{kind: log.ReadFailedHere, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(6), pass)
			r.d.FailNext(loopback.OpPostRead, transport.ErrInvalid)
			r.read(h, one)
			r.step(r.now.Add(pass))
		}},
		{kind: log.ReadUnproven, request: "p-1-0", do: func(r *rig) {
			reading(r)
			r.d.FailNext(loopback.OpPostRead, transport.ErrPeer) // of the fence, once the data has come
			r.d.HoldReads(false)
			r.run(sec(60), pass)
		}},
		{kind: log.ReadKeyless, request: "x", do: func(r *rig) {
			h := r.trackStock(r.connect(r.owner("P", false)), "x")
			r.run(sec(1), pass)
			r.read(h, one)
		}},
		{kind: log.ReadLate, request: "x", do: func(r *rig) {
			h := r.trackStock(r.connect(r.owner("P", true)), "x")
			r.run(sec(2), pass)
			r.step(sec(30))
			r.read(h, one)
		}},
		{kind: log.ReadInvalid, request: "p-1-0", do: func(r *rig) {
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(1), pass)
			r.read(h, record.Run{N: blockCount + 1})
		}},
		{kind: log.ReadWaited, request: "p-1-0", do: func(r *rig) {
			must(r.t, r.k.SetLocal(nil))
			o := r.owner("P", false)
			h := r.track(r.connect(o), o, 1, 0)
			r.run(sec(2), pass)
			r.read(h, one)
			r.run(sec(123), pass)
		}},
		{kind: log.IDUnsendable, request: "a,b", do: func(r *rig) {
			r.trackStock(r.connect(r.owner("P", true)), "a,b")
			r.run(sec(20), pass)
		}},
		{kind: log.RequestIDsFull, request: strings.Repeat("b", 64) + "...", change: func(c *Config) { c.LongIDs = 1 }, do: func(r *rig) {
			e := r.connect(r.owner("P", true))
			r.trackStock(e, strings.Repeat("a", 200))
			r.trackStock(e, strings.Repeat("b", 200))
		}},
		{kind: log.EndUntold, request: "p-1", do: func(r *rig) {
			o := r.owner("P", false)
			e := r.add(o)
			r.step(sec(1))
			r.k.Reject(o.req(0, e, 1, 0, r.now), []byte("p-1"), r.now)
			r.run(sec(130), pass)
		}},
	} {
		t.Run(log.Defs[tc.kind].Name, func(t *testing.T) {
			r := newRigOver(t, tc.change, tc.machine)
			tc.do(r)
			r.book.Want(t, tc.kind, "P", tc.request)
		})
	}
}

// Each try to connect, each message and each round of heartbeats to an engine in trouble says the same again.
func TestTroubleOfAnEngineThatGoesOnIsSaidAtGrowingDistances(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	for r.now < sec(60) {
		r.d.FailNext(loopback.OpLoad, errors.New("nobody there"))
		r.step(r.now.Add(500 * time.Millisecond))
	}
	said := r.book.Of(t, log.LoadFailed)
	if tries := r.k.Counters().LoadsFailed; len(said) != 3 || tries < 8 || said[2].LeftOut != 0 || said[2].Values["failures"] < 4 {
		t.Errorf("%d tries in a minute, said at its begin, after 10 s and after 30 s: %+v", tries, said)
	}

	o.reboot()
	must(t, r.k.LoadHandshake(e, 0, o.handshake()))
	r.d.FailNext(loopback.OpLoad, errors.New("nobody there"))
	r.step(r.now.Add(500 * time.Millisecond))
	if said := r.book.Of(t, log.LoadFailed); len(said) != 4 {
		t.Errorf("of another boot it is said at once: %+v", said)
	}

	r = newRig(t, func(c *Config) { c.UnheardBytesMax = 8 << 10 })
	o = r.owner("P", false)
	r.track(r.connect(o), o, 1, 0)
	r.run(sec(6), 500*time.Millisecond)
	r.hub.Stop("P")
	r.run(sec(600), 500*time.Millisecond)
	dropped := r.book.Of(t, log.HeartbeatsDropped)
	if rounds := r.k.Counters().BeatsDropped; uint64(len(dropped)) >= rounds/4 || len(dropped) == 0 || dropped[len(dropped)-1].LeftOut != 0 {
		t.Errorf("%d rounds were cut in ten minutes: %+v", rounds, dropped)
	}
}

// A line about late rounds has the latest of those since the one before, which may have come between two lines.
func TestTheLatestRoundIsSaid(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	r.track(r.connect(o), o, 1, 0)
	r.run(sec(6), 500*time.Millisecond)
	r.step(sec(20)) // said at once; the next lines are due 10 and 30 s after this one
	r.step(sec(32))
	r.step(sec(47)) // the latest, and not said
	r.step(sec(60))
	var late []uint64
	for _, l := range r.book.Of(t, log.HeartbeatsLate) {
		late = append(late, l.Values["late_ns"])
	}
	if len(late) != 3 || late[2] <= max(late[0], late[1]) {
		t.Errorf("late by %d: want three lines, the last with the round that began at 47", late)
	}
}

// What ends as it should leaves no line.
func TestAReadThatEndsWellAndADrainAreNotSaidToBeWrong(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	e := r.connect(o)
	done, cancelled := r.track(e, o, 1, 0), r.track(e, o, 2, 0)
	r.track(e, o, 3, 0)
	r.run(sec(6), 500*time.Millisecond)
	r.read(done, record.Run{N: 1})
	r.d.HoldReads(true)
	r.read(cancelled, record.Run{N: 1})
	r.step(sec(6.1))
	r.k.Untrack(cancelled, r.now)
	r.d.HoldReads(false)
	r.run(sec(8), 500*time.Millisecond)
	r.k.Drain(r.now)
	r.run(sec(10), 500*time.Millisecond)
	r.book.Of(t, log.EngineUp)
	for _, n := range r.book.Lines {
		if n.Kind != "engine_up" && n.Kind != "blocks_aside" {
			t.Errorf("said: %+v", n)
		}
	}
}

// One line a request: a read of a lease that was said to be over says nothing more.
func TestARequestWhoseLeaseIsOverIsSaidOnce(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", false)
	h := r.track(r.connect(o), o, 1, 0)
	r.run(sec(6), 500*time.Millisecond)
	o.rows[1].Fence = o.base + 1
	r.run(sec(20), 500*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(sec(22), 500*time.Millisecond)
	if gone, stale := r.book.Of(t, log.LeaseGone), r.book.Of(t, log.ReadStale); len(gone) != 1 || len(stale) != 0 {
		t.Errorf("said: %+v and %+v", gone, stale)
	}
}
