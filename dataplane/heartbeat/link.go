package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// link is the connection to one rank of an engine, made off the step with its facts; from then on it is the step's alone.
type link struct {
	*rankFacts
	peer   transport.Peer // 0: not loaded
	broken bool           // unreachable: dropped and loaded again when healing is due
	hello  bool           // it has still to be told who we are
	seen   bool           // a one-sided read from it was posted since the last round

	number uint8  // of the next native message of this connection
	stock  uint32 // heartbeats in stock text that this agent was sent

	heard     uint64 // of the engine's sent, what is known to have been taken in
	probing   bool   // a probe is in flight
	probeDue  bool   // or was tried, and none has ended since
	probes    uint32 // posted so far: the serial of the last one
	probeSent uint64
	probeAt   clock.Instant // when it became due
	rowAt     clock.Instant // when a row read of it last ended well, or none had been asked for
	rowsOff   bool          // it does not answer its rows: no more of them in this round
	askedAt   clock.Instant // when the first one-sided read since it was last heard was posted; 0: none has been

	fails    uint32        // loads, sends and reads that failed since it was last heard
	downAt   clock.Instant // first failure since it was last heard; 0: none
	brokenAt clock.Instant // when its connection broke last
}

// unheard is what the worst link may have queued, in bytes.
func (e *engine) unheard() uint64 {
	most := uint64(0)
	for k := range e.links {
		most = max(most, e.sent-e.links[k].heard)
	}
	return most
}

// downAt is the first failure of a link that has not been heard since; 0: there is none.
func (e *engine) downAt() clock.Instant {
	first := clock.Instant(0)
	for k := range e.links {
		if at := e.links[k].downAt; at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// ask notes that a one-sided read of a link has been posted.
func (l *link) ask(now clock.Instant) {
	if l.askedAt == 0 {
		l.askedAt = now
	}
}

// silentSince is when the first link was asked that answers nothing and says nothing of it either, as when the network swallows what is
// sent: the transport goes on trying for minutes. A round that began since then has asked it again. 0: there is none.
func (e *engine) silentSince() clock.Instant {
	first := clock.Instant(0)
	for k := range e.links {
		if at := e.links[k].askedAt; at != 0 && at < e.lastRound && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// fails is how often the worst link has failed since it was heard.
func (e *engine) fails() uint32 {
	n := uint32(0)
	for k := range e.links {
		n = max(n, e.links[k].fails)
	}
	return n
}

// linkOf gives the link over which a peer is reached now, or none.
func (e *engine) linkOf(p transport.Peer) uint32 {
	for k := range e.links {
		if p != 0 && e.links[k].peer == p {
			return uint32(k)
		}
	}
	return none
}

// broken says that a rank could not be reached. The first one starts healing; what follows changes nothing.
func (t *Tracker) broken(i, k uint32, now clock.Instant) {
	e := &t.engines[i]
	e.breaks++
	t.counters.Disconnects++
	l := &e.links[k]
	if l.broken || e.state != Connected && e.state != Broken {
		return
	}
	l.broken, l.brokenAt = true, now
	l.fails++
	if l.downAt == 0 {
		l.downAt = now
	}
	e.healAt = now.Add(t.backoff(e))
	if e.state == Connected {
		t.setState(i, Broken)
		t.hushBreak(i, now)
		t.engineDown(i, uint64(e.requests))
		t.forgetLeaving(e) // who cannot be reached needs no good-bye
		t.stopRounds(i)
		t.ends.Set(i, clock.Never)
	}
	t.loads.Set(i, e.healAt)
}

// heard takes the end of a one-sided read: everything that was sent before it was posted, up to mark, has been taken in.
func (t *Tracker) heard(i, k uint32, mark uint64) {
	t.mended++
	e := &t.engines[i]
	if e.state != Connected {
		return // of a connection that is no more
	}
	l := &e.links[k]
	l.heard = max(l.heard, min(mark, e.sent))
	silent := e.silentSince() != 0
	l.fails, l.downAt, l.askedAt, e.heardAt = 0, 0, 0, t.now
	if silent && e.trouble() == 0 && e.badReads < badReadsMax {
		e.missedAt = 0 // the trouble that it was missed in is over
	}
	if !e.up && e.downAt() == 0 {
		t.engineUp(i)
	}
}

func (t *Tracker) engineUp(i uint32) {
	e := &t.engines[i]
	if e.up {
		return
	}
	t.sayBreak(i)
	e.up = true
	if e.badReads < badReadsMax {
		e.missedAt = 0 // the trouble that it was missed in is over
	}
	e.pendUp = true // after a down that has not left yet
	t.queueEngineEvent(i)
}

func (t *Tracker) engineDown(i uint32, touched uint64) {
	e := &t.engines[i]
	if !e.up {
		return
	}
	e.up = false
	e.pendUp, e.pendDown, e.downCount = false, true, touched
	t.queueEngineEvent(i)
}
