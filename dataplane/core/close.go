package core

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Close ends a context. It waits at most timeout for reads of ours, whose memory a transfer may still write: ErrBusy,
// and the context stays open and steps on. ErrBusy, too, if it has cut a registration off: to be called again. A poisoned context does not step, but its transfers are followed to their ends here.
func (c *Core) Close(timeout time.Duration) error {
	err := c.end(timeout)
	if err == nil {
		c.log.close()
	}
	return err
}

func (c *Core) end(timeout time.Duration) error {
	atomic.StoreUint32(&c.mem.Control.Draining, 1)
	if c.hosted != nil {
		return c.closeHost(timeout)
	}
	if err := c.cutRegistration(timeout); err != nil {
		return err
	}
	if err := c.stopReads(timeout); err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%w: %d transfers of ours have not ended", ErrBusy, c.reads.Open())
	}
	if c.pump != nil {
		c.pump.halt()
	}
	if c.side != nil {
		c.side.close() // our reads have ended, so owners may take back what is left: our wires fall behind a farewell
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endAll()
	if err := c.leave(); err != nil {
		return err
	}
	c.closePage()
	strays.close(closeLooks)
	if c.ranked == nil {
		return nil
	}
	return c.ranked.close()
}

// stopReads waits until no transfer of ours is open and lets no step begin after that: a read that is submitted already
// must not be posted on an agent that is about to go.
func (c *Core) stopReads(timeout time.Duration) error {
	end := c.clock().Add(timeout)
	for {
		done, err := c.look(func() bool {
			c.closed = c.closed || c.reads.Open() == 0
			return c.closed
		})
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, ErrPoisoned): // a broken context's transfers end, too
			return err
		case !c.clock().Before(end):
			return ErrTimeout
		}
		time.Sleep(time.Millisecond)
	}
}

// settle follows the transfers of a broken context to their ends, which no step does any more: nothing is posted, nobody is told.
// Else such a context could never be closed. A transfer that does not end keeps it busy for ever, and what is broken may be the
// list of transfers itself: then only the end of the process is safe, since bytes may land until then. Under the lock.
func (c *Core) settle() {
	defer func() { _ = recover() }()
	defer c.exit(c.held, c.tryEnter())
	c.now = max(c.now, c.clock())
	c.reads.Close(c.now)
	c.reads.Step(c.now)
}

// leave destroys the agent, once. Until that has worked, memory is registered and may be read by peers.
func (c *Core) leave() error {
	if c.side != nil {
		c.side.Withdraw()
	}
	if !c.gone {
		if err := c.closeAgent(); err != nil {
			return fmt.Errorf("%w: %w", ErrTransport, err)
		}
	}
	c.letGo()
	c.gone = true
	c.agent.Transport = transport.Nobody{Of: c.tr.Name(), As: c.tr.Agent()}
	if c.ranked != nil {
		c.ranked.leave()
		if c.handshake != nil {
			c.ranked.link.SetMap(nil)
		}
	}
	c.setReach(heartbeat.ReachMessages)
	c.registered, c.handshake = nil, nil
	c.proven, c.unproven = 0, 0
	return nil
}

// Drain is for an engine that is about to exit. As a reader it tells every owner what it will never read; as an owner it
// takes no new work, says so on its board, and goes on serving. It waits at most timeout until every owner has been told,
// every read has ended and every lease has; from then on the end of this process is no death to its readers. ErrTimeout:
// something is left, and the text says what; Close cuts it off.
func (c *Core) Drain(timeout time.Duration) error {
	atomic.StoreUint32(&c.mem.Control.Draining, 1)
	if err := c.startDrain(timeout); err != nil {
		return err
	}
	c.Wake() // the next step tells ranks and owners
	if c.hosted == nil && c.side != nil {
		c.side.leave()
	}
	err := c.await(timeout, func() bool { return c.drainLeft() == "" })
	if errors.Is(err, ErrTimeout) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%w: %s", err, c.drainLeft())
	}
	if err == nil && c.side != nil {
		c.side.part()
	}
	return err
}

// startDrain tells owners and the board. It is a part of a step: a panic in it poisons, and a poisoned plane is left alone.
func (c *Core) startDrain(timeout time.Duration) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	atomic.StoreUint32(&c.mem.Control.Stepping, 1)
	defer atomic.StoreUint32(&c.mem.Control.Stepping, 0)
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return ErrPoisoned
	}
	defer c.failSafe(&err)
	defer c.exit(c.held, c.enter())
	now := c.clock()
	if c.hosted != nil {
		c.log.drains(c.hosted.group.Held(), now)
		c.hosted.group.Drain(timeout, c.clock())
		c.side.leave()
		return nil
	}
	c.log.drains(c.leases.Held(), now)
	c.leases.Drain()
	c.tracker.Drain(c.clock())
	return nil
}

// drainLeft says what keeps a drain waiting, "" if nothing does. Requests that only the host can untrack do not.
func (c *Core) drainLeft() string {
	if c.hosted != nil {
		if n := c.hosted.group.DrainLeft(); n > 0 {
			return fmt.Sprintf("leases, reads, or ranks that have still to tell owners: %d", n)
		}
		return ""
	}
	leases, owed := c.leases.Held()+c.leases.Expected(), c.tracker.DrainLeft()
	if leases == 0 && owed == 0 {
		return ""
	}
	return fmt.Sprintf("leases held or expected: %d; reads or messages to owners: %d", leases, owed)
}

// await steps until ok or for at most timeout, which is the caller's time and not that of the leases. With a pump the pump
// steps. Nothing steps a poisoned context: ErrPoisoned, nor a closed one: ErrClosed.
func (c *Core) await(timeout time.Duration, ok func() bool) error {
	end := time.Now().Add(timeout)
	for {
		done, err := c.look(ok)
		switch {
		case done:
			return nil
		case err != nil:
			return err
		case !time.Now().Before(end):
			return ErrTimeout
		}
		time.Sleep(time.Millisecond)
	}
}

// look is one turn of await.
func (c *Core) look(ok func() bool) (done bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.pump == nil:
		err = c.step()
	case c.closed: // by another thread, which waits until this one has left: the pump brings nothing about any more
		err = ErrClosed
	case atomic.LoadUint32(&c.mem.Control.Poisoned) != 0:
		err = ErrPoisoned
	}
	if errors.Is(err, ErrPoisoned) && c.reads != nil {
		c.settle()
	}
	return ok(), err
}

// endAll fences and ends every lease and publishes what fits; what does not fit is told from the slots as room comes.
// Of a poisoned context kvl_poll tells the ends, from the slots: nothing is taken from it here (edge S1, as in step).
func (c *Core) endAll() {
	c.leases.FenceAll()
	atomic.StoreUint32(&c.mem.Control.Stepping, 1)
	defer atomic.StoreUint32(&c.mem.Control.Stepping, 0)
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 0 {
		return
	}
	c.now = max(c.now, c.clock())
	c.leases.EndAll(record.FreedClosed, c.now)
	c.leases.TraceEnds()
	c.plane.PublishEnds()
	c.plane.Rest()
}
