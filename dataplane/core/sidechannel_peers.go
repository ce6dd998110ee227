package core

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/handshake"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// sidePeer is an engine that is asked over its side channel.
type sidePeer struct {
	engine uint64
	id     string
	hash   uint64
	addr   string
	ranks  []handshake.Rank
	tp     uint32
	wanted bool

	epoch   uint64    // of the maps handed on last; 0: stock, or none
	fell    uint64    // epoch of the boot that its wire has declared over last
	fellAt  time.Time // when
	fellFor heartbeat.Over
	seen    uint64    // of watch, last acted on
	refused time.Time // its maps were fetched and could not be used; zero: they were
	unfit   error     // why
	unfitAt time.Time // since when
	misfit  bool      // its last answer was of an engine that does not fit this one
	offset  bool      // the sink has one
	fresh   time.Time // of the last refresh that was asked for
	moves   []time.Time
	failing failures // of lines that it cannot be asked; the results' goroutine
}

// failures space lines for each reason by itself: that an engine was not reached for long must not keep quiet that it answers nonsense now.
type failures [handshake.Classes]log.Pace

// An engine that has moved to another address more often than this within that time is two.
const (
	movesMax  = 3
	movesSpan = time.Minute
)

const refusedWait = time.Minute

// sideAddr is where an engine's side channel is; "" if it has none, and its maps travel out of band.
func sideAddr(host string, port int) (string, error) {
	if host == "" {
		return "", nil
	}
	if len(host) > 1024 || port < 1 || port > 65535 {
		return "", fmt.Errorf("%w: side channel at %.80q port %d", ErrInvalid, host, port)
	}
	return net.JoinHostPort(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), strconv.Itoa(port)), nil
}

// Want asks an engine for its maps, again and again until it answers, and whenever it may have changed. An engine that is
// known at another address has moved there, but not for ever to and fro: then two engines claim one id.
func (s *sideChannel) Want(engine uint64, d heartbeat.EngineDesc, addr string) error {
	if addr == "" {
		return nil
	}
	owner := topology.Shape{TP: max(d.TP, 1), PP: max(d.PP, 1)}
	ranks, err := s.reached(owner)
	if err != nil {
		return fmt.Errorf("%w: engine %q: %w", ErrInvalid, d.ID, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	p := s.peers[engine]
	switch {
	case p == nil:
		p = &sidePeer{engine: engine, id: d.ID, hash: wire.EngineHash([]byte(d.ID)), tp: owner.TP}
		s.peers[engine] = p
		s.watch.add(engine)
		s.start()
	case p.addr == addr:
		return nil
	default:
		now := time.Now()
		p.moves = slices.DeleteFunc(p.moves, func(t time.Time) bool { return now.Sub(t) > movesSpan })
		if len(p.moves) >= movesMax {
			s.n.claims.Add(1)
			s.say(log.EngineClaimed, p, 0, fmt.Sprintf("it is at %s and at %s", p.addr, addr))
			return fmt.Errorf("%w: engine_id %q is at %s and at %s: two engines have one id, and what is said to one of them is not for the other: give each its own",
				ErrInvalid, d.ID, p.addr, addr)
		}
		p.moves = append(p.moves, now)
		s.n.moved.Add(1)
		s.say(log.EngineMoved, p, 0, addr)
		s.unwant(p)
	}
	p.addr, p.ranks = addr, ranks
	if s.whole {
		s.want(p)
	}
	return nil
}

// reached lists the ranks of an owner that any rank of ours talks to.
func (s *sideChannel) reached(owner topology.Shape) ([]handshake.Rank, error) {
	var numbers []uint32
	for r := range uint32(len(s.ranks)) {
		some, err := topology.Reach(s.cfg.shape(), owner, r)
		if err != nil {
			return nil, err
		}
		numbers = append(numbers, some...)
	}
	slices.Sort(numbers)
	ranks := make([]handshake.Rank, 0, len(numbers))
	for _, n := range slices.Compact(numbers) {
		ranks = append(ranks, handshake.Rank{PP: n / owner.TP, Transfer: n % owner.TP})
	}
	return ranks, nil
}

// Forget ends what Want began.
func (s *sideChannel) Forget(engine uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.peers[engine]; p != nil {
		s.watch.remove(engine)
		s.unwant(p)
		delete(s.peers, engine)
	}
}

// want starts asking. Under the lock.
func (s *sideChannel) want(p *sidePeer) {
	if p.wanted {
		return
	}
	err := s.client.Want(p.engine, handshake.Desc{ID: p.id, Addr: p.addr, Ranks: p.ranks, TP: p.tp})
	if err != nil { // closed: as many engines fit as the tracker has
		s.n.refused.Add(1)
		return
	}
	p.wanted, p.refused, p.seen = true, time.Time{}, s.watch.of(p.engine)
	p.unfit, p.unfitAt, p.misfit = nil, time.Time{}, false // of another address, or of our memory before
	s.client.Track(p.engine, p.seen&seenTracked != 0)
}

// unwant stops asking. Under the lock.
func (s *sideChannel) unwant(p *sidePeer) {
	s.client.Forget(p.engine)
	if s.owners != nil {
		s.owners.Drop(p.engine)
	}
	p.wanted, p.offset = false, false
}

// check holds a peer's map against ours, on a goroutine of the handshake's.
func (s *sideChannel) check(engine uint64, r handshake.Rank, h *wire.Handshake) error {
	s.mu.Lock()
	p := s.peers[engine]
	var own *wire.Handshake
	if p != nil && s.whole {
		own = s.ranks[0].ours
		if n := r.PP*p.tp + r.Transfer; p.tp == uint32(s.cfg.TPSize) && n < uint32(len(s.ranks)) {
			own = s.ranks[n].ours // of the same stage, which alone has the same layers
		}
	}
	s.mu.Unlock()
	if own == nil {
		return nil // withdrawn or forgotten meanwhile: nobody waits for the answer
	}
	return wire.Compatible(own, h)
}

// takeResults hands on what the handshake has found out.
func (s *sideChannel) takeResults() {
	for r, ok := s.client.Next(); ok; r, ok = s.client.Next() {
		s.mu.Lock()
		p := s.peers[r.Engine]
		current := p != nil && p.wanted && !s.closed
		s.mu.Unlock()
		if current {
			s.take(p, r)
		}
	}
}

// take hands on one result.
func (s *sideChannel) take(p *sidePeer, r handshake.Result) {
	switch {
	case r.Err != nil:
		switch r.Class {
		case handshake.WrongEngine: // the engine that was there is no more, and what it held neither
			s.n.wrongEngine.Add(1)
			s.say(log.WrongEngine, p, 0, r.Err.Error())
			s.sink.EngineOver(p.engine, heartbeat.Another)
		case handshake.Incompatible:
			s.misfit(p, r.Err)
		default:
			switch failing := &p.failing[r.Class]; {
			case s.unsure(p, r): // before it is asked what its wire has said
			case s.parted(p) && s.watch.of(p.engine)&seenTracked == 0: // nobody waits for its answer; who does later hears of it at once
				p.failing = failures{}
			case failing.Due(s.now()):
				s.say(log.HandshakeFailing, p, uint64(r.Failures), r.Err.Error())
			}
		}
		return
	case r.Maps != nil && !s.takeMaps(p, r):
		return
	}
	p.failing = failures{}
	s.mu.Lock()
	news := r.Offset.Known() || p.offset
	p.offset = r.Offset.Known()
	s.mu.Unlock()
	if news { // what was converted with an earlier one counts no more, whether it jumped or not
		s.sink.SetOffset(p.engine, r.Offset)
	}
}

// takeMaps hands on the maps of a result. False: they cannot be used, or their boot died meanwhile and what is there now is asked anew.
func (s *sideChannel) takeMaps(p *sidePeer, r handshake.Result) bool {
	ranks := make([]heartbeat.PeerRank, 0, len(r.Maps))
	for _, m := range r.Maps {
		ranks = append(ranks, heartbeat.PeerRank{Rank: m.Rank.PP*p.tp + m.Rank.Transfer, Map: m.Handshake})
	}
	first := r.Maps[0].Handshake
	s.mu.Lock()
	late := p.diedSince(first.Lease.Epoch, r.Asked)
	if !late {
		p.epoch = first.Lease.Epoch // before the maps are in force, so that the word of an old wire is not taken for the new life's
	}
	s.mu.Unlock()
	if late {
		s.retry(p.engine)
		return false
	}
	err := s.sink.LoadEngine(p.engine, ranks)
	s.mu.Lock()
	p.refused, p.unfit, p.misfit = time.Time{}, nil, false
	late = p.diedSince(first.Lease.Epoch, r.Asked) // while they were handed on
	switch {
	case late:
		s.sink.EngineOver(p.engine, p.fellFor)
	case err != nil:
		p.refused, p.unfit = time.Now(), err
		if p.unfitAt.IsZero() {
			p.unfitAt = p.refused
		}
		s.n.refused.Add(1)
	default:
		p.unfitAt = time.Time{}
		s.n.loads.Add(1)
		s.keepWire(p, first)
	}
	s.mu.Unlock()
	switch {
	case late:
		s.retry(p.engine)
	case err != nil:
		s.misfit(p, err)
	}
	return !late && err == nil
}

// diedSince reports that a boot's wire fell after an answer of it was asked for. Under the lock.
func (p *sidePeer) diedSince(epoch uint64, asked time.Time) bool {
	return epoch != 0 && p.fell == epoch && p.fellAt.After(asked)
}

// keepWire has a death wire to an owner whose maps are known. Under the lock.
func (s *sideChannel) keepWire(p *sidePeer, h *wire.Handshake) {
	if s.owners == nil || s.closed || !p.wanted || s.peers[p.engine] != p {
		return
	}
	if !h.Native {
		s.owners.Drop(p.engine)
		return
	}
	own := s.life.Load()
	w := deathwire.Wire{
		Addr:  p.addr,
		Self:  deathwire.Frame{Engine: s.hash, Epoch: own.epoch, Nonce: deathwire.Nonce(own.secret, p.id)},
		Owner: p.hash, OwnersEpoch: h.Lease.Epoch,
	}
	if err := s.owners.Keep(p.engine, w); errors.Is(err, deathwire.ErrFull) {
		s.n.wiresFull.Add(1)
	}
}

// nonce is that of our wire to an owner; zeros: we have none. Without our lock: the tracker asks under its own, and what we tell
// the tracker is told under ours.
func (s *sideChannel) nonce(owner string) (n [16]byte) {
	if s.owners == nil {
		return n
	}
	return deathwire.Nonce(s.life.Load().secret, owner)
}

// ownerOver is the word of a wire. It may come late: what is in force now may be the owner's next life.
func (s *sideChannel) ownerOver(engine uint64, w deathwire.Wire, why heartbeat.Over) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.peers[engine]
	if p == nil || p.epoch != w.OwnersEpoch {
		return
	}
	p.fell, p.fellAt, p.fellFor = w.OwnersEpoch, time.Now(), why
	s.sink.EngineOver(engine, why)
}

// parted reports that the boot of the maps in force has given its memory up on purpose: it answers no handshake until it is another.
func (s *sideChannel) parted(p *sidePeer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.fell != 0 && p.fell == p.epoch && p.fellFor == heartbeat.Withdrew
}

// retry asks an engine anew that may be another one by now: a wire has doubts about it, too.
func (s *sideChannel) retry(engine uint64) {
	s.n.retries.Add(1)
	s.client.Retry(engine)
}

// lookAtPeers acts on what steps have noted.
func (s *sideChannel) lookAtPeers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		seen := s.watch.of(p.engine)
		if seen == p.seen || !p.wanted {
			continue
		}
		was := p.seen
		p.seen = seen
		if (seen^was)&seenTracked != 0 {
			s.client.Track(p.engine, seen&seenTracked != 0)
		}
		if p.misfit && seen&^was&seenTracked != 0 {
			s.sink.EngineOver(p.engine, heartbeat.Misfits)
		}
		if uint32(seen) != uint32(was) || seen&^was&seenBroken != 0 { // it may have come back as another one
			s.retry(p.engine)
		}
		if seen&^was&seenStrange != 0 {
			s.doubt(p)
		}
	}
}

// doubt asks an engine anew at which requests of another boot are tracked: it may have slept and woken, or started again, with nothing
// tracked there, so that nothing broke. Anybody who can name a request can make up an epoch, so it is no more than a doubt. Under
// the lock.
func (s *sideChannel) doubt(p *sidePeer) {
	if p.wanted && !p.misfit {
		s.client.Doubt(p.engine)
	}
}

// doubtAgain doubts for as long as such requests are there.
func (s *sideChannel) doubtAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if s.watch.of(p.engine)&seenStrange != 0 {
			s.doubt(p)
		}
	}
}

// keepClocks refreshes offsets while something is converted with them.
func (s *sideChannel) keepClocks() {
	boot := s.now()
	jumped := s.watch.jump.Seen(boot, int64(monotonic()))
	every := min(max(s.cfg.Interval(), time.Second), 30*time.Second)
	s.mu.Lock()
	defer s.mu.Unlock()
	if jumped {
		s.n.voids.Add(1)
		s.log.Put(log.ClockJumped, boot, log.Entry{})
		s.client.VoidClocks()
	}
	for _, p := range s.peers {
		if jumped && p.offset {
			p.offset, p.fresh = false, time.Time{}
			s.sink.SetOffset(p.engine, clock.Offset{})
		}
		if now := time.Now(); p.seen&seenFixed != 0 && now.Sub(p.fresh) >= every {
			p.fresh = now
			s.client.Refresh(p.engine)
		}
	}
}

// retryRefused asks engines again whose maps could not be used: they may be others now.
func (s *sideChannel) retryRefused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.peers {
		if !p.refused.IsZero() && time.Since(p.refused) >= refusedWait {
			p.refused = time.Time{}
			s.client.Retry(p.engine)
		}
	}
}
