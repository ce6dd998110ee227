package handshake

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
)

// refreshSamples is how often a refresh asks the first rank: the least round trip of a few is close to the network's.
const refreshSamples = 3

// answer is what an attempt has learned.
type answer struct {
	maps    []Map
	sums    [][sha256.Size]byte
	samples []clock.Sample
}

// run is the goroutine of an attempt.
func (c *Client) run(a *attempt, x expectation) {
	out, err := c.ask(a, &x)
	if err != nil && errors.Is(context.Cause(a.ctx), errCut) {
		err = fmt.Errorf("handshake: %s: %w", a.e.desc.Addr, errCut)
	}
	a.cancel(nil)
	c.mu.Lock()
	defer c.unlock()
	c.leave(a)
	if a.e.attempt == a { // else nobody wants it any more
		a.e.attempt = nil
		c.finish(a, out, err)
	}
	c.kick()
}

// ask talks to the peer. It holds no lock, and keeps nothing of the peer's but what it returns.
func (c *Client) ask(a *attempt, x *expectation) (out answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrInternal, p)
		}
	}()
	desc := &a.e.desc // not changed while it is anybody's
	ranks := desc.Ranks
	if a.refresh {
		ranks = slices.Repeat(desc.Ranks[:1], refreshSamples)
	}
	var conn conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	size := 0
	for i, r := range ranks {
		one, err := c.askRank(a.ctx, &conn, desc.Addr, r, x)
		if err != nil {
			if errors.Is(err, zmtp.ErrHungUp) && i > 0 && !a.refresh { // so our own listener refuses a rank
				err = fmt.Errorf("%w: it answered %d of %d: %w", ErrRanks, i, len(ranks), err)
			}
			return answer{}, fmt.Errorf("handshake: %s: %w", r, err)
		}
		c.heard(a)
		if size += len(one.m.Raw); size > mapBytesMax {
			return answer{}, fmt.Errorf("handshake: %s: %w: %w: over %d bytes for all ranks", r, ErrMetadata, wire.ErrTooLong, mapBytesMax)
		}
		out.maps, out.sums, out.samples = append(out.maps, one.m), append(out.sums, one.sum), append(out.samples, one.sample)
	}
	return out, nil
}

// rankAnswer is a reply and when it was made.
type rankAnswer struct {
	reply
	sample clock.Sample
}

// askRank asks for one rank, on *at, which it connects if need be, within the time for one rank.
func (c *Client) askRank(ctx context.Context, at *conn, addr string, r Rank, x *expectation) (rankAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.RankTimeout)
	defer cancel()
	if *at == nil {
		conn, err := c.dial(ctx, addr)
		if err != nil {
			return rankAnswer{}, err
		}
		*at = conn
	}
	frames, timing, err := request(ctx, *at, r)
	if err != nil {
		return rankAnswer{}, err
	}
	one, err := x.read(r, frames)
	if err != nil {
		return rankAnswer{}, fmt.Errorf("%s: %w", addr, err)
	}
	return rankAnswer{one, clock.Sample{Sent: timing.Sent, Received: timing.Received, Stamp: one.stamp}}, nil
}

// request asks for one rank. Of a peer that hangs up in place of an answer it says what that may mean.
func request(ctx context.Context, c conn, r Rank) ([][]byte, zmtp.Timing, error) {
	frames, timing, err := c.Request(ctx, wire.AppendRequest(nil, r.PP, r.Transfer))
	if errors.Is(err, zmtp.ErrHungUp) {
		err = fmt.Errorf("%w: %s", err, Unregistered)
	}
	return frames, timing, err
}

// finish takes an attempt's end into the engine's state. It runs under the lock.
func (c *Client) finish(a *attempt, out answer, err error) {
	e := a.e
	again := e.again
	e.again = false
	if a.refresh {
		c.refreshed(a, out, err)
		if again {
			e.full = true
		}
		if e.full {
			c.later(e, c.gap(e))
		}
		return
	}
	now := time.Now()
	if err != nil {
		class := ClassOf(err)
		c.counts.failures[class]++
		if e.failures++; e.failures == 1 {
			e.failing = now
		}
		e.err, e.ended = err, now
		state := Failed
		if class == Incompatible {
			state = Refused
		}
		c.set(e, state)
		c.wait(e) // a Retry that came meanwhile has to wait, too: whatever it knew, the peer does not answer
		c.deliver(e, Result{Err: err, Class: class, Failures: e.failures, Failing: e.failing})
		return
	}
	c.counts.fetched++
	c.counts.last = now
	if !slices.Equal(out.sums, e.sums) { // another process, perhaps, with another clock
		e.offset.Void()
	}
	e.failures, e.late, e.err, e.fetched, e.sums, e.full = 0, 0, nil, now, out.sums, false
	c.set(e, Ready)
	jumped := c.observe(a, out.samples)
	c.deliver(e, Result{Maps: out.maps, Offset: e.offset, Jumped: jumped})
	if again {
		e.full = true
		c.later(e, c.gap(e))
	}
}

// refreshed takes the end of a refresh. That it failed is no news about the maps.
func (c *Client) refreshed(a *attempt, out answer, err error) {
	e := a.e
	if err != nil {
		c.counts.refreshFailures[ClassOf(err)]++
		e.late++
		e.notYet = time.Now().Add(backoff(e.late))
		if class := ClassOf(err); class == WrongEngine || class == Incompatible { // it is another one now
			e.full = true
		}
		return
	}
	e.late = 0
	for _, sum := range out.sums {
		if sum != e.sums[0] {
			e.full = true
			return
		}
	}
	jumped := c.observe(a, out.samples)
	c.deliver(e, Result{Offset: e.offset, Jumped: jumped})
}

// observe takes samples, unless our own clocks have jumped since the attempt began. It tells whether the peer's clock was
// found to be another than before.
func (c *Client) observe(a *attempt, samples []clock.Sample) (jumped bool) {
	if a.voids != c.voids {
		return false
	}
	for _, s := range samples {
		jumped = a.e.offset.Observe(s) == clock.Jumped || jumped
	}
	return jumped
}
