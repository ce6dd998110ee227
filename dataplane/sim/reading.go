package sim

import (
	"fmt"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// request is what a reader tracks.
type request struct {
	life    *life
	name    string
	of      *grant
	handle  record.Handle
	from    uint32   // position of blocks[0]
	blocks  []uint32 // of the reader
	scrubs  int      // of its engine when they were taken
	read    bool
	untrack bool
	outcome bool
	done    bool
	held    bool
	back    bool
	gone    bool
	risk    bool
	status  int
	at      clock.Instant
}

// track starts heartbeats for a grant of another engine, with its parameters as they come from the router.
func (a *app) track(name string, g *grant) error {
	p := new(wire.Params)
	if err := wire.ParseParams(g.params, p); err != nil {
		return err
	}
	at := a.w.byID[p.Host]
	if at == nil {
		return fmt.Errorf("no engine at %q", p.Host)
	}
	engine, err := a.life.side.add(p.EngineID, at)
	if err != nil {
		return err
	}
	h, err := a.host.Track(engine, remoteOf(p), []byte(name), uint64(len(a.order)), a.life.place.local(a.w.now))
	if err != nil {
		return err
	}
	q := &request{life: a.life, name: name, of: g, handle: h, at: a.w.now}
	a.tracks[h] = q
	a.order = append(a.order, q)
	a.w.requests[a.who()+"/"+name] = q
	return nil
}

// remoteOf is what a reader's hooks take of the parameters.
func remoteOf(p *wire.Params) *host.Remote {
	r := &host.Remote{ID: []byte(p.RequestID)}
	if p.Native {
		r.Native, r.Epoch, r.Key, r.Slot, r.Generation = true, p.Lease.Epoch, p.Lease.Key, p.Lease.Slot, p.Lease.Generation
	}
	if p.ExpiryTime != nil {
		r.ExpiresNs = uint64(*p.ExpiryTime * 1e9)
	}
	return r
}

// reject tells the owner that nobody here will read.
func (a *app) reject(g *grant) error {
	p := new(wire.Params)
	if err := wire.ParseParams(g.params, p); err != nil {
		return err
	}
	engine, err := a.life.side.add(p.EngineID, a.w.byID[p.Host])
	if err != nil {
		return err
	}
	return a.host.Reject(engine, remoteOf(p), a.life.place.local(a.w.now))
}

// read asks for n blocks from a position on.
func (a *app) read(q *request, from, n uint32) error {
	switch {
	case q.gone:
		return fmt.Errorf("its lease is gone")
	case q.read || q.untrack:
		return fmt.Errorf("it was read or untracked")
	case uint64(from)+uint64(n) > uint64(len(q.of.blocks)):
		return fmt.Errorf("positions %d to %d of %d", from, uint64(from)+uint64(n), len(q.of.blocks))
	}
	var blocks []uint32
	if n > 0 {
		if blocks = a.take(n, blockReading); blocks == nil {
			return fmt.Errorf("%d blocks are free, %d wanted", len(a.free), n)
		}
	}
	var runs []record.Run
	for i, b := range blocks {
		runs = append(runs, record.Run{Group: 0, Local: b, Remote: q.of.blocks[int(from)+i], N: 1})
	}
	if err := a.host.Read(q.handle, runs); err != nil {
		a.give(blocks)
		return err
	}
	q.read, q.from, q.blocks, q.scrubs = true, from, blocks, a.scrubs
	a.w.say(Engines, a.who(), -1, q.name, "reads into blocks %v from %v of %s", blocks, q.of.blocks[from:from+n], q.of.life.id)
	return nil
}

func (a *app) untrack(q *request) error {
	if q.untrack || q.outcome {
		return fmt.Errorf("it is over")
	}
	if err := a.host.Untrack(q.handle); err != nil {
		return err
	}
	q.untrack = true
	return nil
}

// outcome takes the end of a read.
func (a *app) outcome(h record.Handle, ev *record.Event) {
	q := a.tracks[h]
	if q == nil || !q.read || q.outcome {
		a.w.broke(OneEnd, a.who(), "", "an outcome %d of a read that was not asked for, or a second one: %#x", ev.Kind, ev.Handle)
		return
	}
	q.outcome, q.status, q.at = true, int(ev.Status), a.w.now
	if ev.Kind == record.EvReadFailed {
		a.w.res.Failed[ev.Status&7]++
		if q.held = ev.Flags&record.FlagBlocksHeld != 0; !q.held {
			a.give(q.blocks)
		}
		return
	}
	a.w.res.Done++
	q.done = true
	a.compare(q, "accepted")
	a.set(q.blocks, blockKept)
	keep := within(a.w.hash("keep", a.who(), uint64(h)), a.life.place.lease()/2) // it is decoded from
	life := a.life
	a.w.after(keep, func() {
		if !life.dead {
			a.compare(q, "used")
			a.give(q.blocks)
		}
	})
}

// compare holds what was accepted against what was granted.
func (a *app) compare(q *request, when string) {
	if q.scrubs != a.scrubs {
		return // its memory was unregistered meanwhile, and is another's
	}
	for i, b := range q.blocks {
		for _, r := range a.life.ranks {
			if r.gone || r.poisoned || r.blob == nil {
				continue
			}
			a.w.res.Compared++
			if n := r.cache.wrong(q.of.serial, q.from+uint32(i), b); n > 0 {
				if q.of.stock && !q.late() {
					a.w.res.StockWrong++ // the time guard is a filter and not a proof
					return
				}
				a.w.broke(WrongData, a.who(), q.name, "rank %d: block %d at position %d has %d wrong words when it is %s", r.n, b, q.from+uint32(i), n, when)
				return
			}
		}
	}
}

// late reports that what was read wrong is a fixed lease of a stock owner that was held to its end. Of that the parameters have told the
// end, and a clock that is converted with a known error leaves nothing to chance. Not where a record may take longer to a rank than is
// believed, nor with machines that sleep: their owner's clock is modelled with one word only. Nor where the owner had spoilt its blocks
// itself: it gives those of a failed read back while that still lands.
func (q *request) late() bool {
	g := q.of
	return g.fixed && g.ended && !g.spoilt && g.reason == record.FreedExpired && q.life.place.spec.Carrier != "delta" &&
		q.life.place.suspended == 0 && g.life.place.suspended == 0
}

// written is called with each piece that lands: only where a read may write.
func (w *World) written(p *simnet.Write) {
	a := w.agents[p.Reader]
	if a != nil && a.place.life.stock != nil {
		a.place.life.stock.written(a.rank, p.Local)
	}
	if a == nil || a.ctx == nil || a.ctx.gone || a.ctx.life.dead {
		return
	}
	r := a.ctx
	b, ok := r.cache.blockAt(p.Local)
	if !ok {
		return // a row
	}
	if s := &r.life.app.blocks[b]; s.use != blockReading {
		w.broke(Aside, r.who(), "", "rank %d: a transfer writes into block %d, which is %s", r.n, b, [...]string{"free", "leased", "being read", "in use"}[s.use])
		s.mark = 0 // said once
	}
}
