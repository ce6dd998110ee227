package core

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// What the hosts of a troupe say and hear, and what befalls them.

func (c *troupe) act() {
	a := c.owners[c.rnd.IntN(2)]
	op := c.rnd.IntN(30)
	if op >= 17 && c.rnd.Float64() > c.wild {
		op = c.rnd.IntN(17)
	}
	switch op {
	case 0, 1, 2, 3, 4:
		c.doGrant(a)
	case 5:
		id := fmt.Sprint("e-", c.rnd.IntN(1000000))
		if h, err := a.host.Expect([]byte(id)); err == nil {
			a.expects = append(a.expects, chaosExpect{handle: h, id: id})
		}
	case 6, 7:
		c.takeBack(a)
	case 8, 9, 10, 11:
		c.doTrack()
	case 12, 13, 14:
		if x := pickOne(c.rnd, c.reader.tracks); x != nil && !x.reading {
			c.startRead(x)
		}
	case 15:
		c.doUntrack(pickOne(c.rnd, c.reader.tracks))
	case 16:
		c.meet(c.rnd.IntN(2))
		if x := pickOne(c.rnd, a.recent); x != nil && c.peerOf(a) != 0 {
			r := x.remote
			r.Native = c.rnd.IntN(2) == 0
			c.allow(c.reader.host.Reject(c.peerOf(a), &r, c.now()), host.ErrFull)
		}
	case 17, 18, 19:
		a := c.all()[c.rnd.IntN(3)]
		r := c.rnd.IntN(2)
		switch {
		case a.dead[r]:
		case a.ranks[r].core.registered == nil:
			c.register(a, r)
		case c.rnd.IntN(3) == 0:
			c.unregister(a, r)
			if c.rnd.IntN(4) != 0 {
				c.unregister(a, 1-r)
			}
			if c.rnd.IntN(3) == 0 {
				c.register(a, r)
			}
		}
	case 20, 21, 22:
		a := c.all()[c.rnd.IntN(3)]
		if r := c.rnd.IntN(3); r == 2 {
			a.stopped = !a.stopped && c.rnd.IntN(3) == 0
		} else {
			a.ranks[r].stopped = !a.ranks[r].stopped && c.rnd.IntN(2) == 0
		}
	case 23, 24:
	case 25:
		i := c.rnd.IntN(2)
		switch e := c.reader.peers[i]; {
		case e == 0:
		case c.rnd.IntN(3) == 0:
			hostSink{c.reader.core}.EngineOver(e, heartbeat.Died) // its wire fell, or so it seemed
		default:
			c.removed++
			c.allow(c.reader.core.RemoveEngine(e))
			c.reader.peers[i] = 0
			delete(c.reader.engines, e)
			if c.rnd.IntN(2) == 0 {
				c.meet(i)
			}
		}
	case 26:
		if c.rnd.IntN(4) == 0 { // the reader's wire fell, or so it seemed
			hostSink{a.core}.ReaderOver(wire.EngineHash([]byte("D")), c.reader.epoch())
		}
	case 27:
		if c.rnd.IntN(6) == 0 {
			c.die(c.all()[c.rnd.IntN(3)], c.rnd.IntN(2))
		}
	case 28:
		if i := c.rnd.IntN(3); c.rnd.IntN(20) == 0 || c.all()[i].dead != [2]bool{} && c.rnd.IntN(2) == 0 {
			c.restart(i)
		}
	default:
		c.disturb()
	}
}

// disturb is what transports do.
func (c *troupe) disturb() {
	a := c.all()[c.rnd.IntN(3)]
	n := c.rnd.IntN(2)
	if a.dead[n] || a.ranks[n].core.gone {
		return
	}
	l := a.ranks[n].core.tr.(*loopback.Agent)
	switch c.rnd.IntN(6) {
	case 0:
		l.HoldReads(c.rnd.IntN(2) == 0)
	case 1:
		l.LetReads(c.rnd.IntN(6))
	case 2:
		ops := []loopback.Op{loopback.OpSend, loopback.OpPostRead, loopback.OpRead, loopback.OpLoad, loopback.OpDrop}
		l.FailNext(ops[c.rnd.IntN(len(ops))], nil)
	case 3:
		if o := c.owners[c.rnd.IntN(2)]; !o.ranks[n].core.gone {
			c.hub.Cut(c.reader.ranks[n].core.tr.Agent(), o.ranks[n].core.tr.Agent())
		}
	case 4:
		l.HoldNotifs(c.rnd.IntN(2) == 0)
	case 5:
		l.LandLate()
	}
}

func (c *troupe) register(a *actor, r int) {
	k := a.ranks[r].core
	if a.dead[r] || k.registered != nil {
		return
	}
	if k.gone {
		c.eras++
	}
	c.allow(k.Register(a.ranks[r].regions))
}

func (c *troupe) unregister(a *actor, r int) {
	k := a.ranks[r].core
	if a.dead[r] || k.registered == nil || k.reads.Open() > 0 { // it would wait on the machine's clock
		return
	}
	c.allow(k.Unregister(), ErrBusy) // it steps, and a step may post
	c.load(k)
}

// die ends a rank: its process, or its context in good order.
func (c *troupe) die(a *actor, r int) {
	k := a.ranks[r].core
	if a.dead[r] {
		return
	}
	if c.rnd.IntN(3) != 0 || k.Close(0) != nil { // in good order, or it has reads of its own
		c.hub.Kill(k.tr.Agent())
		k.falls()
	}
	if c.carrier == stream.KindDelta {
		c.allow(a.core.DeltaLost(uint32(r)))
	}
	a.dead[r], a.ranks[r].stopped = true, true
}

// restart ends an engine and starts it anew under the same id.
func (c *troupe) restart(i int) *actor {
	c.restarts++
	a := c.all()[i]
	for r := range a.ranks {
		if !a.dead[r] {
			c.hub.Kill(a.ranks[r].core.tr.Agent())
			a.ranks[r].core.falls()
		}
	}
	a.core.side.die()
	if err := a.core.hosted.streams.Close(); err != nil {
		c.t.Fatal(err)
	}
	c.teams = slices.DeleteFunc(c.teams, func(m *team) bool { return m == a.team })
	b := c.start(a.id)
	if b.recent = a.recent; i < 2 {
		c.owners[i] = b
	} else {
		c.reader = b
	}
	for r := range b.ranks {
		if c.rnd.IntN(3) != 0 {
			c.register(b, r)
		}
	}
	return b
}

// meet hands the present maps of an owner to the reader, if there are any.
func (c *troupe) meet(i int) {
	a, d := c.owners[i], c.reader
	e, err := d.core.AddEngine(heartbeat.EngineDesc{ID: a.id, TP: 2, PP: 1})
	if err != nil { // its place is not free yet
		c.allow(err, ErrFull)
		return
	}
	if d.peers[i] != e {
		d.engines[e] = false
	}
	if d.peers[i] = e; !a.whole() {
		return
	}
	c.offer(d.team, e, a.team)
}

func (c *troupe) peerOf(a *actor) uint64 {
	for i, o := range c.owners {
		if o == a {
			return c.reader.peers[i]
		}
	}
	return 0
}

func (c *troupe) wipe(a *actor, list []uint32) {
	for _, r := range a.ranks {
		r.each(0, list, func(b *byte, _ byte) { *b = wiped })
	}
}

func (c *troupe) doGrant(a *actor) {
	list := takeBlocks(c.rnd, &a.free, 1+c.rnd.IntN(4))
	if list == nil {
		return
	}
	c.requests++
	id, expected := chaosID(c.rnd, c.requests), -1
	if n := len(a.expects); n > 0 && c.rnd.IntN(2) == 0 {
		expected = c.rnd.IntN(n)
		id = a.expects[expected].id
	} else if x := pickOne(c.rnd, a.recent); x != nil && c.rnd.IntN(20) == 0 {
		id = string(x.remote.ID) // perhaps held: a duplicate
	}
	g := host.Grant{ID: []byte(id), Blocks: uint32(len(list)), User: c.requests}
	if c.rnd.IntN(3) == 0 {
		g.TTL = time.Duration(1+c.rnd.IntN(8000)) * time.Millisecond
	}
	if expected >= 0 {
		g.Expected = a.expects[expected].handle
	}
	a.fill(c.requests, list)
	h, err := a.host.Grant(g, c.now())
	if err != nil {
		c.allow(err, host.ErrFull)
		a.free = append(a.free, list...)
		return
	}
	if expected >= 0 && h == g.Expected {
		a.expects = slices.Delete(a.expects, expected, expected+1)
	}
	epoch, _, _ := a.host.Era(h)
	x := &chaosLease{handle: h, request: c.requests, blocks: list, remote: *a.remote(id, h)}
	if slices.ContainsFunc(a.leases, func(o *chaosLease) bool { return o.handle == h }) {
		c.t.Fatalf("handle %#x was given out twice", h)
	}
	a.epochs[h] = epoch
	a.leases, a.recent = append(a.leases, x), append(a.recent, x)
	a.recent = a.recent[max(len(a.recent)-10, 0):]
}

func (c *troupe) takeBack(a *actor) {
	x := pickOne(c.rnd, a.leases)
	switch what := c.rnd.IntN(5); {
	case what == 0:
		c.allow(a.host.Pressure(uint32(c.rnd.IntN(20))), host.ErrFull)
	case what == 1 && len(a.expects) > 0:
		i := c.rnd.IntN(len(a.expects))
		if err := a.host.Cancel(a.expects[i].handle); err != nil {
			c.allow(err, host.ErrStale) // it has lapsed, and its event waits
		} else {
			a.expects[i].over = true // no event follows
			a.expects = slices.Delete(a.expects, i, i+1)
		}
	case what == 2 && x != nil:
		if c.allow(a.host.Cancel(x.handle), host.ErrStale); true {
			a.said[x.handle] = true
		}
	case what == 3 && x != nil:
		c.allow(a.host.Revoke(x.handle), host.ErrStale)
	}
}

func (c *troupe) doTrack() {
	i := c.rnd.IntN(2)
	d := c.reader
	x := pickOne(c.rnd, c.owners[i].recent)
	if x == nil || d.peers[i] == 0 {
		return
	}
	local := takeBlocks(c.rnd, &d.free, len(x.blocks))
	if local == nil {
		return
	}
	h, err := d.host.Track(d.peers[i], &x.remote, []byte("l"), 5, c.now())
	if err != nil {
		c.allow(err, host.ErrFull)
		d.free = append(d.free, local...)
		return
	}
	if c.trackOf(h) != nil {
		c.t.Fatalf("handle %#x was given out before its end was told", h)
	}
	d.tracks = append(d.tracks, &chaosTrack{handle: h, lease: x, local: local, native: true})
}

func (c *troupe) startRead(x *chaosTrack) {
	var runs []record.Run
	for i := range x.local {
		runs = append(runs, record.Run{Local: x.local[i], Remote: x.lease.blocks[i], N: 1})
	}
	err := c.reader.host.Read(x.handle, runs)
	c.allow(err, host.ErrFull)
	x.reading = err == nil
}

func (c *troupe) doUntrack(x *chaosTrack) {
	if x == nil || x.ended {
		return
	}
	c.allow(c.reader.host.Untrack(x.handle), host.ErrStale)
	if !x.reading {
		c.over(x)
	}
}

// over gives a request's local blocks back: from now on nothing may be written to them.
func (c *troupe) over(x *chaosTrack) {
	d := c.reader
	c.wipe(d, x.local)
	d.free = append(d.free, x.local...)
	d.tracks = slices.DeleteFunc(d.tracks, func(o *chaosTrack) bool { return o == x })
}

func (c *troupe) trackOf(h record.Handle) *chaosTrack {
	i := slices.IndexFunc(c.reader.tracks, func(x *chaosTrack) bool { return x.handle == h })
	if i < 0 {
		return nil
	}
	return c.reader.tracks[i]
}

// hear looks at what a host was told since it looked last.
func (c *troupe) hear(a *actor) {
	for _, e := range a.evs[a.heard:] {
		switch e.Kind {
		case record.EvRankUp, record.EvRankDown:
			if a.up[e.Rank] == (e.Kind == record.EvRankUp) && e.Status == 0 {
				c.t.Fatalf("%s: a rank is told twice to be what it is: %+v", a.id, e)
			}
			a.up[e.Rank] = e.Kind == record.EvRankUp
		case record.EvFreed, record.EvExpectLapsed:
			c.owned(a, &e)
		case record.EvEngineUp, record.EvEngineDown:
			if up, known := a.engines[e.Handle]; known && up == (e.Kind == record.EvEngineUp) {
				c.t.Fatalf("%s: an engine is told twice to be what it is: %+v", a.id, e)
			} else if known {
				a.engines[e.Handle] = !up
			}
		default:
			c.tracking(a, &e)
		}
	}
	a.heard = len(a.evs)
	if a == c.reader && c.rnd.IntN(4) == 0 {
		for _, r := range a.ranks {
			r.each(0, a.free, func(b *byte, _ byte) {
				if *b != wiped {
					c.t.Fatalf("a block was written after it was given back: %s", c.state())
				}
			})
		}
	}
}

// owned takes an event of an owner's.
func (c *troupe) owned(a *actor, e *record.Event) {
	h := record.Handle(e.Handle)
	if e.Kind == record.EvExpectLapsed {
		i := slices.IndexFunc(a.expects, func(x chaosExpect) bool { return x.handle == h })
		if i < 0 {
			c.t.Fatalf("%s: lapsed twice, or never expected: %+v", a.id, e)
		}
		a.expects = slices.Delete(a.expects, i, i+1)
		return
	}
	i := slices.IndexFunc(a.leases, func(x *chaosLease) bool { return x.handle == h })
	if i < 0 {
		c.t.Fatalf("%s: freed twice, or never granted: %+v", a.id, e)
	}
	x := a.leases[i]
	if e.Value0 != uint64(len(x.blocks)) || e.User != x.request {
		c.t.Fatalf("%s: %+v, %d blocks were granted as %d", a.id, e, len(x.blocks), x.request)
	}
	for r := range a.ranks {
		if e.Reasons>>(4*r)&15 == 0 || e.Reasons>>(4*r)&15 == record.FreedLost && !a.dead[r] {
			c.t.Fatalf("%s: %+v: the reason of rank %d, dead %v", a.id, e, r, a.dead[r])
		}
	}
	a.leases = slices.Delete(a.leases, i, i+1)
	a.free = append(a.free, x.blocks...)
	a.fill(1<<20|x.request, x.blocks) // used again at once
}

// tracking takes an event of the reader's.
func (c *troupe) tracking(a *actor, e *record.Event) {
	x := c.trackOf(record.Handle(e.Handle))
	switch {
	case a != c.reader:
		c.t.Fatalf("%s: an owner's event: %+v", a.id, e)
	case e.Kind == record.EvAtRisk || e.Kind == record.EvLeaseGone: // perhaps untracked meanwhile
		if x != nil && (x.ended || e.Kind == record.EvLeaseGone && x.gone) {
			c.t.Fatalf("gone twice, or a word after the outcome: %+v", e)
		}
		if x != nil {
			x.gone = x.gone || e.Kind == record.EvLeaseGone
		}
		return
	case x == nil || !x.reading || x.ended != (e.Kind == record.EvBlocksBack) || x.ended && !x.held:
		c.t.Fatalf("no such end is due: %+v of %+v", e, x)
	}
	x.ended = true
	switch {
	case e.Kind == record.EvReadDone:
		c.accepted++
		if n := c.reader.wrong(x.lease.request, x.local); n > 0 {
			c.t.Fatalf("%d wrong bytes were handed out: %+v", n, e)
		}
		c.over(x)
	case e.Kind == record.EvReadFailed && e.Flags&record.FlagBlocksHeld != 0:
		c.refused++
		x.held = true
	case e.Kind == record.EvReadFailed:
		c.refused++
		c.over(x)
	default: // blocks back
		c.over(x)
	}
}
