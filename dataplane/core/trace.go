package core

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/trace"
)

// traceBegin says that a step begins; before is the time of the one before it. It gives the work done so far, if somebody wants to
// know of this step's at its end.
func (c *Core) traceBegin(before clock.Instant) (work uint64) {
	s := c.sites
	if s.On(trace.StepBegin) {
		gap := time.Duration(0)
		if before != 0 {
			gap = c.now.Sub(before)
		}
		s.Fire(trace.StepBegin, c.number, uint64(c.now), uint64(gap), 0)
	}
	if s.On(trace.StepEnd) {
		work = c.half().Work()
	}
	return work
}

// traceEnd says that a step is over.
func (c *Core) traceEnd(work uint64) {
	if s := c.sites; s.On(trace.StepEnd) {
		h := c.half()
		s.Fire(trace.StepEnd, c.number, uint64(c.now), h.Work()-work, h.Backlog())
	}
}
