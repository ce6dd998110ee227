package core

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// ended is when a step has ended: CLOCK_BOOTTIME as the page's clock goes on from the last state. Reading it anew would be a system
// call; a suspend since then is put right by the next state.
func (p *statsPage) ended(c *Core) clock.Instant {
	if c.ownClock {
		return p.boot.Add(time.Since(p.began))
	}
	return c.clock()
}

// stepped takes the end of a step that was told now, and shows a state if it is time for one. After a step that leaves nothing to do it is if
// that has done anything, or if there was something before: the next one may be long in coming. Under the lock.
func (c *Core) stepped(now clock.Instant) {
	p := c.page
	if p == nil {
		return
	}
	p.step.Observe(p.ended(c).Sub(now))
	before := p.alive
	p.alive = c.alive() > 0
	if c.now >= p.at.Add(pageEvery) || !p.alive && (before || c.half().Traffic() != p.traffic) {
		c.show(c.now)
	}
}

// showBetween writes a state beside the steps, of which the next may be long in coming, with all engines as they are now. Under the lock.
func (c *Core) showBetween() {
	p := c.page
	if p == nil || atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 { // its tables may be what is broken
		return
	}
	var err error // told by the next step
	defer c.failSafe(&err)
	p.walk.restart()
	for c.show(max(c.now, p.at)); p.walk.place != 0; {
		c.show(p.at)
	}
}

// alive counts what would need further steps.
func (c *Core) alive() int {
	return c.half().Alive()
}

// show writes a state of the page. Under the lock.
func (c *Core) show(now clock.Instant) {
	p := c.page
	p.at = now
	if c.ownClock {
		p.began, p.boot = time.Now(), c.clock()
	}
	g := &p.gauges
	p.walk.some()
	c.gather(g, &p.walk)
	values := p.out.Values()
	for i, w := range p.words {
		values[i] = w.load()
	}
	for i, h := range p.hists {
		p.out.PutHistogram(i, h)
	}
	if c.leases != nil {
		p.readers(c, now)
		p.out.PutEnds(c.leases.LastEnds())
	} else {
		p.out.PutEnds(c.hosted.group.LastEnds())
	}
	p.live.Stepped, p.live.Epoch, p.live.BlockBytes = now, c.mem.Epoch, c.blockBytes()
	p.live.Poisoned, p.live.Draining = g.state.Poisoned != 0, g.state.Draining != 0
	p.traffic = c.half().Traffic()
	p.out.Publish(&p.live)
}

// readers puts what each reader holds.
func (p *statsPage) readers(c *Core, now clock.Instant) {
	c.leases.Look(now)
	n := c.leases.Accounts()
	for i := range n {
		a, agent := c.leases.Account(i)
		p.reader = watch.ReaderRow{
			Number: a.Number, Native: a.Native, Unnamed: i == lease.NobodysAccount, Other: i == lease.OthersAccount,
			Hash: a.Engine, Epoch: a.Epoch, Leases: a.Leases, Blocks: a.Blocks, Oldest: a.Oldest, LastBeat: a.LastBeat,
			LeastSlack: -1, Ended: a.Ended,
		}
		if a.LeastSlack != lease.NoSlack {
			p.reader.LeastSlack = a.LeastSlack
		}
		p.out.PutReader(i, &p.reader)
		if a.Number != 0 && !p.out.Named(i, a.Number) {
			p.out.NameReader(i, a.Number, agent)
			p.walk.nameless = p.walk.nameless || a.Native && len(agent) == 0
		}
	}
	p.out.SetReaders(n)
}

// engineTable is what shows the engines that are read from: the tracker, or the group of a host.
type engineTable interface {
	EnginePlaces() int
	ShowEngine(i int, v *heartbeat.EngineShown) bool
}

// stateAsleep is what engines are in whose connections ended as our own memory was given up on purpose: it is not they who are away.
const stateAsleep = "asleep"

// stateWithdrawn is what engines are in that have given their memory up on purpose: their connections did not break.
const stateWithdrawn = "withdrawn"

// engineWalk goes over the engines, some of them for each state of the page, and counts those that fail. A row is an engine that there
// is, so rows move when one goes.
type engineWalk struct {
	c     *Core
	p     *statsPage
	place int // next one
	rows  int
	shown heartbeat.EngineShown
	row   watch.Remote
	slept bool // our own memory is unregistered on purpose

	found, last walked // of the walk under way, and of the one before

	nameless bool // a reader of ours has come whose id may be known here
	naming   bool // this walk names such readers
}

// walked are the gauges for which engines are walked: the group's of a host, the tracker's of all others.
type walked struct {
	tracker heartbeat.Gauges
	group   group.Gauges
}

// walkMax bounds the places that one state looks at.
const walkMax = 128

// restart lets the next state begin with the first engine.
func (w *engineWalk) restart() { w.found, w.place, w.rows = walked{}, 0, 0 }

func (w *engineWalk) some() {
	var table engineTable = w.c.tracker
	w.slept = w.c.slept
	if w.c.hosted != nil {
		table, w.slept = w.c.hosted.group, w.c.hosted.group.Asleep()
	}
	if w.place == 0 {
		w.naming, w.nameless = w.nameless, false
	}
	places := table.EnginePlaces()
	for end := min(w.place+walkMax, places); w.place < end; w.place++ {
		if table.ShowEngine(w.place, &w.shown) {
			w.put()
		}
	}
	if w.place >= places {
		w.p.out.FinishRemotes(w.rows)
		w.last = w.found
		w.restart()
	}
}

// into puts what the last whole walk has counted among the other gauges.
func (w *engineWalk) into(g *gauges) {
	t, h := &w.last.tracker, &w.last.group
	g.tracker.UnheardMax, g.tracker.Failing, g.tracker.FailingLong, g.tracker.FailingUnused, g.tracker.FailingMs = t.UnheardMax, t.Failing, t.FailingLong, t.FailingUnused, t.FailingMs
	g.group.Engines, g.group.Failing, g.group.FailingLong, g.group.FailingUnused, g.group.FailingMs = h.Engines, h.Failing, h.FailingLong, h.FailingUnused, h.FailingMs
}

func (w *engineWalk) put() {
	v, r := &w.shown, &w.row
	if w.c.hosted != nil {
		w.found.group.Add(v, w.c.cfg.Duration)
	} else {
		w.found.tracker.Add(v, w.c.cfg.Duration)
	}
	if w.naming {
		w.name(v)
	}
	if w.rows >= watch.RemotesMax {
		return // counted, and not shown
	}
	*r = watch.Remote{
		Engine: v.Engine, ID: v.ID, Hash: v.Hash, Address: v.Address, State: v.State.String(), Since: v.Since, Native: v.Native, Epoch: v.Epoch,
		Ranks: v.Ranks, Handshake: v.Connect, Connects: v.Connects, LastBeat: v.LastBeat, LastRow: v.LastRow, Fails: uint64(v.Fails),
		Tracked: uint64(v.Tracked), Reads: uint64(v.Reads), Bytes: v.Bytes, Unheard: v.Unheard, Missed: v.Failing && v.Wanted,
	}
	switch apart := v.State != heartbeat.Connected && v.State != heartbeat.Removing; {
	case apart && w.slept:
		r.State = stateAsleep
	case apart && v.Withdrew:
		r.State = stateWithdrawn
	}
	r.Offset, r.OffsetKnown = v.Offset.Ahead()
	w.p.out.PutRemote(w.rows, r)
	w.rows++
}

// name gives readers of ours the id of an engine that is known here as one to read from.
func (w *engineWalk) name(v *heartbeat.EngineShown) {
	if w.c.leases == nil {
		return
	}
	for i := range w.c.leases.Accounts() {
		if a, _ := w.c.leases.Account(i); a.Native && a.Engine == v.Hash {
			w.p.out.NameReader(i, a.Number, []byte(v.ID))
		}
	}
}

// blockBytes is what one block of the cache takes over all regions, and over all ranks of a host; a mean where groups differ.
func (c *Core) blockBytes() uint64 {
	if c.hosted != nil {
		return c.hosted.blockBytes
	}
	if p := c.page; len(c.regions) > 0 && p.regions != &c.regions[0] {
		p.regions = &c.regions[0]
		var m blockMean
		for i := range c.regions {
			m.add(c.regions[i].BlockLen, int64(c.regions[i].Group))
		}
		p.live.BlockBytes = m.bytes()
	}
	return c.page.live.BlockBytes
}

// blockMean adds up what a block takes.
type blockMean struct {
	all, some uint64 // of regions that every group has, and of those of one group
	groups    uint64 // a bit each; those past 63 share the last
}

func (m *blockMean) add(blockLen uint64, group int64) {
	if group < 0 {
		m.all += blockLen
		return
	}
	m.some += blockLen
	m.groups |= 1 << min(group, 63)
}

func (m *blockMean) bytes() uint64 {
	return m.all + m.some/max(uint64(bits.OnesCount64(m.groups)), 1)
}

// blockBytesOf is that of a handshake map.
func blockBytesOf(h *wire.Handshake) uint64 {
	var m blockMean
	for i, n := range h.BlockLens {
		group := int64(-1)
		if i < len(h.RegionGroupIDs) {
			group = h.RegionGroupIDs[i]
		}
		m.add(n, group)
	}
	return m.bytes()
}
