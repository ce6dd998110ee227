package deathwire

import (
	"container/list"
	"time"
)

// fallenMax bounds the wires that are remembered although they fell before any rank had heard their nonce: a reader may
// die before the step that would have heard it.
const fallenMax = 1024

// who is one life of an engine.
type who struct{ engine, epoch uint64 }

// name is what a wire says of itself.
type name struct {
	who
	nonce [16]byte
}

// peer is all that is known under one name.
type peer struct {
	name
	wires    int
	latest   *wire // opened last: it alone says how this ends; what is read from an older one may come late
	heard    bool  // a rank has heard the nonce from (engine, epoch)
	left     bool  // it goes on purpose
	parted   bool  // it has said farewell on its wire: the end of its life is no death
	disputed bool  // a rank has heard another nonce as well: somebody lies, and the lease decides
	fell     bool  // its last wire was closed by the peer
	grace    *time.Timer
	line     *list.List // mute, quiet or fallen, in which it stands; nil: none
	elem     *list.Element
}

// table is what a server knows. Its lock is the server's.
//
// Memory: at most max peers with a wire or in their grace, max more that are only heard of, fallenMax that only fell.
type table struct {
	max    int
	places int // wires open, and peers in their grace, which keep one
	peers  map[name]*peer
	voices map[who]*peer // the heard ones
	mute   list.List     // with a wire, not heard; oldest first: they give way when there is no place
	quiet  list.List     // heard, without a wire, not in grace; oldest first
	fallen list.List     // not heard, without a wire; oldest first
}

func (t *table) init(max int) {
	t.max = max
	t.clear()
}

func (t *table) clear() {
	for _, p := range t.peers {
		p.calm()
	}
	t.peers, t.voices, t.places = map[name]*peer{}, map[who]*peer{}, 0
	t.mute.Init()
	t.quiet.Init()
	t.fallen.Init()
}

// calm ends a grace.
func (p *peer) calm() {
	if p.grace != nil {
		p.grace.Stop()
		p.grace = nil
	}
}

// unline takes a peer out of the line in which it stands.
func (p *peer) unline() {
	if p.line != nil {
		p.line.Remove(p.elem)
		p.line, p.elem = nil, nil
	}
}

func (p *peer) enline(l *list.List) { p.line, p.elem = l, l.PushBack(p) }

// forget drops a peer that has neither wire nor grace.
func (t *table) forget(p *peer) {
	p.unline()
	delete(t.peers, p.name)
	if t.voices[p.who] == p {
		delete(t.voices, p.who)
	}
}

// open takes a wire in; nil: no place for it. back: it came back within its grace.
func (t *table) open(n name) (p *peer, back bool) {
	p = t.peers[n]
	switch {
	case p != nil && p.grace != nil: // its place was kept
		p.calm()
		back = true
	case t.places >= t.max:
		return nil, false
	default:
		t.places++
	}
	if p == nil {
		p = &peer{name: n}
		t.peers[n] = p
	}
	if p.wires++; p.wires == 1 {
		if p.unline(); !p.heard {
			p.enline(&t.mute)
		}
	}
	p.left, p.parted, p.fell = false, false, false // a new wire speaks for itself
	return p, back
}

// closed takes a wire out. It reports true if the peer's grace begins, for which its place is kept.
func (t *table) closed(p *peer, byPeer bool) (grace bool) {
	p.wires--
	if p.wires > 0 {
		t.places--
		return false
	}
	p.fell = byPeer && !p.left
	if p.counts() {
		return true
	}
	t.places--
	t.settle(p)
	return false
}

// oldestMute gives the peer that has had a wire for the longest without being heard; nil: there is none.
func (t *table) oldestMute() *peer {
	if e := t.mute.Front(); e != nil {
		return e.Value.(*peer)
	}
	return nil
}

// counts reports that the end of the last wire is a death, unless it returns.
func (p *peer) counts() bool { return p.fell && p.heard && !p.left && !p.disputed && p.wires == 0 }

// settle puts a peer without wire and grace where it belongs.
func (t *table) settle(p *peer) {
	p.unline()
	switch {
	case p.heard:
		p.enline(&t.quiet)
	case p.fell:
		p.enline(&t.fallen)
	default:
		t.forget(p)
	}
	for _, l := range []struct {
		list *list.List
		most int
	}{{&t.quiet, max(t.max, fallenMax)}, {&t.fallen, fallenMax}} {
		if l.list.Len() > l.most {
			t.forget(l.list.Front().Value.(*peer))
		}
	}
}

// hear notes that a rank has heard a nonce. It gives a peer whose grace begins now, if one does.
func (t *table) hear(n name) (p *peer, disputed bool) {
	if v := t.voices[n.who]; v != nil {
		if v.nonce == n.nonce {
			return nil, false
		}
		first := !v.disputed
		v.disputed = true
		if v.grace != nil {
			v.calm()
			t.places--
			t.settle(v)
		}
		return nil, first
	}
	p = t.peers[n]
	if p == nil {
		p = &peer{name: n}
		t.peers[n] = p
	}
	p.heard = true
	t.voices[n.who] = p
	if p.wires > 0 {
		p.unline() // no longer mute
	}
	if p.counts() {
		p.unline()
		t.places++ // may pass max for as long as a grace: by at most fallenMax
		return p, false
	}
	if p.wires == 0 {
		t.settle(p)
	}
	return nil, false
}

// leave notes that an engine goes on purpose.
func (t *table) leave(w who) {
	p := t.voices[w]
	if p == nil {
		return
	}
	p.left = true
	if p.grace != nil {
		p.calm()
		t.places--
		t.settle(p)
	}
}
