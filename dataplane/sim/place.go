package sim

import (
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// place is where an engine runs: a machine with its clocks, and the address of its side channel. Lives of the engine come and go
// there.
type place struct {
	w     *World
	spec  *Engine
	life  *life // the latest, also when it is dead
	past  []*life
	lives int

	pass      time.Duration
	suspended time.Duration // what CLOCK_MONOTONIC lags behind CLOCK_BOOTTIME
	answers   string        // how it answers handshakes
}

func newPlace(w *World, e *Engine) *place {
	p := &place{w: w, spec: e, pass: e.Pass}
	if p.pass <= 0 {
		p.pass = 20 * time.Millisecond
	}
	return p
}

func (p *place) lease() time.Duration {
	if p.spec.Lease <= 0 {
		return 30 * time.Second
	}
	return p.spec.Lease
}

func (p *place) shape() topology.Shape {
	return topology.Shape{TP: max(p.spec.TP, 1), PP: max(p.spec.PP, 1)}
}

func (p *place) blocks() uint32 {
	if p.spec.Blocks == 0 {
		return 64
	}
	return p.spec.Blocks
}

func (p *place) slots() int {
	if p.spec.Slots == 0 {
		return 64
	}
	return int(p.spec.Slots)
}

// local is CLOCK_BOOTTIME here.
func (p *place) local(at clock.Instant) clock.Instant {
	run := at.Sub(startInstant)
	return at.Add(p.spec.Offset + time.Duration(int64(run)/1e6*int64(p.spec.Drift)))
}

// truly is the true time at which the clock here shows t, or a little later.
func (p *place) truly(t clock.Instant) clock.Instant {
	if t == clock.Never {
		return t
	}
	run := t.Sub(startInstant) - p.spec.Offset
	return startInstant.Add(run - time.Duration(int64(run)/1e6*int64(p.spec.Drift)) + time.Duration(max(p.spec.Drift, -p.spec.Drift))*time.Microsecond + time.Microsecond)
}

// monotonic is CLOCK_MONOTONIC here.
func (p *place) monotonic(at clock.Instant) clock.Instant { return p.local(at).Add(-p.suspended) }

// start begins a life of the engine here.
func (p *place) start(id string) error {
	if p.life != nil {
		p.past = append(p.past, p.life)
	}
	p.lives++
	l := newLife(p, id)
	p.life = l
	if err := l.open(); err != nil {
		l.dead = true
		return fmt.Errorf("engine %q: %w", p.spec.ID, err)
	}
	return nil
}

// life is one run of an engine's processes.
type life struct {
	w      *World
	place  *place
	id     string // engine id
	number int
	eras   uint64
	era    eraOf
	host   *hostCtx   // of an engine of several contexts
	ranks  []*rankCtx // one of an engine of one context
	stock  *stockEngine
	app    *app
	side   *side
	dead   bool // its host, or its only process
	drains bool
	asks   bool // the engine calls kvl_drain until that succeeds
}

// eraOf is who an engine is to its peers.
type eraOf struct {
	epoch  uint64
	secret [2]uint64
}

func newLife(p *place, id string) *life {
	l := &life{w: p.w, place: p, id: id, number: p.lives}
	l.app = newApp(l)
	l.side = newSide(l)
	l.era = l.nextEra()
	return l
}

// nextEra draws who the engine is from now on.
func (l *life) nextEra() eraOf {
	l.eras++
	h := l.w.hash("era", l.place.spec.ID, l.number, l.eras)
	return eraOf{epoch: h | 1, secret: [2]uint64{mix64(h ^ 1), mix64(h ^ 2)}}
}

// base draws the fence word of use 0 of a rank's board in an era.
func (l *life) base(rank uint32, era uint64) uint64 {
	return l.w.hash("base", l.place.spec.ID, l.number, era, rank) >> 2
}

// open makes the contexts.
func (l *life) open() error {
	switch {
	case l.place.spec.Stock:
		return l.openStock()
	case l.place.spec.Host:
		return l.openHost()
	}
	return l.openEngine()
}

// free gives back what is not Go memory.
func (l *life) free() {
	if l.host != nil {
		for _, r := range l.ranks {
			_ = r.carrier.Close()
		}
		_ = l.host.streams.Close()
	}
}

// contexts are those of a life: its host first, then its ranks.
func (l *life) contexts() (all []*steps) {
	if l.host != nil {
		all = append(all, &l.host.steps)
	}
	for _, r := range l.ranks {
		all = append(all, &r.steps)
	}
	if l.stock != nil {
		all = append(all, &l.stock.steps)
	}
	return all
}

// chosen are the contexts that an action's Rank means.
func (l *life) chosen(rank int) []*steps {
	all := l.contexts()
	switch {
	case rank == AllRanks || l.host == nil:
		return all
	case rank == HostOnly:
		return all[:1]
	case rank+1 < len(all):
		return all[rank+1 : rank+2]
	}
	return nil
}

// know is what an engine does when it hears of another one: kvl_engine_add with its address.
func (l *life) know(other *place) {
	if l.stock != nil {
		l.stock.know(other)
		return
	}
	if other.life != nil {
		_, _ = l.side.add(other.life.id, other)
	}
}

// steps is what has to do with when a context steps: its loop runs once each pass, and turns that would find nothing to do are left
// out, since a step without anything due changes nothing.
type steps struct {
	w     *World
	life  *life
	rank  int // -1: host
	run   func()
	due   func() clock.Instant // true time at which something is due without anything new arriving
	next  clock.Instant        // of the turn that is asked for; Never: none is
	turn  uint64               // numbers them
	last  clock.Instant        // true time of the last step
	phase time.Duration

	gone    bool          // for good
	stopped int           // stops in force
	stall   clock.Instant // no step before
	idleMax time.Duration // the longest that turns are left out
}

func (c *steps) init(l *life, rank int, run func(), due func() clock.Instant) {
	c.w, c.life, c.rank, c.run, c.due, c.next = l.w, l, rank, run, due, clock.Never
	c.phase = within(l.w.hash("phase", l.place.spec.ID, l.number, rank), l.place.pass)
	c.last = l.w.now
	c.idleMax = l.place.lease() / 6 / 3 // a longer gap would be a stall (lease.Config.StallGap)
	c.wake()
}

// boundary is the first turn that begins at t or later.
func (c *steps) boundary(t clock.Instant) clock.Instant {
	pass := c.life.place.pass
	since := t.Sub(startInstant) - c.phase
	turns := (since + pass - 1) / pass
	return startInstant.Add(c.phase + turns*pass)
}

// wake has the context step at its next turn.
func (c *steps) wake() { c.wakeAt(c.w.now) }

// wakeAt has it step at the first turn from t on.
func (c *steps) wakeAt(t clock.Instant) {
	if c.gone || c.stopped > 0 || t == clock.Never {
		return
	}
	t = c.boundary(max(t, c.last.Add(1), c.stall))
	if t >= c.next {
		return
	}
	c.next = t
	c.turn++
	turn := c.turn
	c.w.at(t, func() {
		if c.turn == turn && !c.gone && c.stopped == 0 {
			c.step()
		}
	})
}

func (c *steps) step() {
	c.next = clock.Never
	if c.w.now < c.stall {
		c.wakeAt(c.stall)
		return
	}
	c.last = c.w.now
	c.w.res.Steps++
	c.run()
	if !c.gone {
		c.wakeAt(min(c.due(), c.w.now.Add(c.idleMax)))
	}
}

// end is the end of the process.
func (c *steps) end() {
	c.gone = true
	c.turn++
}
