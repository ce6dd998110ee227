package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// What the hosts of a chaos say and hear.

const wiped = 0xAB // in every block that nothing may be written to

func (c *chaos) wipe(reader int, list []uint32) {
	for layer := range labLayers {
		for _, b := range list {
			block := c.nodes[reader].block(layer, b)
			for i := range block {
				block[i] = wiped
			}
		}
	}
}

// takeBlocks takes n of them, nil if there are not as many.
func takeBlocks(rnd *rand.Rand, from *[]uint32, n int) []uint32 {
	if len(*from) < n {
		return nil
	}
	rnd.Shuffle(len(*from), func(i, j int) { (*from)[i], (*from)[j] = (*from)[j], (*from)[i] })
	out := slices.Clone((*from)[:n])
	*from = (*from)[n:]
	return out
}

// chaosID is an id of the n-th request, of one of the shapes that ids have.
func chaosID(rnd *rand.Rand, n uint64) string {
	tails := []string{"", "", "", ",x,y", strings.Repeat("l", 500), "HB:1", "é"}
	return fmt.Sprint("r-", n, tails[rnd.IntN(len(tails))])
}

func (c *chaos) doGrant() {
	list := takeBlocks(c.rnd, &c.freeP, 1+c.rnd.IntN(5))
	if list == nil {
		return
	}
	c.requests++
	id, expected := chaosID(c.rnd, c.requests), -1
	if n := len(c.expects); n > 0 && c.rnd.IntN(3) == 0 {
		expected = c.rnd.IntN(n)
		id = c.expects[expected].id
	} else if x := pickOne(c.rnd, c.recent); x != nil && c.rnd.IntN(20) == 0 {
		id = string(x.remote.ID) // perhaps held: a duplicate
	}
	g := host.Grant{ID: []byte(id), Blocks: uint32(len(list)), User: c.requests}
	if c.rnd.IntN(2) == 0 {
		g.TTL = time.Duration(c.rnd.IntN(8000)) * time.Millisecond
	}
	if expected >= 0 {
		g.Expected = c.expects[expected].handle
	}
	p := c.nodes[0]
	p.fill(c.requests, list)
	h, err := p.host.Grant(g, c.now)
	if err != nil {
		c.allow(err, host.ErrFull)
		c.freeP = append(c.freeP, list...)
		return
	}
	if expected >= 0 && h == g.Expected {
		c.expects = slices.Delete(c.expects, expected, expected+1)
	}
	x := &chaosLease{handle: h, request: c.requests, blocks: list, remote: host.Remote{
		ID: []byte(id), Native: true, Epoch: p.core.mem.Epoch, Key: p.host.Key(h), Slot: h.Slot(), Generation: h.Use(),
	}}
	if slices.ContainsFunc(c.leases, func(o *chaosLease) bool { return o.handle == h }) {
		c.t.Fatalf("handle %#x was given out twice", h)
	}
	c.leases, c.recent = append(c.leases, x), append(c.recent, x)
	c.recent = c.recent[max(len(c.recent)-12, 0):]
}

func (c *chaos) takeBack() {
	p, x := c.nodes[0].host, pickOne(c.rnd, c.leases)
	switch what := c.rnd.IntN(5); {
	case what == 0:
		c.allow(p.Pressure(uint32(c.rnd.IntN(20))), host.ErrFull)
	case what == 1 && len(c.expects) > 0:
		e := &c.expects[c.rnd.IntN(len(c.expects))]
		e.over = true // its lapse may be on the way
		c.allow(p.Cancel(e.handle), host.ErrStale)
	case what == 2 && x != nil:
		c.allow(p.Cancel(x.handle), host.ErrStale)
	case what == 3 && x != nil:
		c.allow(p.Revoke(x.handle), host.ErrStale)
	}
}

func (c *chaos) doTrack(reader int) {
	x := pickOne(c.rnd, c.recent)
	if x == nil {
		return
	}
	local := takeBlocks(c.rnd, &c.freeD[reader], len(x.blocks))
	if local == nil {
		return
	}
	r := x.remote
	r.Native = c.rnd.IntN(4) != 0
	h, err := c.nodes[reader].host.Track(c.peers[reader], &r, []byte("l"), 5, c.now)
	if err != nil {
		c.allow(err, host.ErrFull)
		c.freeD[reader] = append(c.freeD[reader], local...)
		return
	}
	if c.trackOf(reader, h) != nil {
		c.t.Fatalf("handle %#x was given out before its end was told", h)
	}
	c.tracks[reader] = append(c.tracks[reader], &chaosTrack{handle: h, lease: x, local: local, native: r.Native})
}

func (c *chaos) doRead(reader int) {
	if x := pickOne(c.rnd, c.tracks[reader]); x != nil && !x.reading {
		c.startRead(reader, x)
	}
}

func (c *chaos) startRead(reader int, x *chaosTrack) {
	var runs []record.Run
	for i := range x.local {
		runs = append(runs, record.Run{Local: x.local[i], Remote: x.lease.blocks[i], N: 1})
	}
	err := c.nodes[reader].host.Read(x.handle, runs)
	c.allow(err, host.ErrFull)
	x.reading = err == nil
}

func (c *chaos) doUntrack(reader int, x *chaosTrack) {
	if x == nil || x.ended {
		return
	}
	c.allow(c.nodes[reader].host.Untrack(x.handle), host.ErrStale)
	if !x.reading {
		c.over(reader, x)
	}
}

// over gives a request's local blocks back: from now on nothing may be written to them.
func (c *chaos) over(reader int, x *chaosTrack) {
	c.wipe(reader, x.local)
	c.freeD[reader] = append(c.freeD[reader], x.local...)
	c.tracks[reader] = slices.DeleteFunc(c.tracks[reader], func(o *chaosTrack) bool { return o == x })
}

func (c *chaos) trackOf(reader int, h record.Handle) *chaosTrack {
	i := slices.IndexFunc(c.tracks[reader], func(x *chaosTrack) bool { return x.handle == h })
	if i < 0 {
		return nil
	}
	return c.tracks[reader][i]
}

func (c *chaos) poll(i int) {
	var buf [64]record.Event
	for {
		n := c.nodes[i].host.Poll(buf[:], c.now)
		for _, e := range buf[:n] {
			if i == 0 {
				c.owned(&e)
			} else {
				c.tracking(i, &e)
			}
		}
		if n < len(buf) {
			break
		}
	}
	for _, b := range c.freeD[i] {
		for layer := range labLayers {
			if slices.ContainsFunc(c.nodes[i].block(layer, b), func(v byte) bool { return v != wiped }) {
				c.t.Fatalf("reader %d: block %d was written after it was given back", i, b)
			}
		}
	}
}

// owned takes an event of the owner's.
func (c *chaos) owned(e *record.Event) {
	switch e.Kind {
	case record.EvFreed:
		i := slices.IndexFunc(c.leases, func(x *chaosLease) bool { return uint64(x.handle) == e.Handle })
		if i < 0 {
			c.t.Fatalf("freed twice, or never granted: %+v", e)
		}
		x := c.leases[i]
		if e.Value0 != uint64(len(x.blocks)) {
			c.t.Fatalf("%d blocks freed, %d were granted", e.Value0, len(x.blocks))
		}
		c.leases = slices.Delete(c.leases, i, i+1)
		c.freeP = append(c.freeP, x.blocks...)
		c.nodes[0].fill(1<<20|x.request, x.blocks) // used again at once
	case record.EvExpectLapsed:
		i := slices.IndexFunc(c.expects, func(x chaosExpect) bool { return uint64(x.handle) == e.Handle })
		if i < 0 {
			c.t.Fatalf("lapsed twice, or never expected: %+v", e)
		}
		c.expects = slices.Delete(c.expects, i, i+1)
	default:
		c.t.Fatalf("an owner's event: %+v", e)
	}
}

// tracking takes an event of a reader's.
func (c *chaos) tracking(reader int, e *record.Event) {
	x := c.trackOf(reader, record.Handle(e.Handle))
	switch e.Kind {
	case record.EvEngineUp, record.EvEngineDown:
		return
	case record.EvAtRisk, record.EvLeaseGone: // perhaps untracked meanwhile
		if x != nil && (x.ended || e.Kind == record.EvLeaseGone && x.gone) {
			c.t.Fatalf("gone twice, or a word after the outcome: %+v", e)
		}
		if x != nil {
			x.gone = x.gone || e.Kind == record.EvLeaseGone
		}
		return
	}
	if x == nil || !x.reading || x.ended != (e.Kind == record.EvBlocksBack) || x.ended && !x.held {
		c.t.Fatalf("no such end is due: %+v of %+v", e, x)
	}
	x.ended = true
	switch {
	case e.Kind == record.EvReadDone:
		c.accepted++
		if x.native && c.nodes[reader].wrong(x.lease.request, x.local) > 0 {
			c.wrong++
		}
		c.over(reader, x)
	case e.Kind == record.EvReadFailed && e.Flags&record.FlagBlocksHeld != 0:
		c.refused++
		x.held = true
	case e.Kind == record.EvReadFailed:
		c.refused++
		c.over(reader, x)
	default: // blocks back
		c.over(reader, x)
	}
}
