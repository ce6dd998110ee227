package handshake

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// counts are the client's counters, under its lock.
type counts struct {
	attempts, fetched, refreshes, parked, cut, replaced, doubts uint64
	failures, refreshFailures                                   [Classes]uint64
	last                                                        time.Time
}

// Stats are the client's gauges, and its counters since NewClient.
type Stats struct {
	Engines [States]int // wanted, by state
	Failing int         // wanted, and the last attempt failed, whatever their state is now
	Active  int         // attempts now, but those parked
	Parked  int         // attempts now that wait for a silent peer while others go on
	Pending int         // results that were not taken

	Attempts        uint64          // to fetch an engine
	Fetched         uint64          // attempts that succeeded
	Failures        [Classes]uint64 // attempts that failed
	Refreshes       uint64          // attempts to refresh a clock
	RefreshFailures [Classes]uint64
	Parkings        uint64    // attempts ever parked
	Cut             uint64    // attempts cut short for others
	Replaced        uint64    // results that a later one replaced before they were taken
	Doubts          uint64    // attempts that a Doubt asked for
	Last            time.Time // of the last success; zero: none
}

// Stats reads them, all at one moment.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &c.counts
	s := Stats{
		Active: len(c.active), Parked: c.parked.Len(), Pending: c.results.Len(),
		Attempts: n.attempts, Fetched: n.fetched, Failures: n.failures, Refreshes: n.refreshes, RefreshFailures: n.refreshFailures,
		Parkings: n.parked, Cut: n.cut, Replaced: n.replaced, Doubts: n.doubts, Last: n.last,
	}
	for _, e := range c.engines {
		s.Engines[e.state]++
		if e.failures > 0 {
			s.Failing++
		}
	}
	return s
}

// EngineStatus is where one engine stands.
type EngineStatus struct {
	Engine   uint64
	ID, Addr string
	State    State
	Since    time.Time // in State
	Failures int       // in a row
	Failing  time.Time // the first of them; zero: the last attempt succeeded, or there was none
	Err      error     // of the last attempt; nil: it succeeded, or there was none
	Class    Class     // of Err
	Fetched  time.Time // last success; zero: never
	Offset   clock.Offset
	// OffsetError is the bound on the error of a conversion now; negative: the offset is not known.
	OffsetError time.Duration
}

// Engines appends the status of each wanted engine, in no order.
func (c *Client) Engines(dst []EngineStatus) []EngineStatus {
	now := c.cfg.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.engines {
		s := EngineStatus{
			Engine: e.handle, ID: e.desc.ID, Addr: e.desc.Addr, State: e.state, Since: e.since, Failures: e.failures,
			Err: e.err, Class: ClassOf(e.err), Fetched: e.fetched, Offset: e.offset, OffsetError: -1,
		}
		if e.failures > 0 {
			s.Failing = e.failing
		}
		if e.offset.Known() {
			s.OffsetError = e.offset.ErrorAt(now)
		}
		dst = append(dst, s)
	}
	return dst
}
