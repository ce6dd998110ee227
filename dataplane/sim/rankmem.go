package sim

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// The memory of a rank comes, goes and comes again under another era, as kvl_register and kvl_unregister have it.

// register makes the cache known to the transport: core.Register.
func (r *rankCtx) register() error {
	switch {
	case r.blob != nil:
		return errors.New("the memory is registered")
	case r.poisoned:
		return errors.New("poisoned")
	case r.agent == nil:
		if err := r.reopen(); err != nil {
			return err
		}
	}
	list := r.regions()
	if err := r.agent.Register(list); err != nil {
		return err
	}
	blob, err := r.agent.Metadata()
	if err != nil {
		return err
	}
	if err := r.reads.SetLocal(r.cache.layout()); err != nil {
		return err
	}
	_ = r.tracker.SetLocal(r.cache.layout()) // an engine known already that does not fit is not read from
	r.blob = blob
	if r.link != nil { // the map needs the era, which the host tells
		r.enterEra()
		r.wake()
		return nil
	}
	r.ownMap = wire.AppendHandshake(nil, r.describe())
	r.life.side.publish(0, r.ownMap)
	r.wake()
	return nil
}

func (r *rankCtx) regions() []transport.Region {
	list := r.cache.regions()
	return append(list,
		transport.Region{Addr: record.Addr(r.mem.Board), Bytes: uint64(len(r.mem.Board))},
		transport.Region{Addr: record.Addr(r.mem.Landing), Bytes: uint64(len(r.mem.Landing))})
}

// describe is what peers are told: core.describe.
func (r *rankCtx) describe() *wire.Handshake {
	p := r.life.place
	h := &wire.Handshake{
		EngineID: r.life.id, AgentMetadata: r.blob, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN",
		PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1, Native: true,
		Lease: wire.HandshakeLease{
			Version: wire.LeaseVersion, Epoch: r.epoch, Base: r.base, Board: record.Addr(r.mem.Board), Slots: uint32(len(r.mem.Slots)),
			Duration: p.lease(), Agent: r.agent.Agent(), Rank: r.n, TP: p.shape().TP, PP: p.shape().PP, KVHeads: headsN,
		},
	}
	r.cache.describe(h)
	return h
}

// eraTold is called within the step that hears of a new era, before any grant of it.
func (r *rankCtx) eraTold(e record.Era) {
	if r.told = e; r.unheard {
		r.unheard, r.spent = false, e.Era
	}
	r.link.Spent(r.spent == e.Era)
	r.enterEra()
}

// enterEra makes the host's era ours: core.enterEra.
func (r *rankCtx) enterEra() {
	switch {
	case r.told.Era == 0:
		return
	case r.told.Era == r.in:
		r.mapDue = r.mapDue || r.ownMap == nil && r.blob != nil && r.in != r.spent
		return
	case r.ownMap != nil, r.leases.Held() > 0:
		r.ownMap = nil
		r.leases.FenceAll()
		r.leases.EndAll(record.FreedClosed, r.now())
	}
	base := r.life.base(r.n, r.told.Era)
	r.view.over()
	if err := r.leases.Reset(r.told.Secret, base, r.told.Epoch); err != nil {
		return // poisoned
	}
	r.in = r.told.Era
	r.beginEra(eraOf{r.told.Epoch, r.told.Secret}, base)
	r.tracker.Enter(r.epoch, r.now())
	r.mapDue = r.blob != nil && r.in != r.spent
}

// unregister ends the era: core.Unregister. An error: work is in flight, and nothing has changed.
func (r *rankCtx) unregister() error {
	if r.blob == nil {
		return errors.New("nothing is registered")
	}
	if n := r.reads.Open(); n > 0 {
		return fmt.Errorf("%d transfers have not ended", n)
	}
	now := r.now()
	if !r.poisoned {
		r.tracker.Sleep(now)
	}
	r.leases.FenceAll()
	if !r.poisoned {
		r.leases.EndAll(record.FreedClosed, now)
		r.plane.PublishEnds()
	}
	err := r.leave()
	if err != nil { // the leases have ended, and the board is closed
		r.w.after(100*time.Millisecond, r.unregisterAgain)
	}
	return err
}

// unregisterAgain is what the engine does when a peer has not taken yet what it asked for.
func (r *rankCtx) unregisterAgain() {
	switch {
	case r.gone || r.poisoned || r.blob == nil:
		return
	case r.stopped > 0 || r.reads.Open() > 0:
		r.w.after(100*time.Millisecond, r.unregisterAgain)
		return
	}
	if r.unregister() != nil {
		return
	}
	r.life.app.scrubbed()
	if r.w.quiet {
		_ = r.register()
	}
}

// leave destroys the agent: core.leave.
func (r *rankCtx) leave() error {
	if err := r.agent.Close(); err != nil {
		return err
	}
	if r.link == nil {
		r.life.side.withdraw()
	}
	r.agent, r.tap.Transport = nil, transport.Nobody{Of: "sim", As: "nobody"}
	r.blob, r.mapDue = nil, false
	if r.link != nil {
		if r.unheard = r.told.Era == 0; !r.unheard {
			r.spent = r.told.Era
			r.link.Spent(true)
		}
		if r.ownMap != nil {
			r.link.SetMap(nil)
		}
	}
	r.ownMap = nil
	r.cache.scrub(r.life.w) // the memory is gone, and another's now
	r.wake()
	return nil
}

// reopen gives a context that has unregistered an agent, and one of role engine the next era: core.wake.
func (r *rankCtx) reopen() error {
	l, now := r.life, r.now()
	r.leases.FenceAll()
	r.leases.EndAll(record.FreedClosed, now) // grants that were said while there was no memory
	r.plane.PublishEnds()
	if r.link != nil {
		r.in = r.spent // the board is closed: an era that was told meanwhile is entered anew
		if err := r.newAgent(l.w.hash("agent", r.who(), l.number, r.n, r.agents)); err != nil {
			return err
		}
		r.tracker.Wake(r.epoch, now)
		return nil
	}
	l.era = l.nextEra()
	base := l.base(r.n, l.eras)
	r.view.over()
	if err := r.leases.Reset(l.era.secret, base, l.era.epoch); err != nil {
		return err
	}
	if err := r.newAgent(l.era.epoch); err != nil {
		return err
	}
	r.beginEra(l.era, base)
	l.side.begin()
	r.tracker.Wake(r.epoch, now)
	return nil
}

// beginEra is who the context is to peers from now on.
func (r *rankCtx) beginEra(e eraOf, base uint64) {
	r.epoch, r.secret, r.base = e.epoch, e.secret, base
	r.mem.Epoch, r.mem.Secret, r.mem.Base = r.epoch, r.secret, r.base
	r.mem.Control.BeginEra(r.epoch, r.secret)
}
