package sim

import (
	"fmt"
	"slices"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// A stock engine as reader: requests are queued until its next step, reads are posted without a look at anything but the handshake.

// track starts heartbeats for a grant of another engine.
func (s *stockEngine) track(name string, g *grant) error {
	p := s.know(g.life.place)
	if p == nil {
		return fmt.Errorf("no engine there")
	}
	q := &request{life: s.life, name: name, of: g, at: s.w.now}
	s.life.app.order = append(s.life.app.order, q)
	s.w.requests[s.life.place.spec.ID+"/"+name] = q
	if !slices.Contains(p.tracked, g.id) {
		p.tracked = append(p.tracked, g.id)
	}
	s.wake()
	return nil
}

func (s *stockEngine) read(q *request, from, n uint32) error {
	if q.read || q.untrack || uint64(from)+uint64(n) > uint64(len(q.of.blocks)) {
		return fmt.Errorf("it cannot be read")
	}
	if n > 0 {
		if q.blocks = s.blocks(n); q.blocks == nil {
			return fmt.Errorf("no blocks")
		}
	}
	q.read, q.from = true, from
	s.pending = append(s.pending, q)
	s.wake()
	return nil
}

// untrack is an abort before the read: a bare completion.
func (s *stockEngine) untrack(q *request) error {
	if q.untrack || q.read {
		return fmt.Errorf("it is over")
	}
	q.untrack = true
	s.stop(q)
	s.tell(q)
	return nil
}

// stop ends the heartbeats of a request's id, also if another one shares it (S06).
func (s *stockEngine) stop(q *request) {
	for _, p := range s.peers {
		p.tracked = slices.DeleteFunc(p.tracked, func(id string) bool { return id == q.of.id })
	}
}

// tell sends a bare completion to all ranks of the owner.
func (s *stockEngine) tell(q *request) {
	p := s.know(q.of.life.place)
	if p == nil {
		return
	}
	msg, st := wire.AppendCompletion(nil, []byte(q.of.id), 1)
	if st != wire.OK {
		return
	}
	for n, k := range p.peers {
		_ = s.agents[n%len(s.agents)].Send(k, msg) // an error is swallowed
	}
}

// start posts reads whose engine is connected: one for each rank, with its completion.
func (s *stockEngine) start() {
	for _, q := range slices.Clone(s.pending) {
		p := s.know(q.of.life.place)
		if p == nil || p.peers == nil {
			if p != nil {
				s.connect(p)
			}
			if s.w.quiet {
				s.fail(q)
			}
			continue
		}
		s.pending = slices.DeleteFunc(s.pending, func(o *request) bool { return o == q })
		if len(q.blocks) == 0 {
			s.tell(q)
			s.stop(q)
			q.outcome, q.done = true, true
			continue
		}
		s.post(q, p)
	}
}

func (s *stockEngine) fail(q *request) {
	s.pending = slices.DeleteFunc(s.pending, func(o *request) bool { return o == q })
	s.stop(q)
	q.outcome, q.status, q.at = true, record.ReadFailed, s.w.now
	s.told(record.EvReadFailed, q.status, q.name, "read failed (stock)")
	s.give(q.blocks)
}

func (s *stockEngine) post(q *request, p *stockPeer) {
	owner := p.at.life
	rd := &stockRead{q: q}
	for n, a := range s.agents {
		if n >= len(p.peers) {
			break
		}
		there := owner.cacheOf(n)
		here := s.caches[n]
		if there == nil || there.blockLen() != here.blockLen() {
			break // another shape: this model reads rank by rank
		}
		spec := &transport.ReadSpec{Peer: p.peers[n]}
		for i := range here.layers {
			for j, b := range q.blocks {
				spec.Descs = append(spec.Descs, transport.Desc{
					Local: record.Addr(here.mem) + uint64(i)*here.regionLen() + uint64(b)*uint64(here.blockLen()),
					Remote: record.Addr(there.mem) + uint64(i)*there.regionLen() +
						uint64(q.of.blocks[int(q.from)+j])*uint64(there.blockLen()),
					Len: uint64(here.blockLen()),
				})
			}
		}
		spec.Notif, _ = wire.AppendCompletion(nil, []byte(q.of.id), 1)
		x, err := a.PostRead(spec)
		if err != nil {
			rd.bad = true
		}
		rd.xfers, rd.done = append(rd.xfers, x), append(rd.done, err != nil)
	}
	if len(rd.xfers) == 0 {
		s.fail(q)
		return
	}
	s.reads = append(s.reads, rd)
}

// cacheOf is the cache of a rank of a life.
func (l *life) cacheOf(n int) *cache {
	switch {
	case l.stock != nil && n < len(l.stock.caches):
		return l.stock.caches[n]
	case n < len(l.ranks):
		return l.ranks[n].cache
	}
	return nil
}

// follow looks at reads in flight.
func (s *stockEngine) follow() {
	for _, rd := range slices.Clone(s.reads) {
		over := true
		for n := range rd.xfers {
			if rd.done[n] {
				continue
			}
			var st [1]transport.Status
			s.agents[n].PollReads(rd.xfers[n:n+1], st[:], 0)
			if st[0] == transport.Pending {
				over = false
				continue
			}
			rd.done[n] = true
			rd.bad = rd.bad || st[0] == transport.Failed
			_ = s.agents[n].Release(rd.xfers[n])
		}
		if !over {
			continue
		}
		s.reads = slices.DeleteFunc(s.reads, func(o *stockRead) bool { return o == rd })
		if rd.bad {
			s.fail(rd.q)
			continue
		}
		s.accept(rd.q)
	}
}

// written takes a piece of a read of a rank that lands: a failed one's may land in blocks that are under a lease by now.
func (s *stockEngine) written(rank int, addr uint64) {
	if rank >= len(s.caches) {
		return
	}
	b, ok := s.caches[rank].blockAt(addr)
	if !ok {
		return // of an engine that was here before
	}
	for _, k := range s.order {
		k.g.spoilt = k.g.spoilt || slices.Contains(k.g.blocks, b)
	}
}

// told logs what a context of ours would have told its engine.
func (s *stockEngine) told(event uint16, status int, name, what string) {
	s.w.log(Entry{Kind: Told, Engine: s.life.place.spec.ID, Rank: -1, Req: name, Event: event, Status: status, What: what})
}

// accept uses what has landed, whatever it is.
func (s *stockEngine) accept(q *request) {
	s.stop(q)
	q.outcome, q.done, q.at = true, true, s.w.now
	s.told(record.EvReadDone, record.ReadOK, q.name, "read done (stock)")
	for n := range min(len(s.caches), len(q.of.life.place.contextsOf())) {
		for i, b := range q.blocks {
			if s.caches[n].wrong(q.of.serial, q.from+uint32(i), b) == 0 {
				continue
			}
			s.w.res.StockWrong++
			// Its own blocks may be written late, too: it gives them back while failed reads land. The owner's may not be another's.
			if o := q.of; !o.stock && !o.ended && !o.life.dead && o.life == o.life.place.life && !o.life.app.broken &&
				o.life.ranks[n].blob != nil && o.life.ranks[n].epoch == o.epoch && o.life.ranks[n].cache.wrong(o.serial, q.from+uint32(i), o.blocks[int(q.from)+i]) > 0 {
				s.w.broke(WrongData, s.life.place.spec.ID, q.name, "block %d is another's although the lease is held", o.blocks[int(q.from)+i])
			}
			break
		}
	}
	s.give(q.blocks)
}

// contextsOf lists the caches of a place's engine.
func (p *place) contextsOf() (all []*cache) {
	for n := range p.shape().Ranks() {
		if p.life == nil {
			break
		}
		if c := p.life.cacheOf(int(n)); c != nil {
			all = append(all, c)
		}
	}
	return all
}
