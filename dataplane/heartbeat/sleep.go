package heartbeat

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// Sleep takes the reader's side off an agent that is about to be destroyed, to its end: GiveUp, and no peer is loaded any more. Engines stay
// known. Off the step, in its place; it looks at everything once.
//
// Precondition: no transfer is open (read.Machine.Open).
func (t *Tracker) Sleep(now clock.Instant) {
	t.GiveUp(now)
	t.Part(now)
}

// GiveUp gives up what is tracked and reports it lost; the owners are told as far as the transport takes it. Peers stay loaded: if their agent cannot
// go after all, what comes is tracked over it. Off the step, in its place.
//
// Precondition: no transfer is open (read.Machine.Open).
func (t *Tracker) GiveUp(now clock.Instant) {
	for u := range t.requests {
		switch q := &t.requests[u]; q.state {
		case reqTracked:
			if q.remote != none {
				t.giveUp(uint32(u), now)
			}
		case reqCollecting, reqWaiting:
			t.finish(uint32(u), record.ReadLost, now)
		}
	}
	t.endReads(now)
	was := t.asleep
	t.asleep = true // what is lost here is given up on purpose
	t.mended++
	for i := range t.engines {
		e := &t.engines[i]
		for n := 0; n < sleepSends && e.owedN > 0 && e.state == Connected; n++ {
			t.sendEnds(uint32(i), t.cfg.EndsStepMax, now)
		}
	}
	t.asleep = was
}

// endReads ends the reads that are committed, of which nothing has been posted.
func (t *Tracker) endReads(now clock.Instant) {
	for u := range t.requests {
		if q := &t.requests[u]; q.state == reqReading {
			t.reads.End(q.job, record.ReadLost, now)
		}
	}
	t.takeOutcomes(now)
}

// Part takes the reader's side off an agent that is gone, and keeps what is tracked, but for reads that have begun: from Wake in the same era on
// it is beaten for over the next agent, which loads the engines again. Off the step, in its place.
//
// Precondition: no transfer is open (read.Machine.Open).
func (t *Tracker) Part(now clock.Instant) {
	t.endReads(now)
	t.asleep = true
	for i := range t.engines {
		e := &t.engines[i]
		t.forgetPeers(e)
		if e.state == Absent || e.state == Removing {
			continue
		}
		t.forgetLeaving(e)
		t.stopRounds(uint32(i))
		t.ends.Set(uint32(i), clock.Never)
		t.hush.Set(uint32(i), clock.Never)
		if e.facts == nil {
			continue
		}
		t.engineDown(uint32(i), uint64(e.requests))
		if e.dead { // until somebody says that it lives after all
			t.setState(uint32(i), Broken)
			t.loads.Set(uint32(i), clock.Never)
			continue
		}
		t.setState(uint32(i), Loading)
		t.loads.Set(uint32(i), now)
	}
	t.parked = t.parked[:0]
}

// sleepSends bounds what an engine is told before its agent goes; the rest is told by the next one.
const sleepSends = 64

func (t *Tracker) forgetPeers(e *engine) {
	for k := range e.links {
		l := &e.links[k]
		*l = link{rankFacts: l.rankFacts}
	}
	e.sent, e.conn, e.here = 0, e.conn+1, [hereKinds]hereRun{}
	e.breaks++
}

// Loaded reports whether the agent has a peer loaded, or one whose reads have not ended. Off the step.
func (t *Tracker) Loaded() bool {
	if len(t.parked) > 0 {
		return true
	}
	for i := range t.engines {
		for k := range t.engines[i].links {
			if t.engines[i].links[k].peer != 0 {
				return true
			}
		}
	}
	return false
}

// Wake goes on over a new agent: to owners we are another engine. Off the step, in its place.
func (t *Tracker) Wake(epoch uint64, now clock.Instant) {
	t.asleep = false
	t.Enter(epoch, now)
}

// Enter goes on in another era: to owners we are another engine. Who sleeps has no agent yet, and sleeps on. Off the step, in its place.
func (t *Tracker) Enter(epoch uint64, now clock.Instant) {
	t.cfg.Self.Epoch = epoch
	t.reg.mu.Lock()
	defer t.reg.mu.Unlock()
	defer t.sayLong()
	for i := range t.engines {
		e, s := &t.engines[i], &t.reg.seats[i]
		if e.missedAt = 0; e.offAt != 0 { // what was lost was lost by the sleep
			e.offAt = now
		}
		for _, f := range [...]*facts{e.facts, e.want.facts, s.now.given} {
			if f != nil {
				t.greet(f)
			}
		}
		if s.next != nil && s.next.given != nil {
			t.greet(s.next.given)
		}
		if e.state == Loading || e.state == Removing {
			t.loads.Set(uint32(i), now)
		}
	}
}

// greet sets what our hello says.
func (t *Tracker) greet(f *facts) {
	f.hello.Duration, f.hello.BatchBytesMax = t.cfg.Duration, uint64(t.cfg.BatchBytesMax)
	if t.cfg.Nonce != nil {
		f.hello.Nonce = t.cfg.Nonce(f.engine)
	}
}
