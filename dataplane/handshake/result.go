package handshake

import (
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Result is news of an engine: it was fetched (Maps), an attempt failed (Err), or its clock was looked at (neither).
type Result struct {
	Engine uint64    // handle given to Want
	Asked  time.Time // when the attempt began: what it has learned may be as old as that
	Maps   []Map     // one for each rank of Desc, in that order
	Offset clock.Offset
	// Jumped: the peer's clock is not the one that it was, so what was converted with an earlier Offset is void.
	Jumped   bool
	Err      error
	Class    Class     // of Err
	Failures int       // in a row, this one among them
	Failing  time.Time // when the first of them ended
}

// Next takes the oldest result that nobody has taken. It never waits. Of one engine only the latest is kept: a failure
// stands for the successes and failures before it.
func (c *Client) Next() (Result, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	front := c.results.Front()
	if front == nil {
		return Result{}, false
	}
	e := c.results.Remove(front).(*engine)
	r := *e.result
	e.result, e.resultElem = nil, nil
	return r, true
}

// deliver leaves a result to be taken. An untaken one keeps its place in the line, and its maps if r is only about the clock.
func (c *Client) deliver(e *engine, r Result) {
	r.Engine, r.Asked = e.handle, e.began
	if e.result != nil {
		if r.Err == nil && r.Maps == nil {
			e.result.Offset, e.result.Jumped = r.Offset, e.result.Jumped || r.Jumped
			return
		}
		r.Jumped = r.Jumped || e.result.Jumped
		c.counts.replaced++
		*e.result = r
		return
	}
	c.news = c.news || c.results.Len() == 0
	e.result, e.resultElem = &r, c.results.PushBack(e)
}
