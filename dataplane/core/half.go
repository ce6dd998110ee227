package core

import (
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// half is what a context steps: the plane of a rank, or the group of a host.
type half interface {
	// Pending reports that a step now would find work without anything new arriving.
	Pending() bool
	// Work counts what has been done so far; it stands still while the context only waits.
	Work() uint64
	// Traffic is what of Work is mostly followed by more.
	Traffic() uint64
	// Backlog is the number of notifications that are known to have arrived and are not applied.
	Backlog() uint64
	// Untaken is how many bytes of the producers' records no step has taken. Any thread.
	Untaken() uint64
	// Alive counts what would need further steps.
	Alive() int
	// Flush publishes the events of a step that did not come to its end.
	Flush()
}

func (c *Core) half() half {
	if c.hosted != nil {
		return c.hosted.group
	}
	return c.plane
}

// nextDue is when a step has something to do without anything new arriving.
func (c *Core) nextDue(now clock.Instant) clock.Instant {
	if c.hosted != nil {
		return c.hosted.group.NextDue(now)
	}
	return c.tracker.NextDue(now)
}

// reading reports that a transfer is in flight, whose end nobody announces.
func (c *Core) reading() bool {
	return c.reads != nil && (c.reads.NeedsStep() || c.plane.Awaited() > 0)
}

// tellPoison tells the other end of the streams that this context is broken, once; false: one could not be told yet.
func (c *Core) tellPoison() bool {
	switch {
	case c.hosted != nil:
		closed := &c.mem.Control.RowsClosed
		before := atomic.LoadUint32(closed)
		told := c.hosted.group.Poison(c.clock())
		if atomic.LoadUint32(closed) != before { // the host's loop may sleep until the ends can be told
			c.notify()
		}
		return told
	case c.ranked != nil:
		return c.ranked.link.Poisoned()
	}
	return true
}
