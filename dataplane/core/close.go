package core

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Close ends a context. It waits at most timeout for reads of ours, whose memory a transfer may still write: ErrBusy,
// and the context stays open and steps on.
func (c *Core) Close(timeout time.Duration) error {
	atomic.StoreUint32(&c.mem.Control.Draining, 1)
	if err := c.await(timeout, func() bool { return c.reads.Open() == 0 }); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%w: %d transfers of ours have not ended", ErrBusy, c.reads.Open())
	}
	if c.pump != nil {
		c.pump.halt()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.endAll()
	c.closed = true
	if c.registered == nil && c.handshake == nil && c.regions != nil {
		return nil // unregistered: the agent is gone
	}
	c.registered, c.handshake = nil, nil
	return c.tr.Close()
}

// Drain tells every peer what will never be read or served and waits at most timeout until nothing is left.
// ErrTimeout: something is; Held tells how much.
func (c *Core) Drain(timeout time.Duration) error {
	atomic.StoreUint32(&c.mem.Control.Draining, 1)
	c.mu.Lock()
	header, _ := record.Board(c.mem.Board)
	atomic.OrUint32(&header.Flags, record.BoardDraining)
	c.tracker.Drain(c.clock())
	c.mu.Unlock()
	return c.await(timeout, func() bool { return c.plane.Alive() == 0 })
}

// await steps until ok or for at most timeout. With a pump the pump steps.
func (c *Core) await(timeout time.Duration, ok func() bool) error {
	end := c.clock().Add(timeout)
	for {
		c.mu.Lock()
		var err error
		if c.pump == nil {
			err = c.step()
		}
		done := ok()
		c.mu.Unlock()
		switch {
		case done:
			return nil
		case err != nil:
			return err
		case !c.clock().Before(end):
			return ErrTimeout
		}
		time.Sleep(time.Millisecond)
	}
}

// endAll fences and ends every lease and publishes what fits; what does not fit is told from the slots as room comes.
func (c *Core) endAll() {
	c.leases.FenceAll()
	for c.leases.EndSome(record.FreedClosed, c.clock()) > 0 {
	}
	c.plane.PublishEnds()
}
