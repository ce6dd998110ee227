package capacity

import (
	"math"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Engines crash and stand still at times that only the seed decides, as long as requests arrive.

// wireGrace is how long an owner waits for a reader whose death wire fell to come back.
const wireGrace = 500 * time.Millisecond

func (w *world) nextCrash(e *engine) {
	rate := w.cfg.CrashD
	if int(e.index) < w.cfg.P {
		rate = w.cfg.CrashP
	}
	if rate == 0 {
		return
	}
	e.crashes++
	in := spanOf(3600 * wait(rate, w.cfg.Seed, drawCrash, uint64(e.index), e.crashes))
	w.at(w.now.Add(in), happening{kind: evCrash, engine: e.index})
}

func (w *world) nextStall(e *engine) {
	if w.cfg.Stalls == 0 {
		return
	}
	e.stalls++
	in := spanOf(3600 * wait(w.cfg.Stalls, w.cfg.Seed, drawStall, uint64(e.index), e.stalls))
	w.at(w.now.Add(in), happening{kind: evStall, engine: e.index})
}

// stall lets an engine stand still: no step, and nothing of what its host does.
func (w *world) stall(e *engine) {
	if w.over {
		return
	}
	if e.alive {
		w.stalled++
		x := unit(w.cfg.Seed, drawStallFor, uint64(e.index), e.stalls)
		e.stalledTill = max(e.stalledTill, w.now.Add(spanOf(w.cfg.StallMax.Seconds()*math.Pow(100, x-1))))
		w.wakeBy(e, e.stalledTill)
	}
	w.nextStall(e)
}

// crash ends an engine. Its peers are told by death wires, or are told nothing.
func (w *world) crash(e *engine) {
	if w.over || !e.alive {
		return
	}
	wired := unit(w.cfg.Seed, drawWired, uint64(e.index), e.crashes) < w.cfg.Wired
	w.kill(e, wired)
	w.at(w.now.Add(w.cfg.Restart), happening{kind: evRestart, engine: e.index})
}

func (w *world) kill(e *engine, wired bool) {
	w.takeCounters(e)
	if wired {
		w.net.Kill(e.agent.Agent())
		in := 2 * w.cfg.Delay
		if int(e.index) >= w.cfg.P {
			in = wireGrace
		}
		w.at(w.now.Add(in), happening{kind: evTold, engine: e.index, token: e.mem.Epoch})
	} else {
		w.net.PowerOff(e.agent.Agent())
	}
	e.alive = false
	w.wakes.Set(uint32(e.index), clock.Never)
	if int(e.index) < w.cfg.P {
		w.killP(w.ps[e.index])
	} else {
		w.killD(w.ds[int(e.index)-w.cfg.P])
	}
}

// killP: its leases end with it, the request that it computed is lost, those that waited go elsewhere. Readers find out.
func (w *world) killP(p *prefiller) {
	w.crashesP++
	p.crashAt = w.now
	for s := range p.tenures {
		if t := &p.tenures[s]; t.alive {
			p.close(t, 0)
		}
	}
	busy := p.busy
	p.busy = none
	for p.queue.Head != list.None {
		i := int32(p.queue.Head)
		w.remove(&p.queue, i)
		w.reqs[i].state = atRouter
		w.route(i)
	}
	if busy != none {
		w.lost(busy, lostOwner)
	}
}

// killD: everything that was there begins anew. Nobody tells the owners of their leases.
func (w *world) killD(d *decoder) {
	w.crashesD++
	for i := d.all.Head; i != list.None; i = w.reqs[i].engine.Next {
		if r := &w.reqs[i]; r.state != decoding {
			w.abandon(r, true)
		}
	}
	for d.all.Head != list.None {
		i := int32(d.all.Head)
		w.remove(&d.all, i)
		w.removeQ(&d.queue, i)
		w.lost(i, lostReader)
	}
	d.reset()
}

// restart begins the next boot of an engine.
func (w *world) restart(e *engine) error {
	if int(e.index) >= w.cfg.P {
		if err := e.boot(w.reader()); err != nil {
			return err
		}
	} else {
		p := w.ps[e.index]
		p.stale = p.mem.Epoch
		if err := e.boot(w.owner()); err != nil {
			return err
		}
		p.reset()
		w.at(w.now.Add(2*w.cfg.Delay), happening{kind: evReborn, engine: e.index})
	}
	if !w.over {
		w.nextCrash(e)
	}
	return nil
}

// told carries the word of a death wire: to owners that a reader is gone, to readers that an owner is.
func (w *world) told(e *engine, epoch uint64) {
	if int(e.index) >= w.cfg.P {
		hash := wire.EngineHash([]byte(e.id))
		for _, p := range w.ps {
			if p.alive {
				p.plane.Leases.EngineGone(hash, epoch, w.now)
				w.wake(p.engine)
			}
		}
		return
	}
	for _, d := range w.ds {
		if h := d.known[e.index]; d.alive && h != 0 && !e.alive {
			if err := d.plane.Tracker.EngineDead(h); err != nil {
				w.violated("a known engine can be told dead", d.id, "%v", err)
			}
			w.wake(d.engine)
		}
	}
}
