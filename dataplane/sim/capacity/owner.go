package capacity

import (
	"errors"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/internal/list"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// prefiller is a P: it computes one request after the other into a cache that is shared with those under leases. A request that
// does not fit waits, and all behind it.
type prefiller struct {
	*engine
	free    int       // blocks
	queue   list.List // requests that wait
	busy    int32     // the one that is computed, none
	load    int64     // tokens waiting or computed
	tenures []tenure
	held    int
	crashAt clock.Instant // its last crash
	stale   uint64        // epoch of the boot before it
}

// tenure is what is known of the lease in one slot.
type tenure struct {
	handle  record.Handle
	blocks  int32
	alive   bool
	granted clock.Instant
	dead    clock.Instant // since when nobody will read it, 0: somebody may
	crashed clock.Instant // when its reader crashed, 0: it did not
	read    clock.Instant // when it was read, 0: it was not
	freed   clock.Instant

	before      record.Handle // the use of the slot before this one, and its end
	beforeFreed clock.Instant
}

func newPrefiller(e *engine) *prefiller {
	p := &prefiller{engine: e}
	e.poll = p.event
	p.reset()
	return p
}

// reset is what a new boot begins with.
func (p *prefiller) reset() {
	p.free, p.queue, p.busy, p.load, p.held = p.w.cfg.CacheBlocks, list.New(), none, 0, 0
	p.tenures = make([]tenure, p.w.owner().slots)
}

// enter takes a request into the queue.
func (p *prefiller) enter(i int32) {
	r := &p.w.reqs[i]
	r.state, r.p, r.refused = waiting, p.index, false
	p.load += int64(r.input)
	p.w.push(&p.queue, i)
	p.begin()
}

// begin computes the next request if its blocks and a lease for them can be had.
func (p *prefiller) begin() {
	w := p.w
	if p.busy != none || p.queue.Head == list.None || w.now < p.stalledTill {
		return
	}
	i := int32(p.queue.Head)
	r := &w.reqs[i]
	if int(r.blocks) > p.free || p.held == len(p.tenures) {
		if !r.refused {
			r.refused, r.asked = true, w.now
			w.refused++
		}
		return
	}
	if r.refused {
		w.refusedFor.add(w.now.Sub(r.asked))
	}
	w.remove(&p.queue, i)
	p.free -= int(r.blocks)
	p.busy, r.state = i, prefilling
	w.work(float64(r.input)/w.cfg.Prefill, happening{kind: evPrefilled, engine: p.index, token: w.token(i)})
}

// prefilled grants the blocks and answers the router.
func (p *prefiller) prefilled(token uint64) {
	w := p.w
	i := w.ofToken(token)
	if i == none || i != p.busy {
		return // of a boot before
	}
	again := happening{kind: evPrefilled, engine: p.index, token: token}
	if w.now < p.stalledTill {
		w.at(p.stalledTill, again)
		return
	}
	r := &w.reqs[i]
	g := host.Grant{ID: w.idOf(i), Blocks: uint32(r.blocks), Tokens: uint32(r.input), User: token}
	if w.set.Fixed {
		g.Fixed, g.TTL = true, w.set.Term
	}
	h, err := p.host.Grant(g, w.now)
	if errors.Is(err, host.ErrFull) { // the ring, until the next step
		w.at(w.now.Add(w.cfg.Pass), again)
		return
	}
	if err != nil {
		w.violated("a grant within the table is taken", p.id, "%v", err)
		return
	}
	p.lease(i, h)
	if err := w.carry(p, i, h); err != nil {
		w.violated("parameters are read as they were written", p.id, "%v", err)
		return
	}
	p.busy = none
	p.load -= int64(r.input)
	w.tokens += uint64(r.input)
	r.state, r.pEpoch, r.d = handed, p.mem.Epoch, none
	w.at(w.now.Add(w.cfg.Handover), happening{kind: evHandover, token: token})
	w.wake(p.engine)
	p.begin()
}

// lease opens the ledger's page of a grant.
func (p *prefiller) lease(i int32, h record.Handle) {
	w := p.w
	t := &p.tenures[h.Slot()]
	if t.alive {
		w.violated("a slot is granted again only when its lease has ended", p.id, "slot %d", h.Slot())
		return
	}
	*t = tenure{handle: h, blocks: w.reqs[i].blocks, alive: true, granted: w.now, before: t.handle, beforeFreed: t.freed}
	p.held++
	w.held.add(t)
	w.grants++
	w.reqs[i].lease = h
}

// carry takes a lease's parameters through their JSON form, as the router does.
func (w *world) carry(p *prefiller, i int32, h record.Handle) error {
	epoch, key, _ := p.host.Era(h)
	out := wire.Params{
		DoRemotePrefill: true, EngineID: p.id, RequestID: string(w.idOf(i)), Host: "localhost", Port: 5600, TPSize: 1, DCPSize: 1, PPSize: 1,
		NumTokens: uint32(w.reqs[i].input), Groups: w.groups, TransferMode: "read", Native: true,
		Lease: wire.ParamsLease{Version: wire.LeaseVersion, Epoch: epoch, Slot: h.Slot(), Generation: h.Use(), Key: key},
	}
	if w.set.Fixed {
		at := w.now.Add(w.set.Term).Sub(0).Seconds()
		out.ExpiryTime = &at
	}
	w.text = wire.AppendParams(w.text[:0], &out)
	if err := wire.ParseParams(w.text, &w.params); err != nil {
		return err
	}
	r := &w.reqs[i]
	r.remote = host.Remote{
		Native: w.params.Native, Epoch: w.params.Lease.Epoch, Key: w.params.Lease.Key, Slot: w.params.Lease.Slot, Generation: w.params.Lease.Generation,
	}
	if w.params.ExpiryTime != nil {
		r.remote.ExpiresNs = uint64(*w.params.ExpiryTime * 1e9)
	}
	return nil
}

// event takes an event of the plane.
func (p *prefiller) event(ev *record.Event) {
	if ev.Kind != record.EvFreed {
		p.w.violated("an owner hears of ends only", p.id, "event %d", ev.Kind)
		return
	}
	p.freed(record.Handle(ev.Handle), ev.Status)
}

// freed closes the page: the blocks are the cache's again.
func (p *prefiller) freed(h record.Handle, reason int32) {
	w := p.w
	if int(h.Slot()) >= len(p.tenures) || p.tenures[h.Slot()].handle != h || !p.tenures[h.Slot()].alive {
		w.violated("every granted block is freed exactly once", p.id, "a lease that is not held ended: %#x, reason %d", uint64(h), reason)
		return
	}
	t := &p.tenures[h.Slot()]
	p.close(t, reason)
	p.free += int(t.blocks)
	if p.free > w.cfg.CacheBlocks {
		w.violated("no more blocks are free than there are", p.id, "%d of %d", p.free, w.cfg.CacheBlocks)
	}
}

// close ends a tenure: freed, or gone with its process (reason 0).
func (p *prefiller) close(t *tenure, reason int32) {
	w := p.w
	t.alive, t.freed = false, w.now
	p.held--
	w.held.remove(t)
	w.freedBy[reason&15]++
	span := w.now.Sub(t.granted).Seconds() * float64(t.blocks)
	w.blockSeconds += span
	switch {
	case t.dead != 0:
		w.wasted += w.now.Sub(t.dead).Seconds() * float64(t.blocks)
	case t.read != 0:
		w.handBack += w.now.Sub(t.read).Seconds() * float64(t.blocks)
	}
	if t.crashed != 0 && reason != 0 {
		w.reclaim.add(w.now.Sub(t.crashed))
	}
}

// of gives the page of a request's lease, or nil: its owner's boot or its slot's use is another one now.
func (w *world) of(r *request) *tenure {
	if r.p == none || !w.ps[r.p].alive || w.ps[r.p].mem.Epoch != r.pEpoch {
		return nil
	}
	if t := &w.ps[r.p].tenures[r.lease.Slot()]; t.handle == r.lease {
		return t
	}
	return nil
}

// abandon notes that nobody will read a request's blocks any more.
func (w *world) abandon(r *request, crash bool) {
	t := w.of(r)
	if t == nil || !t.alive || t.read != 0 {
		return
	}
	t.dead = w.now
	w.held.waste(t)
	if crash {
		t.crashed = w.now
	}
}
