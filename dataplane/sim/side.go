package sim

import (
	"errors"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/deathwire"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// side is an engine's side channel, with the decisions of dataplane/core and of the handshake and death wire packages below it, and
// messages in place of connections.
type side struct {
	w    *World
	life *life

	served [][]byte // maps of our ranks; nil: not registered
	whole  bool
	peers  []*sidePeer
	began  eraOf // who our hellos and wires say that we are

	// Death wires of readers to us.
	names   map[wireName]*wirePeer
	voices  map[wireWho]*wirePeer
	deaths  []wireOver
	was     uint64 // epoch of our life in which a wire was kept last; 0: none was
	parting bool   // we drain, and nothing is held any more: a farewell was said on all wires
}

// sidePeer is an engine that is asked over its side channel.
type sidePeer struct {
	s      *side
	engine uint64 // handle
	id     string
	at     *place
	ranks  []uint32
	wanted bool

	asking   bool
	again    bool
	known    bool // the last attempt succeeded, and no other one is due
	asked    int  // numbers attempts; those of before are void
	failures int
	refused  bool   // its last answer was of an engine that does not fit
	epoch    uint64 // of the maps handed on last
	breaks   uint32
	broken   bool
	tracked  bool
	fixed    bool
	strange  bool
	doubts   int
	doubted  clock.Instant // true time of the last one
	offset   clock.Offset
	jumped   time.Duration // suspends of ours that the offset knows of
	fresh    clock.Instant // true time of the last refresh
	wire     *ownWire
}

// Times of the handshake client.
const (
	askTimeout = 5 * time.Second
	askGap     = 100 * time.Millisecond
	backoffMin = time.Second
	backoffMax = time.Minute
	slowAnswer = 4 * time.Second
	sideEvery  = time.Second
)

func newSide(l *life) *side {
	s := &side{w: l.w, life: l, served: make([][]byte, l.place.shape().Ranks()), names: map[wireName]*wirePeer{}, voices: map[wireWho]*wirePeer{}}
	var tick func()
	tick = func() {
		if !l.dead {
			s.tick()
			l.w.after(sideEvery, tick)
		}
	}
	l.w.after(sideEvery, tick)
	return s
}

// up reports that the process with the side channel runs.
func (s *side) up() bool {
	c := s.life.contexts()
	return !s.life.dead && len(c) > 0 && c[0].stopped == 0
}

// add names an engine: kvl_engine_add.
func (s *side) add(id string, at *place) (uint64, error) {
	l := s.life
	if id == l.id {
		return 0, errors.New("the engine's own id")
	}
	d := heartbeat.EngineDesc{ID: id, TP: at.shape().TP, PP: at.shape().PP}
	var h uint64
	var err error
	if l.host != nil {
		h, err = l.host.group.AddEngine(group.EngineDesc{ID: d.ID, TP: d.TP, PP: d.PP})
		l.host.wake()
	} else {
		h, err = l.ranks[0].tracker.AddEngine(d)
		l.ranks[0].wake()
	}
	if err != nil {
		return 0, err
	}
	if p := s.peer(h); p != nil {
		if p.at != at { // it has moved
			s.unwant(p)
			p.at = at
			s.want(p)
		}
		return h, nil
	}
	p := &sidePeer{s: s, engine: h, id: id, at: at}
	for r := range l.place.shape().Ranks() {
		some, err := topology.Reach(l.place.shape(), at.shape(), r)
		if err != nil {
			return 0, err
		}
		p.ranks = append(p.ranks, some...)
	}
	slices.Sort(p.ranks)
	p.ranks = slices.Compact(p.ranks)
	s.peers = append(s.peers, p)
	if s.whole {
		s.want(p)
	}
	return h, nil
}

// remove forgets an engine: kvl_engine_remove.
func (s *side) remove(id string) error {
	at := slices.IndexFunc(s.peers, func(p *sidePeer) bool { return p.id == id })
	if at < 0 {
		return errors.New("it is not known")
	}
	p := s.peers[at]
	var err error
	if h := s.life.host; h != nil {
		err = h.group.RemoveEngine(p.engine)
		h.wake()
	} else {
		err = s.life.ranks[0].tracker.RemoveEngine(p.engine)
		s.life.ranks[0].wake()
	}
	s.unwant(p)
	s.peers = slices.Delete(s.peers, at, at+1)
	return err
}

func (s *side) peer(engine uint64) *sidePeer {
	for _, p := range s.peers {
		if p.engine == engine {
			return p
		}
	}
	return nil
}

// begin says which life of our engine speaks from now on.
func (s *side) begin() { s.began = s.life.era }

// publish serves the map of one of our ranks. With the last one peers are asked.
func (s *side) publish(rank uint32, m []byte) {
	s.served[rank] = m
	for _, m := range s.served {
		if m == nil {
			return
		}
	}
	s.whole = true
	for _, p := range s.peers {
		s.want(p)
	}
}

// withdraw takes our maps back: this life of our engine is over for peers.
func (s *side) withdraw() {
	s.whole = false
	clear(s.served)
	for _, p := range s.peers {
		if p.wire != nil {
			p.wire.drop(farewell)
		}
		s.unwant(p)
	}
	s.endEra()
}

func (s *side) engineOver(p *sidePeer, why heartbeat.Over) {
	s.w.say(Engines, s.life.place.spec.ID, -1, "", "engine %s %v", p.id, why)
	if h := s.life.host; h != nil {
		_ = h.group.EngineOver(p.engine, why)
		h.wake()
		return
	}
	_ = s.life.ranks[0].tracker.EngineOver(p.engine, why)
	s.life.ranks[0].wake()
}

// step is the step's share: ends of readers' lives, and a look at how engines stand.
func (s *side) step(now clock.Instant) {
	for _, d := range s.deaths {
		s.w.say(Engines, s.life.place.spec.ID, -1, "", "a reader has %s", map[bool]string{false: "died", true: "withdrawn"}[d.parted])
		if h := s.life.host; h != nil {
			h.group.EngineDied(d.engine, d.epoch)
			for _, r := range s.life.ranks {
				r.view.gone(d.engine, d.epoch)
			}
		} else {
			s.life.ranks[0].view.gone(d.engine, d.epoch)
			s.life.ranks[0].leases.EngineGone(d.engine, d.epoch, now)
		}
	}
	s.deaths = s.deaths[:0]
	if s.life.drained() {
		s.parting, s.life.asks = true, false
	}
	for _, p := range s.peers {
		var v heartbeat.EngineView
		if h := s.life.host; h != nil {
			v = h.group.View(p.engine)
		} else {
			v = s.life.ranks[0].tracker.View(p.engine)
		}
		p.tracked, p.fixed = v.Tracked > 0, v.Fixed > 0
		broken := v.State == heartbeat.Broken
		if p.wanted && (v.Breaks != p.breaks || broken && !p.broken) {
			s.w.after(20*time.Millisecond, func() {
				if p.wanted {
					p.ask(0)
				}
			})
		}
		if p.wanted && v.Strange && !p.strange {
			s.w.after(20*time.Millisecond, p.doubt)
		}
		p.breaks, p.broken, p.strange = v.Breaks, broken, v.Strange
	}
}

// tick keeps clocks: a jump of ours voids what was converted. What is tracked at an engine that does not fit is lost.
func (s *side) tick() {
	if !s.up() {
		return
	}
	for _, p := range s.peers {
		if p.refused && p.wanted && p.tracked {
			s.engineOver(p, heartbeat.Misfits)
		}
		if p.strange {
			p.doubt()
		}
		if p.jumped != s.life.place.suspended {
			p.jumped = s.life.place.suspended
			p.offset.Void()
			s.setOffset(p)
			p.fresh = 0
		}
		if every := min(max(s.life.place.lease()/6, time.Second), 30*time.Second); p.fixed && p.wanted && s.w.now.Sub(p.fresh) >= every {
			p.fresh = s.w.now
			p.refresh()
		}
	}
}

// refresh asks a known engine for its clock alone.
func (p *sidePeer) refresh() {
	s, w := p.s, p.s.w
	l := p.at.life
	if w.cut(s.life.place, p.at) || l == nil || l.dead || p.at.answers != Well || !l.sideUp() || l.id != p.id {
		return
	}
	sent := s.life.place.local(w.now)
	trip := time.Millisecond + within(w.hash("clock", s.life.place.spec.ID, p.at.spec.ID, w.now), 20*time.Millisecond)
	stamp := clock.RemoteInstant(p.at.monotonic(w.now.Add(trip / 3)))
	w.after(trip, func() {
		if p.wanted && !s.life.dead {
			p.offset.Observe(clock.Sample{Sent: sent, Received: s.life.place.local(w.now), Stamp: stamp})
			s.setOffset(p)
		}
	})
}

// nonceOf is that of our wire to an owner.
func (s *side) nonceOf(owner string) [16]byte { return deathwire.Nonce(s.began.secret, owner) }
