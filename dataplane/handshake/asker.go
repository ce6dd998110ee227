package handshake

import (
	"context"
	"fmt"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Asker asks one peer, of which nothing need be known, and waits for the answer: for tools. Engines have a Client.
//
// Threads: one call at a time; a context ends it.
type Asker struct {
	conn conn
	x    expectation
}

// Dial connects to a side channel (host:port, IPv6 in brackets). timeout is for connecting and for each answer. now is the clock in
// which samples are taken.
func Dial(ctx context.Context, addr string, timeout time.Duration, now func() clock.Instant) (*Asker, error) {
	if now == nil || timeout <= 0 {
		return nil, fmt.Errorf("%w: asker with a time-out of %v", ErrInvalid, timeout)
	}
	conn, err := asClient(now, timeout).Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &Asker{conn: conn}, nil
}

// Expect makes answers of another engine (ErrWrongEngine) or another compatibility hash (ErrIncompatible) an error. Empty: any.
func (a *Asker) Expect(engine, hash string) { a.x.engine, a.x.hash = engine, hash }

// Ask asks for one rank. A stock listener dies of a rank that it does not have. After an error the connection is of no more use.
func (a *Asker) Ask(ctx context.Context, r Rank) (Map, clock.Sample, error) {
	frames, timing, err := request(ctx, a.conn, r)
	if err != nil {
		return Map{}, clock.Sample{}, err
	}
	one, err := a.x.read(r, frames)
	if err != nil {
		return Map{}, clock.Sample{}, err
	}
	if h := one.m.Handshake; h.Native { // how it counts its ranks
		a.x.tp = max(h.Lease.TP, 1)
	}
	return one.m, clock.Sample{Sent: timing.Sent, Received: timing.Received, Stamp: one.stamp}, nil
}

// Close closes the connection.
func (a *Asker) Close() error { return a.conn.Close() }
