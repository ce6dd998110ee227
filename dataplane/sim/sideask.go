package sim

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Asking a peer for its maps: what the handshake client of the core does, with the times that it takes.

func (s *side) want(p *sidePeer) {
	if p.wanted {
		return
	}
	p.wanted, p.failures, p.refused = true, 0, false
	p.ask(0)
}

func (s *side) unwant(p *sidePeer) {
	p.asked++
	p.asking, p.again, p.wanted = false, false, false
	if p.wire != nil {
		p.wire.drop(leaves)
	}
	p.offset = clock.Offset{}
}

// ask begins an attempt after a while, unless one runs: then another one follows it.
func (p *sidePeer) ask(in time.Duration) {
	if p.asking {
		p.again = true
		return
	}
	p.asked++
	p.known = false
	n := p.asked
	p.s.w.after(in, func() {
		if p.asked == n && p.wanted && !p.s.life.dead {
			p.attempt()
		}
	})
}

// doubt asks a known engine anew at which requests of another boot are tracked, with the waits that follow failures.
func (p *sidePeer) doubt() {
	s := p.s
	if !p.wanted || p.refused || p.asking || !p.known || s.life.dead {
		return
	}
	since := s.w.now.Sub(p.doubted)
	if since >= backoffMax {
		p.doubts = 0
	}
	if p.doubts > 0 && since < p.backoff(p.doubts) {
		return
	}
	p.doubts++
	p.doubted = s.w.now
	p.ask(0)
}

// attempt asks the owner's listener.
func (p *sidePeer) attempt() {
	s := p.s
	w := s.w
	p.asking, p.again = true, false
	n := p.asked
	trip := time.Millisecond + within(w.hash("ask", s.life.place.spec.ID, p.at.spec.ID, n, w.now), 20*time.Millisecond)
	sent := s.life.place.local(w.now)
	fail := func(in time.Duration, why string) {
		w.after(in, func() {
			if p.asked == n && p.asking {
				w.say(Engines, s.life.place.spec.ID, -1, "", "handshake with %s failed: %s", p.id, why)
				p.failed()
			}
		})
	}
	l := p.at.life
	switch {
	case w.cut(s.life.place, p.at), p.at.answers == Never:
		fail(askTimeout, "no answer")
		return
	case p.at.answers == Refuse, l == nil, l.dead:
		fail(trip, "refused")
		return
	case p.at.answers == Slow:
		trip += slowAnswer
	}
	wait := time.Duration(0)
	var answer func()
	answer = func() {
		if p.asked != n || !p.asking || s.life.dead {
			return
		}
		l := p.at.life
		switch {
		case l == nil || l.dead:
			p.failed()
		case !l.sideUp() && wait < askTimeout: // its process stands still
			wait += 100 * time.Millisecond
			w.after(100*time.Millisecond, answer)
		case !l.sideUp() || w.cut(s.life.place, p.at):
			p.failed()
		default:
			p.answered(sent, l)
		}
	}
	w.after(trip, answer)
}

// sideUp reports that the listener of a life answers.
func (l *life) sideUp() bool {
	if l.stock != nil {
		return !l.dead && l.stock.stopped == 0
	}
	return l.side.up()
}

// maps are what a life's listener serves for some of its ranks; nil: not all are registered.
func (l *life) maps(ranks []uint32) (maps [][]byte) {
	for _, r := range ranks {
		var m []byte
		if l.stock != nil {
			m = l.stock.maps[r]
		} else if int(r) < len(l.side.served) {
			m = l.side.served[r]
		}
		if m == nil {
			return nil
		}
		maps = append(maps, m)
	}
	return maps
}

// answered takes an owner's answer.
func (p *sidePeer) answered(sent clock.Instant, l *life) {
	s, w := p.s, p.s.w
	maps := l.maps(p.ranks)
	if maps == nil {
		p.failed()
		return
	}
	var ranks []heartbeat.PeerRank
	for i, m := range maps {
		h := new(wire.Handshake)
		if wire.ParseHandshake(m, h) != nil {
			p.failed()
			return
		}
		if h.EngineID != p.id {
			w.say(Engines, s.life.place.spec.ID, -1, "", "handshake: %s answers in place of %s", h.EngineID, p.id)
			s.engineOver(p, heartbeat.Another)
			p.failed()
			return
		}
		if p.at.answers == Other {
			h.Layout = "another"
		}
		if own := s.own(); own != nil && wire.Compatible(own, h) != nil {
			w.say(Engines, s.life.place.spec.ID, -1, "", "handshake with %s: incompatible", p.id)
			p.refused = true
			s.engineOver(p, heartbeat.Misfits)
			p.failed()
			return
		}
		ranks = append(ranks, heartbeat.PeerRank{Rank: p.ranks[i], Map: h})
	}
	p.asking, p.known, p.failures, p.refused = false, true, 0, false
	first := ranks[0].Map
	p.epoch = first.Lease.Epoch
	if err := s.load(p, ranks); err != nil {
		w.say(Engines, s.life.place.spec.ID, -1, "", "handshake with %s cannot be used: %v", p.id, err)
		p.refused = true
		s.engineOver(p, heartbeat.Misfits)
		w.after(backoffMax, func() {
			if p.wanted {
				p.ask(0)
			}
		})
		return
	}
	w.say(Engines, s.life.place.spec.ID, -1, "", "handshake with %s", p.id)
	s.keepWire(p, first)
	at := p.at
	p.offset.Observe(clock.Sample{Sent: sent, Received: s.life.place.local(w.now), Stamp: clock.RemoteInstant(at.monotonic(w.now))})
	p.fresh = w.now
	s.setOffset(p)
	if p.again {
		p.again = false
		p.ask(askGap)
	}
}

// own is our own map, to hold peers' against; nil: nothing is registered.
func (s *side) own() *wire.Handshake {
	if s.served[0] == nil {
		return nil
	}
	h := new(wire.Handshake)
	if wire.ParseHandshake(s.served[0], h) != nil {
		return nil
	}
	return h
}

func (p *sidePeer) failed() {
	p.asking = false
	p.failures++
	in := p.backoff(p.failures)
	if p.refused {
		in = backoffMax
	}
	if p.again {
		in = askGap
	}
	p.ask(in)
}

// backoff is the wait after so many failures in a row.
func (p *sidePeer) backoff(failures int) time.Duration {
	in := min(backoffMin<<min(failures-1, 10), backoffMax)
	if p.tracked {
		in = min(in, p.s.life.place.lease()/6)
	}
	return in
}

func (s *side) load(p *sidePeer, ranks []heartbeat.PeerRank) error {
	if h := s.life.host; h != nil {
		var maps []group.PeerMap
		for _, r := range ranks {
			maps = append(maps, group.PeerMap{Rank: r.Rank, Data: wire.AppendHandshake(nil, r.Map)})
		}
		h.wake()
		return h.group.LoadEngine(p.engine, maps)
	}
	r := s.life.ranks[0]
	r.wake()
	return r.tracker.LoadEngine(p.engine, ranks)
}

func (s *side) setOffset(p *sidePeer) {
	if h := s.life.host; h != nil {
		_ = h.group.SetOffset(p.engine, p.offset) // it was removed
		h.wake()
		return
	}
	_ = s.life.ranks[0].tracker.SetOffset(p.engine, p.offset)
	s.life.ranks[0].wake()
}
