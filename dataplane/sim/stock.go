package sim

import (
	"cmp"
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
				if k := s.held[id]; k != nil && !k.g.fixed {
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
//
// A fixed lease is that of a decode engine which keeps the blocks for the next turn: no heartbeat extends it, and the parameters name
// its end by the clock of this host.
func (s *stockEngine) grant(name, id string, n uint32, ttl time.Duration, fixed bool) error {
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
	g := &grant{life: l, name: name, id: id, serial: uint64(w.handed), blocks: blocks, granted: true, at: w.now, stock: true, fixed: fixed}
	for _, c := range s.caches {
		for i, b := range blocks {
			c.fill(g.serial, uint32(i), b)
		}
	}
	p := &wire.Params{
		DoRemotePrefill: true, EngineID: l.id, RequestID: id, Host: l.place.spec.ID, Port: 5600, TPSize: l.place.shape().TP, DCPSize: 1,
		PPSize: l.place.shape().PP, NumTokens: 16 * n, Groups: [][]uint32{blocks}, TransferMode: "pull", RegistrationGeneration: 1,
	}
	deadline := s.now().Add(s.lease())
	if fixed {
		ttl = cmp.Or(ttl, l.blocksTTL())
		deadline = s.now().Add(ttl)
		end := float64(l.place.monotonic(w.now).Add(ttl)) / 1e9
		p.ExpiryTime = &end
	}
	g.params = wire.AppendParams(nil, p)
	k := &stockLease{g: g, deadline: deadline, ranks: make([]stockRank, len(s.agents)), left: len(s.agents)}
	s.held[id] = k
	s.order = append(s.order, k)
	w.grants[name] = g
	s.wake()
	return nil
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
