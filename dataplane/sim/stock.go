package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// stockEngine is a small model of an engine with vLLM 0.33.0's own pull connector, as owner and as reader, all of its ranks in one
// pass. It does what that does, with its gaps: no fence, no answer to a late heartbeat, no second handshake.
type stockEngine struct {
	steps
	life   *life
	agents []*simnet.Agent
	caches []*cache
	maps   [][]byte
	in     *transport.Inbox

	held  map[string]*stockLease // as owner, by id
	order []*stockLease
	stale bool // it stood still as a process: the first pass reaps before it takes notifications (S29)

	peers   []*stockPeer // as reader
	beats   clock.Instant
	reads   []*stockRead
	pending []*request // reads that wait for their engine
}

type stockLease struct {
	g        *grant
	deadline clock.Instant
	ranks    []stockRank
	left     int
}

type stockRank struct {
	ended bool
	heard int // completions, by number and not by sender (S07)
	n     int // how many are awaited
}

type stockPeer struct {
	at      *place
	id      string
	peers   []transport.Peer
	tracked []string // remote ids
	asking  bool
}

type stockRead struct {
	q     *request
	xfers []transport.Xfer
	done  []bool
	bad   bool
}

func (l *life) openStock() error {
	s := &stockEngine{life: l, held: map[string]*stockLease{}, in: transport.NewInbox(1024, 1<<17)}
	l.stock = s
	for n := range l.place.shape().Ranks() {
		c := newCache(l.place, n)
		name := fmt.Sprintf("stock.%s.%d.%016x", l.id, n, l.era.epoch)
		a, err := l.w.net.Agent(name, simnet.AgentConfig{})
		if err != nil {
			return err
		}
		if err := a.Register(c.regions()); err != nil {
			return err
		}
		blob, err := a.Metadata()
		if err != nil {
			return err
		}
		h := &wire.Handshake{
			EngineID: l.id, AgentMetadata: blob, Layout: "LBHNC", BlockSize: 16, AttnBackend: "FLASH_ATTN", PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1,
		}
		c.describe(h)
		a.OnArrival(s.wake)
		l.w.agents[name] = &agentOf{place: l.place, rank: int(n)}
		s.agents, s.caches, s.maps = append(s.agents, a), append(s.caches, c), append(s.maps, wire.AppendHandshake(nil, h))
	}
	s.steps.init(l, 0, s.turn, s.nextDue)
	return nil
}

func (s *stockEngine) now() clock.Instant   { return s.life.place.local(s.w.now) }
func (s *stockEngine) lease() time.Duration { return s.life.place.lease().Truncate(time.Second) }
func (s *stockEngine) interval() time.Duration {
	return max((s.lease() / 6).Truncate(time.Second), time.Second)
}

// know has the engine load another one's agents, once.
func (s *stockEngine) know(at *place) *stockPeer {
	if at.life == nil {
		return nil
	}
	for _, p := range s.peers {
		if p.at == at && p.id == at.life.id {
			return p
		}
	}
	p := &stockPeer{at: at, id: at.life.id}
	s.peers = append(s.peers, p)
	s.connect(p)
	return p
}

func (s *stockEngine) connect(p *stockPeer) {
	if p.asking || p.peers != nil || s.gone {
		return
	}
	p.asking = true
	s.w.after(10*time.Millisecond, func() {
		p.asking = false
		l := p.at.life
		if s.gone || l == nil || l.id != p.id || !l.sideUp() || s.w.cut(s.life.place, p.at) || p.at.answers != Well {
			return // tried again with the next heartbeat
		}
		var all []uint32
		for n := range p.at.shape().Ranks() {
			all = append(all, n)
		}
		maps := l.maps(all)
		if maps == nil {
			return
		}
		for n, m := range maps {
			h := new(wire.Handshake)
			if wire.ParseHandshake(m, h) != nil {
				return
			}
			k, err := s.agents[n%len(s.agents)].Load(h.AgentMetadata)
			if err != nil {
				return
			}
			p.peers = append(p.peers, k)
		}
		s.wake()
	})
}

func (s *stockEngine) nextDue() clock.Instant {
	if len(s.reads)+len(s.pending) > 0 {
		return s.w.now.Add(1)
	}
	due := clock.Never
	for _, k := range s.order {
		due = min(due, k.deadline)
	}
	for _, p := range s.peers {
		if len(p.tracked) > 0 {
			due = min(due, s.beats.Add(s.interval()))
		}
	}
	return s.life.place.truly(due)
}

func (s *stockEngine) turn() {
	now := s.now()
	if s.stale {
		s.stale = false
		s.reap(now)
	}
	for n := range s.agents {
		s.take(n, now)
	}
	s.reap(now)
	s.start()
	s.follow()
	s.beat(now)
}

// take applies the notifications of a rank.
func (s *stockEngine) take(n int, now clock.Instant) {
	s.in.Reset()
	s.agents[n].Poll(s.in)
	for _, body, ok := s.in.Next(); ok; _, body, ok = s.in.Next() {
		if list, is := strings.CutPrefix(string(body), "HB:"); is {
			for _, id := range strings.Split(list, ",") {
				if k := s.held[id]; k != nil {
					k.deadline = max(k.deadline, now.Add((s.lease() * 2 / 3).Truncate(time.Second)))
				}
			}
			continue
		}
		msg, st := wire.ParseStock(body)
		k := s.held[string(msg.ID)]
		if st != wire.OK || k == nil {
			continue
		}
		r := &k.ranks[n]
		r.heard++
		if r.n = max(r.n, int(msg.N)); r.heard >= r.n {
			s.end(k, n, record.FreedCompleted)
		}
	}
}

func (s *stockEngine) reap(now clock.Instant) {
	for _, k := range slices.Clone(s.order) {
		if now >= k.deadline {
			for n := range k.ranks {
				s.end(k, n, record.FreedExpired)
			}
		}
	}
}

// end is a rank's end of a lease; with the last one the blocks are free.
func (s *stockEngine) end(k *stockLease, n, reason int) {
	if k.ranks[n].ended {
		return
	}
	k.ranks[n].ended = true
	if k.left--; k.left > 0 {
		return
	}
	delete(s.held, k.g.id)
	s.order = slices.DeleteFunc(s.order, func(o *stockLease) bool { return o == k })
	k.g.ended, k.g.reason, k.g.at = true, reason, s.w.now
	s.w.res.Freed[reason]++
	s.told(record.EvFreed, reason, k.g.name, "freed: "+freedNames[reason]+" (stock)")
	s.give(k.g.blocks)
}

func (s *stockEngine) give(blocks []uint32) {
	for _, b := range blocks {
		s.w.junk++
		for _, c := range s.caches {
			c.mark(b, junkMark|s.w.junk)
		}
		s.life.app.free = append(s.life.app.free, b)
	}
}

func (s *stockEngine) blocks(n uint32) []uint32 {
	a := s.life.app
	if int(n) > len(a.free) {
		return nil
	}
	out := slices.Clone(a.free[len(a.free)-int(n):])
	a.free = a.free[:len(a.free)-int(n)]
	return out
}

// grant holds blocks, and makes the parameters.
func (s *stockEngine) grant(name, id string, n uint32) error {
	if s.held[id] != nil {
		return fmt.Errorf("id %q is held", id)
	}
	blocks := s.blocks(n)
	if blocks == nil {
		return fmt.Errorf("%d blocks are free, %d wanted", len(s.life.app.free), n)
	}
	w, l := s.w, s.life
	w.handed++
	w.res.Granted++
	g := &grant{life: l, name: name, id: id, serial: uint64(w.handed), blocks: blocks, granted: true, at: w.now, stock: true}
	for _, c := range s.caches {
		for i, b := range blocks {
			c.fill(g.serial, uint32(i), b)
		}
	}
	g.params = wire.AppendParams(nil, &wire.Params{
		DoRemotePrefill: true, EngineID: l.id, RequestID: id, Host: l.place.spec.ID, Port: 5600, TPSize: l.place.shape().TP, DCPSize: 1,
		PPSize: l.place.shape().PP, NumTokens: 16 * n, Groups: [][]uint32{blocks}, TransferMode: "pull", RegistrationGeneration: 1,
	})
	k := &stockLease{g: g, deadline: s.now().Add(s.lease()), ranks: make([]stockRank, len(s.agents)), left: len(s.agents)}
	s.held[id] = k
	s.order = append(s.order, k)
	w.grants[name] = g
	s.wake()
	return nil
}

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
	if q.read || q.untrack || int(from+n) > len(q.of.blocks) {
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

// beat sends the heartbeats of all engines, when one is due.
func (s *stockEngine) beat(now clock.Instant) {
	any := false
	for _, p := range s.peers {
		any = any || len(p.tracked) > 0
	}
	if !any || s.beats != 0 && now.Sub(s.beats) < s.interval() {
		return
	}
	s.beats = now
	for _, p := range s.peers {
		if len(p.tracked) == 0 {
			continue
		}
		if p.peers == nil {
			s.connect(p)
			continue
		}
		msg := []byte("HB:" + strings.Join(p.tracked, ","))
		for n, k := range p.peers {
			_ = s.agents[n%len(s.agents)].Send(k, msg)
		}
	}
}
