package handshake

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// When an engine is asked. All functions here run under the client's lock.

// State is where an engine stands.
type State uint8

const (
	Queued   State = iota // due, and waits for its turn
	Fetching              // an attempt runs
	Ready                 // its maps have been fetched
	Failed                // the last attempt failed, and it waits for the next
	Refused               // incompatible: it waits for the next, at the longest
	statesN
)

// States is the number of states, for an array of gauges.
const States = int(statesN)

var stateNames = [States]string{"queued", "fetching", "ready", "failed", "incompatible"}

// String is the state's name in metrics and logs.
func (s State) String() string {
	if int(s) < States {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Who is asked first, of those that are due. Known ones answer soon, as a rule, and leave the line when they do not.
const (
	dueKnown  = iota // the last attempt succeeded
	dueFirst         // there was none
	dueFailed        // it failed
	dues
)

// errCut ends an attempt that waits for a silent peer while others have no room to wait.
var errCut = fmt.Errorf("%w: cut short, as %d others wait, too", zmtp.ErrSilent, parkedMax)

// attempt is one run of questions to an engine.
type attempt struct {
	e       *engine
	refresh bool // the engine is known: only the clock is asked for
	ctx     context.Context
	cancel  context.CancelCauseFunc
	voids   uint64        // of the client, when it began
	silent  bool          // for longer than patience
	timer   *time.Timer   // sets silent
	elem    *list.Element // in parked
}

func (c *Client) set(e *engine, s State) {
	now := time.Now()
	if sites := c.cfg.Sites; sites.On(trace.HandshakeState) && (s != e.state || e.since.IsZero()) {
		in := time.Duration(0)
		if !e.since.IsZero() {
			in = now.Sub(e.since)
		}
		sites.Fire(trace.HandshakeState, sites.Ctx(), wire.EngineHash([]byte(e.desc.ID)), uint64(s), uint64(in))
	}
	e.state, e.since = s, now
}

// enqueue makes an engine due now.
func (c *Client) enqueue(e *engine) {
	switch {
	case e.failures > 0:
		e.queue = &c.due[dueFailed]
	case e.asked:
		e.queue = &c.due[dueKnown]
	default:
		e.queue = &c.due[dueFirst]
	}
	e.elem = e.queue.PushBack(e)
	if e.full {
		c.set(e, Queued)
	}
}

// unqueue takes an engine out of its queue, or stops the timer that would put it there.
func (c *Client) unqueue(e *engine) {
	if e.queue != nil {
		e.queue.Remove(e.elem)
		e.queue, e.elem = nil, nil
	}
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}

// later makes an engine due in a while.
func (c *Client) later(e *engine, in time.Duration) {
	c.unqueue(e)
	if in <= 0 {
		c.enqueue(e)
		return
	}
	var t *time.Timer
	t = time.AfterFunc(in, func() {
		c.mu.Lock()
		defer c.unlock()
		if e.timer != t { // stopped too late
			return
		}
		e.timer = nil
		c.enqueue(e)
		c.kick()
	})
	e.timer = t
}

// gap is how long an attempt that is asked for must wait.
func (c *Client) gap(e *engine) time.Duration {
	if !e.asked {
		return 0
	}
	return time.Until(e.began.Add(retryGap))
}

// backoff is the wait after so many failures in a row.
func backoff(failures int) time.Duration {
	return min(backoffMin<<min(failures-1, 10), backoffMax)
}

// failWait is backoff, for a tracked engine at the longest an interval.
func (c *Client) failWait(e *engine, failures int) time.Duration {
	in := backoff(failures)
	if e.tracked {
		in = min(in, c.cfg.Interval)
	}
	return in
}

// wait sets the time of the next attempt after a failure.
func (c *Client) wait(e *engine) {
	in := c.failWait(e, e.failures)
	if e.state == Refused { // nothing that the next heartbeat would change
		in = backoffMax
	}
	c.later(e, time.Until(e.ended.Add(in)))
}

// kick starts what is due, as far as there is room.
func (c *Client) kick() {
	for !c.closed {
		at := slices.IndexFunc(c.due[:], func(q list.List) bool { return q.Len() > 0 })
		if at < 0 || len(c.active) >= activeMax && !c.makeRoom() {
			return
		}
		c.start(c.due[at].Front().Value.(*engine))
	}
}

// makeRoom parks an attempt whose peer is silent. Without a place to park it the one that was parked longest ends.
func (c *Client) makeRoom() bool {
	at := slices.IndexFunc(c.active, func(a *attempt) bool { return a.silent })
	if at < 0 {
		return false
	}
	if c.parked.Len() >= parkedMax {
		oldest := c.parked.Front().Value.(*attempt)
		c.leave(oldest)
		oldest.cancel(errCut)
		c.counts.cut++
	}
	a := c.active[at]
	c.active = slices.Delete(c.active, at, at+1)
	a.elem = c.parked.PushBack(a)
	c.counts.parked++
	return true
}

// leave gives the place of an attempt to others.
func (c *Client) leave(a *attempt) {
	a.timer.Stop()
	if a.elem != nil {
		c.parked.Remove(a.elem)
		a.elem = nil
		return
	}
	if at := slices.Index(c.active, a); at >= 0 {
		c.active = slices.Delete(c.active, at, at+1)
	}
}

// start begins an attempt on a goroutine of its own.
func (c *Client) start(e *engine) {
	c.unqueue(e)
	limit := min(time.Duration(len(e.desc.Ranks))*c.cfg.RankTimeout, max(attemptMax, c.cfg.RankTimeout))
	timed, stop := context.WithTimeout(c.ctx, limit)
	ctx, cancel := context.WithCancelCause(timed)
	a := &attempt{e: e, refresh: !e.full, ctx: ctx, voids: c.voids}
	a.cancel = func(cause error) { cancel(cause); stop() }
	a.timer = time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.unlock()
		a.silent = true
		c.kick()
	})
	e.attempt, e.again, e.asked, e.began = a, false, true, time.Now()
	if a.refresh {
		c.counts.refreshes++
	} else {
		c.counts.attempts++
		c.set(e, Fetching)
	}
	c.active = append(c.active, a)
	x := expectation{engine: e.desc.ID, tp: e.desc.TP, hash: c.cfg.Hash, ignore: c.cfg.IgnoreHash, check: c.cfg.Check, handle: e.handle}
	c.running.Go(func() { c.run(a, x) })
}

// heard notes that a peer is not silent.
func (c *Client) heard(a *attempt) {
	c.mu.Lock()
	defer c.unlock()
	if a.elem == nil && slices.Contains(c.active, a) {
		a.silent = false
		a.timer.Reset(patience)
	}
}
