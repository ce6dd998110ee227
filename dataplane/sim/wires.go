package sim

import (
	"cmp"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// Death wires, with the rules of dataplane/deathwire: table.go of the owner's end, keep.go of the reader's.

type wireWho struct{ engine, epoch uint64 }

// wireOver is the end of a reader's life: it has said farewell, or has died.
type wireOver struct {
	wireWho
	parted bool
}

// word is what is said before a wire is let go of.
type word uint8

const (
	leaves   word = iota // what its engine still has at the owner ends by itself
	farewell             // the life of its engine is over
)

type wireName struct {
	wireWho
	nonce [16]byte
}

// wirePeer is what an owner knows under one name.
type wirePeer struct {
	wireName
	wires    int
	heard    bool
	left     bool
	parted   bool
	disputed bool
	fell     bool
	grace    int // numbers graces; 0: none runs
	graces   int
}

func (l *life) wireGrace() time.Duration {
	return cmp.Or(l.place.spec.WireGrace, 500*time.Millisecond)
}

// wires reports that this engine has death wires.
func (l *life) wires() bool { return l.stock == nil && l.wireGrace() >= 0 }

func (s *side) named(n wireName) *wirePeer {
	p := s.names[n]
	if p == nil {
		p = &wirePeer{wireName: n}
		s.names[n] = p
	}
	return p
}

// openWire takes a reader's wire in.
func (s *side) openWire(n wireName) *wirePeer {
	p := s.named(n)
	p.grace = 0
	p.wires++
	p.left, p.parted, p.fell = false, false, false
	return p
}

// closedWire takes it out.
func (s *side) closedWire(p *wirePeer) {
	if p.wires--; p.wires > 0 {
		return
	}
	p.fell = !p.left
	s.look(p)
}

// look begins the grace of a wire whose end is a death.
func (s *side) look(p *wirePeer) {
	if !p.fell || !p.heard || p.left || p.disputed || p.wires > 0 || p.grace != 0 || s.life.dead {
		return
	}
	p.graces++
	p.grace = p.graces
	n := p.grace
	s.w.after(s.life.wireGrace(), func() {
		if p.grace != n || s.life.dead {
			return
		}
		p.grace, p.fell = 0, false
		s.deaths = append(s.deaths, wireOver{p.wireWho, p.parted})
		s.wakeOwn()
	})
}

func (s *side) wakeOwn() {
	if c := s.life.contexts(); len(c) > 0 {
		c[0].wake()
	}
}

// Heard is dataplane.Wires: a rank has heard a reader's nonce.
func (s *side) Heard(engine, epoch uint64, nonce [16]byte) {
	if !s.life.wires() {
		return
	}
	n := wireName{wireWho{engine, epoch}, nonce}
	if v := s.voices[n.wireWho]; v != nil {
		if v.nonce != nonce {
			v.disputed, v.grace = true, 0
		}
		return
	}
	p := s.named(n)
	p.heard = true
	s.voices[n.wireWho] = p
	s.look(p)
}

// Left is dataplane.Wires: a reader goes on purpose.
func (s *side) Left(engine, epoch uint64) {
	if p := s.voices[wireWho{engine, epoch}]; p != nil {
		p.left, p.grace = true, 0
	}
}

// endEra forgets all wires: we are another engine from now on. Readers see them fall behind a farewell.
func (s *side) endEra() {
	s.names, s.voices = map[wireName]*wirePeer{}, map[wireWho]*wirePeer{}
	s.deaths, s.parting = nil, false
	s.dropReaders()
}

// dropReaders lets readers see the end of their wires to us.
func (s *side) dropReaders() {
	for _, p := range s.w.places {
		if p.life == nil || p.life.side == nil || p.life == s.life {
			continue
		}
		for _, k := range p.life.side.peers {
			if k.wire != nil && k.wire.up && k.wire.owner == s {
				k.wire.fall(time.Millisecond, true)
			}
		}
	}
}

// ownWire is our wire to an owner.
type ownWire struct {
	p       *sidePeer
	owner   *side     // it is up with
	peer    *wirePeer // there
	epoch   uint64    // of the owner's life that it is for
	began   eraOf     // ours
	up      bool
	known   bool // it was up once
	fell    clock.Instant
	isDown  bool // fell, and nobody was met since
	parted  bool // behind a farewell
	gone    bool
	turn    int
	fails   int
	leaving bool
}

// keepWire has a death wire to an owner whose maps are known.
func (s *side) keepWire(p *sidePeer, h *wire.Handshake) {
	if !s.life.wires() {
		return
	}
	if !h.Native {
		if p.wire != nil {
			p.wire.drop(leaves)
		}
		return
	}
	if k := p.wire; k != nil && !k.gone && k.epoch == h.Lease.Epoch && k.began == s.began {
		return
	}
	if p.wire != nil {
		p.wire.drop(leaves)
	}
	p.wire = &ownWire{p: p, epoch: h.Lease.Epoch, began: s.began, leaving: s.life.drains}
	p.wire.dial(0)
}

// drop lets a wire go, with a word.
func (k *ownWire) drop(w word) {
	k.gone = true
	k.turn++
	if k.up {
		k.up = false
		owner, peer := k.owner, k.peer
		if w == farewell {
			peer.parted = true
		} else {
			peer.left = true
		}
		k.p.s.w.after(time.Millisecond, func() { owner.closedWire(peer) })
	}
	if k.p.wire == k {
		k.p.wire = nil
	}
}

// dial connects in a while.
func (k *ownWire) dial(in time.Duration) {
	k.turn++
	n := k.turn
	w := k.p.s.w
	w.after(in, func() {
		if k.turn != n || k.gone || k.p.s.life.dead {
			return
		}
		if !k.p.s.up() {
			k.dial(20 * time.Millisecond)
			return
		}
		k.connect(n)
	})
}

func (k *ownWire) connect(n int) {
	s := k.p.s
	w := s.w
	l := k.p.at.life
	switch {
	case w.cut(s.life.place, k.p.at):
		k.unmet()
	case l == nil || l.dead || k.p.at.answers == Refuse:
		if k.known {
			k.over()
			return
		}
		k.retry()
	case l.stock != nil, !l.wires():
		k.retry()
	case !l.sideUp() || k.p.at.answers == Never: // silent: it stands still
		w.after(askTimeout, func() {
			if k.turn == n && !k.gone {
				k.isDown = false
				k.retry()
			}
		})
	case !l.side.whole && l.side.was == 0: // it hangs up: nothing is held there, and never was
		k.unmet()
	case !l.side.whole: // it says farewell of its last life
		k.another(l.id == k.p.id && l.side.was == k.epoch)
	case l.id != k.p.id || l.era.epoch != k.epoch:
		k.another(false)
	default:
		l.side.was = l.era.epoch
		k.up, k.known, k.isDown, k.fails = true, true, false, 0
		k.owner = l.side
		k.peer = l.side.openWire(wireName{wireWho{wire.EngineHash([]byte(s.life.id)), k.began.epoch}, s.nonceOf(k.p.id)})
		k.peer.left = k.leaving
	}
}

// another is an attempt that another life answered, or another engine: parted, the life that it is for, which is over.
func (k *ownWire) another(parted bool) {
	if k.known {
		k.parted = k.parted || parted
		k.over()
		return
	}
	k.p.s.changed(k.p)
	k.retry()
}

// unmet is an attempt that met nobody: of a wire that fell, again until the grace is over.
func (k *ownWire) unmet() {
	switch {
	case !k.isDown:
		k.retry()
	case k.p.s.w.now.Sub(k.fell) >= k.p.s.life.wireGrace():
		k.over()
	default:
		k.dial(20 * time.Millisecond)
	}
}

func (k *ownWire) retry() {
	k.isDown = false
	k.dial(min(time.Second<<min(k.fails, 10), time.Minute))
	k.fails++
}

// fall is the end of the connection, as this end sees it: parted, its owner has said farewell.
func (k *ownWire) fall(in time.Duration, parted bool) {
	if !k.up {
		return
	}
	w := k.p.s.w
	w.after(in, func() {
		if !k.up || k.gone {
			return
		}
		k.up, k.isDown, k.parted, k.fell = false, true, parted, w.now
		k.dial(0)
	})
}

// over is the end of the owner's life.
func (k *ownWire) over() {
	k.gone = true
	k.turn++
	s := k.p.s
	if k.p.epoch == k.epoch { // what is in force now may be the owner's next life
		why := heartbeat.Died
		if k.parted {
			why = heartbeat.Withdrew
		}
		s.engineOver(k.p, why)
	}
	s.changed(k.p)
}

// changed asks an engine anew that a wire has doubts about.
func (s *side) changed(p *sidePeer) {
	if p.wanted {
		p.ask(0)
	}
}

// died lets both ends of all wires of a process fall that has ended.
func (s *side) died() {
	for _, p := range s.peers {
		k := p.wire
		if k == nil || !k.up {
			continue
		}
		k.up, k.gone = false, true
		owner, peer, at := k.owner, k.peer, p.at
		s.fin(at, func() { owner.closedWire(peer) })
	}
	for _, o := range s.w.places {
		if o.life == nil || o.life == s.life {
			continue
		}
		for _, k := range o.life.side.peers {
			if k.wire != nil && k.wire.up && k.wire.owner == s {
				wire := k.wire
				s.fin(o, func() { wire.fall(0, s.parting) })
			}
		}
	}
}

// fin carries the end of a connection to another place, again and again while a partition keeps it back.
func (s *side) fin(to *place, do func()) {
	var try func()
	try = func() {
		if s.w.cut(s.life.place, to) {
			s.w.after(time.Second, try)
			return
		}
		do()
	}
	s.w.after(time.Millisecond, try)
}

// leaveWires says at all wires that we go on purpose.
func (s *side) leaveWires() {
	for _, p := range s.peers {
		if p.wire != nil {
			p.wire.leaving = true
			if p.wire.up {
				p.wire.peer.left = true
			}
		}
	}
}
