package lease

import (
	"math"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// traced is what trace sites are told of several leases at once. Nothing in the table looks at it.
type traced struct {
	ends  [record.FreedLost + 1]ends
	any   bool // of ends
	slack time.Duration
}

// ends are the ends of a step for one reason.
type ends struct {
	n       uint64
	longest time.Duration // held
}

// traceEnd notes the end of a lease; the time that it was held has just been set.
func (t *Table) traceEnd(s, use uint32, reason uint16) {
	sites := t.cfg.Sites
	if sites.On(trace.LeaseFreed) && int(reason) < len(t.traced.ends) {
		e := &t.traced.ends[reason]
		e.n++
		e.longest = max(e.longest, time.Duration(t.granted[s]))
		t.traced.any = true
	}
	if t.cfg.TraceSample > 0 && sites.On(trace.LeaseFreedOne) && wire.EngineHash(t.long.id(&t.mem.Slots[s]))&uint64(t.cfg.TraceSample-1) == 0 {
		sites.Fire(trace.LeaseFreedOne, sites.Ctx(), uint64(record.NewHandle(s, use)), uint64(reason), uint64(t.granted[s]))
	}
}

// TraceEnds runs through the site of ends, once for each reason that there was since it was called last. The step calls it.
func (t *Table) TraceEnds() {
	if !t.traced.any {
		return
	}
	sites := t.cfg.Sites
	for reason := range t.traced.ends {
		if e := &t.traced.ends[reason]; e.n > 0 {
			sites.Fire(trace.LeaseFreed, sites.Ctx(), uint64(reason), e.n, uint64(e.longest))
			*e = ends{}
		}
	}
	t.traced.any = false
}

// traceStall says that the steps were further apart than is allowed.
func (t *Table) traceStall(gap time.Duration, backlog uint64) {
	if s := t.cfg.Sites; s.On(trace.StallGap) {
		s.Fire(trace.StallGap, s.Ctx(), uint64(gap), uint64(t.cfg.StallGap), backlog)
	}
}

// TakeSlack gives the least slack of what was renewed since it was called last, math.MaxInt64 if nothing was.
func (t *Table) TakeSlack() time.Duration {
	slack := t.traced.slack
	t.traced.slack = math.MaxInt64
	return slack
}
