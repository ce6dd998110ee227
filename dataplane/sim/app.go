package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// app is the engine itself: it gives out blocks of its cache, says the hooks and polls. Blocks of a lease are written over in the
// moment in which they are freed, blocks of a read in which they are given back: whatever is accepted must still be what was granted.
type app struct {
	w      *World
	life   *life
	host   *host.Host
	free   []uint32 // the last is taken first, so that a block is used again soon
	blocks []blockState
	leases map[record.Handle]*grant
	tracks map[record.Handle]*request
	order  []*request // all that were tracked
	grants []*grant
	broken bool // EvPoisoned was polled
	scrubs int  // times that memory of a rank was lost
}

type blockUse uint8

const (
	blockFree    blockUse = iota // and holds its mark
	blockLeased                  // nobody may write
	blockReading                 // a transfer may
	blockKept                    // accepted, and used by the engine
)

type blockState struct {
	use  blockUse
	mark uint64
}

// grant is a lease, or an expectation, as the engine knows it.
type grant struct {
	life    *life
	name    string
	id      string
	handle  record.Handle
	serial  uint64
	epoch   uint64 // that the parameters name
	blocks  []uint32
	params  []byte
	fixed   bool
	granted bool
	ended   bool
	reason  int
	at      clock.Instant // true time of the grant, of the end once ended
	cancel  bool          // said
	revoke  bool          // said
	back    clock.Instant // true time of the cancel of an expectation: the next step gives its slot back. Never: EvExpectLapsed does
	ttl     time.Duration
	stock   bool // granted by a stock engine
	spoilt  bool // that engine's own reads wrote into its blocks
}

func newApp(l *life) *app {
	a := &app{w: l.w, life: l, leases: map[record.Handle]*grant{}, tracks: map[record.Handle]*request{}}
	n := l.place.blocks()
	a.blocks = make([]blockState, n)
	for b := range n {
		a.free = append(a.free, n-1-b)
	}
	return a
}

func (a *app) who() string { return a.life.place.spec.ID }

// take gives n blocks, each of which must be as it was left.
func (a *app) take(n uint32, use blockUse) []uint32 {
	if int(n) > len(a.free) {
		return nil
	}
	out := make([]uint32, 0, n)
	for range n {
		b := a.free[len(a.free)-1]
		a.free = a.free[:len(a.free)-1]
		a.whole(b, "is given out")
		a.blocks[b] = blockState{use: use}
		out = append(out, b)
	}
	return out
}

// whole checks that nobody wrote into a free block.
func (a *app) whole(b uint32, when string) {
	s := a.blocks[b]
	if s.mark == 0 {
		return
	}
	for _, r := range a.life.ranks {
		if !r.gone && !r.cache.holds(b, s.mark) && r.blob != nil {
			a.w.broke(Aside, a.who(), "", "rank %d: block %d was written to while it was free; seen when it %s", r.n, b, when)
			return
		}
	}
}

// give takes blocks back and writes over them.
func (a *app) give(blocks []uint32) {
	for _, b := range blocks {
		a.w.junk++
		m := junkMark | a.w.junk
		for _, r := range a.life.ranks {
			r.cache.mark(b, m)
		}
		a.blocks[b] = blockState{mark: m}
		a.free = append(a.free, b)
	}
}

// scrubbed says that all memory of a rank was written over: marks mean nothing any more.
func (a *app) scrubbed() {
	a.scrubs++
	for b := range a.blocks {
		a.blocks[b].mark = 0
	}
}

func (a *app) set(blocks []uint32, use blockUse) {
	for _, b := range blocks {
		a.blocks[b] = blockState{use: use}
	}
}

// expect says that a request has begun to run.
func (a *app) expect(name, id string) error {
	h, err := a.host.Expect([]byte(id))
	if err != nil {
		return err
	}
	g := &grant{life: a.life, name: name, id: id, handle: h, at: a.w.now}
	a.leases[h] = g
	a.w.grants[name] = g
	return nil
}

// grant holds blocks under a lease and makes the parameters.
func (a *app) grant(name, id string, n uint32, ttl time.Duration, fixed bool) error {
	l := a.life
	blocks := a.take(n, blockLeased)
	if blocks == nil {
		return fmt.Errorf("%d blocks are free, %d wanted", len(a.free), n)
	}
	a.w.handed++
	g := &grant{
		life: l, name: name, id: id, serial: uint64(a.w.handed), blocks: blocks, fixed: fixed, granted: true, at: a.w.now, ttl: ttl,
	}
	for _, r := range l.ranks {
		for i, b := range blocks {
			r.cache.fill(g.serial, uint32(i), b)
		}
	}
	spec := host.Grant{ID: []byte(id), Blocks: n, Tokens: 16 * n, TTL: ttl, Fixed: fixed, User: g.serial}
	if e := a.w.grants[name]; e != nil && e.life == l && !e.granted && !e.ended && !e.cancel {
		spec.Expected = e.handle
	}
	now := l.place.local(a.w.now)
	h, err := a.host.Grant(spec, now)
	if err != nil {
		a.give(blocks)
		a.refused(err)
		return err
	}
	if spec.Expected != 0 && spec.Expected != h { // the expectation had lapsed: its event is still to come
		a.leases[spec.Expected].ended, a.leases[spec.Expected].back = true, clock.Never
	}
	g.handle = h
	if old := a.leases[h]; old != nil && old.granted {
		a.w.broke(OneEnd, a.who(), name, "a grant has the handle %#x of %q", uint64(h), old.name)
	}
	a.leases[h] = g
	a.w.grants[name] = g
	a.grants = append(a.grants, g)
	a.w.res.Granted++
	a.checkSlot(g)
	epoch, key, _ := a.host.Era(h)
	g.epoch = epoch
	p := &wire.Params{
		DoRemotePrefill: true, EngineID: l.id, RequestID: id, Host: l.place.spec.ID, Port: 5600, TPSize: l.place.shape().TP, DCPSize: 1,
		PPSize: l.place.shape().PP, NumTokens: 16 * n, Groups: [][]uint32{blocks}, TransferMode: "pull", Native: true,
		Lease: wire.ParamsLease{Version: wire.LeaseVersion, Epoch: epoch, Slot: h.Slot(), Generation: h.Use(), Key: key},
	}
	if fixed {
		left := ttl
		if left == 0 {
			left = l.blocksTTL()
		}
		s := float64(l.place.monotonic(a.w.now).Add(left)) / 1e9
		p.ExpiryTime = &s
	}
	g.params = wire.AppendParams(nil, p)
	return nil
}

func (l *life) blocksTTL() time.Duration {
	switch {
	case l.place.spec.BlocksTTL > 0:
		return l.place.spec.BlocksTTL
	case l.host != nil:
		return 480 * time.Second
	}
	return 16 * l.place.lease()
}

// refused checks a grant that found no room (L7).
func (a *app) refused(err error) {
	if err != host.ErrFull {
		return
	}
	open := 0
	c := a.life.contexts()[0]
	for _, g := range a.leases {
		if !g.ended || g.back >= c.last {
			open++
		}
	}
	if open < a.life.place.slots() && c.stopped == 0 && a.w.now.Sub(c.last) <= a.life.place.pass*2 && !a.broken {
		a.w.broke("L7", a.who(), "", "a grant was refused as full with %d of %d slots in use", open, a.life.place.slots())
	}
}

// checkSlot looks whether every rank has ended the former use of a slot that is granted (L11).
func (a *app) checkSlot(g *grant) {
	for _, r := range a.life.ranks {
		if r.gone || r.poisoned {
			continue
		}
		s := r.mem.Slots[g.handle.Slot()].State
		if use, bits := uint32(s>>32), uint32(s)&record.Mask; a.life.host != nil && use < g.handle.Use() && bits == record.Granted && r.in == a.life.eras {
			a.w.broke("L11", a.who(), g.name, "slot %d is granted for use %d while rank %d holds use %d", g.handle.Slot(), g.handle.Use(), r.n, use)
		}
	}
}

// poll takes what the context tells.
func (a *app) poll() {
	var buf [32]record.Event
	for {
		n := a.host.Poll(buf[:], a.life.place.local(a.w.now))
		for i := range buf[:n] {
			a.told(&buf[i])
		}
		if n < len(buf) {
			return
		}
	}
}

func (a *app) told(ev *record.Event) {
	h := record.Handle(ev.Handle)
	name := ""
	switch ev.Kind {
	case record.EvFreed, record.EvExpectLapsed:
		if g := a.leases[h]; g != nil {
			name = g.name
		}
	case record.EvReadDone, record.EvReadFailed, record.EvBlocksBack, record.EvLeaseGone, record.EvAtRisk:
		if q := a.tracks[h]; q != nil {
			name = q.name
		}
	}
	if a.w.o.Log {
		a.w.log(Entry{Kind: Told, Engine: a.who(), Rank: -1, Req: name, Event: ev.Kind, Status: int(ev.Status), What: eventText(ev)})
	}
	switch ev.Kind {
	case record.EvFreed:
		a.freed(h, ev)
	case record.EvExpectLapsed:
		if g := a.leases[h]; g == nil || g.granted {
			a.w.broke(OneEnd, a.who(), name, "an expectation %#x lapsed that is none", ev.Handle)
		} else {
			g.ended, g.back = true, 0
		}
	case record.EvReadDone, record.EvReadFailed:
		a.outcome(h, ev)
	case record.EvBlocksBack:
		q := a.tracks[h]
		if q == nil || !q.held || q.back {
			a.w.broke(OneEnd, a.who(), name, "blocks came back that were not held: %#x", ev.Handle)
			return
		}
		q.back, q.held = true, false
		a.give(q.blocks)
	case record.EvLeaseGone:
		q := a.tracks[h]
		if q == nil || q.gone {
			a.w.broke(OneEnd, a.who(), name, "a lease that is gone was told for nothing, or twice: %#x", ev.Handle)
			return
		}
		q.gone = true
		if !q.read && !q.untrack {
			_ = a.untrack(q)
		}
	case record.EvAtRisk:
		if q := a.tracks[h]; q != nil {
			q.risk = true
		}
	case record.EvPoisoned:
		a.broken = true
	}
}

// freed takes the end of a lease: its blocks are somebody else's from this moment on.
func (a *app) freed(h record.Handle, ev *record.Event) {
	g := a.leases[h]
	if g == nil || !g.granted || g.ended {
		a.w.broke("L3", a.who(), "", "freed %#x as %d: unknown, or told before", ev.Handle, ev.Status)
		return
	}
	if ev.Status < record.FreedCompleted || ev.Status > record.FreedLost {
		a.w.broke("L3", a.who(), g.name, "freed without a reason: %d", ev.Status)
	}
	g.ended, g.reason = true, int(ev.Status)
	if int(ev.Status) < len(a.w.res.Freed) {
		a.w.res.Freed[ev.Status]++
	}
	for _, r := range a.life.ranks {
		reason := int(ev.Reasons >> (4 * min(r.n, 15)) & 15)
		r.view.freed(g, reason)
	}
	g.at = a.w.now
	a.give(g.blocks)
}

// done reports that nothing of the engine is left open. Blocks of reads that a broken context will not end stay aside.
func (a *app) done() string {
	if a.broken || a.host == nil {
		return ""
	}
	for _, g := range a.grants {
		if !g.ended {
			return fmt.Sprintf("grant %q has no end", g.name)
		}
	}
	for _, q := range a.order {
		if q.read && !q.outcome {
			return fmt.Sprintf("the read of %q has no outcome", q.name)
		}
		if q.held && !a.life.hurt() {
			return fmt.Sprintf("the blocks of %q are not back", q.name)
		}
	}
	return ""
}

// endAll takes back what only the engine can end.
func (a *app) endAll(reads bool) {
	if a.host == nil {
		for _, q := range a.order {
			if !q.read && !q.untrack {
				_ = a.life.stock.untrack(q)
			}
		}
		return
	}
	for _, q := range a.order {
		if !q.untrack && !q.outcome && (reads || !q.read) {
			_ = a.untrack(q)
		}
	}
	for _, h := range a.handles() {
		if g := a.leases[h]; !g.granted && !g.ended && !g.cancel && a.host.Cancel(g.handle) == nil {
			g.cancel, g.ended, g.back = true, true, a.w.now // of a cancelled expectation nothing is heard
		}
	}
}

// hurt reports that a context of this life is broken: what it reads into may be written for ever.
func (l *life) hurt() bool {
	return slices.ContainsFunc(l.ranks, func(r *rankCtx) bool { return r.poisoned })
}

func (a *app) handles() (all []record.Handle) {
	for h := range a.leases {
		all = append(all, h)
	}
	slices.Sort(all)
	return all
}
