// Package capacity answers how long a lease should last: it runs fleets of the real plane code over a trace of requests in virtual
// time and tells what each duration costs.
//
// The lease tables, trackers, read machines, wire formats and parameters are those of the engines; the network is package simnet, in
// which reads of the caches take the time of their bytes and move none. The engines themselves are queues with speeds. Only steps in
// which nothing could happen are skipped.
package capacity

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// ErrConfig is wrapped by every error about what was asked for.
var ErrConfig = errors.New("capacity")

// Config is a fleet and what happens to it. Zero values mean what they say, unless Defaults fills them in.
type Config struct {
	Seed uint64 `json:"seed"`

	P           int           `json:"p"`            // prefill engines
	D           int           `json:"d"`            // decode engines
	BlockTokens int           `json:"block_tokens"` // tokens of a block
	BlockBytes  int64         `json:"block_bytes"`  // bytes of a block, over all layers
	CacheBlocks int           `json:"cache_blocks"` // blocks of a P's cache that requests and leases share
	Prefill     float64       `json:"prefill_rate"` // tokens a second of a P, one request after the other
	Decode      float64       `json:"decode_rate"`  // tokens a second of each slot of a D
	Slots       int           `json:"slots"`        // requests that a D works on at once: read or decoded
	QueueMax    int           `json:"queue_max"`    // requests at a D at once, those in slots included; more wait at the router
	Pass        time.Duration `json:"pass_ns"`      // between two steps of an engine that has something to do
	Router      string        `json:"router"`       // RoundRobin or LeastLoaded

	LinkRate float64       `json:"link_rate"`   // bytes a second of an engine's network card, each direction
	Delay    time.Duration `json:"delay_ns"`    // of a message, one way
	Handover time.Duration `json:"handover_ns"` // from P's answer, by the router, to D

	Load     float64       `json:"load"`      // copies of each request of the trace
	Spread   time.Duration `json:"spread_ns"` // a copy comes later than the original by up to this
	Requests int           `json:"requests"`  // requests of the trace that are taken; 0: all

	CrashP   float64       `json:"crash_p"`      // crashes of each P an hour
	CrashD   float64       `json:"crash_d"`      // of each D
	Wired    float64       `json:"wired"`        // share of the crashes that a death wire tells; of the others nothing is heard
	Restart  time.Duration `json:"restart_ns"`   // from a crash until the engine serves again
	Stalls   float64       `json:"stalls"`       // times an hour that an engine stands still
	StallMax time.Duration `json:"stall_max_ns"` // a stall lasts from a hundredth of this to this, short ones more often

	Tries int `json:"tries"` // a request is given up when that many attempts of it were lost

	Jitter time.Duration `json:"jitter_ns"` // of first terms, as lease.Config has it: 0 is its default, negative none
}

// Routers.
const (
	RoundRobin  = "round-robin"
	LeastLoaded = "least-loaded"
)

// Defaults is a fleet that carries the trace with room to spare: an 8 B model (128 KiB a token) on cards of 200 Gbit/s.
func Defaults() Config {
	return Config{
		Seed: 1, P: 8, D: 10, BlockTokens: 16, BlockBytes: 2 << 20, CacheBlocks: 32768,
		Prefill: 10000, Decode: 40, Slots: 4, QueueMax: 256, Pass: 20 * time.Millisecond, Router: LeastLoaded,
		LinkRate: 25e9, Delay: 5 * time.Microsecond, Handover: 5 * time.Millisecond,
		Load: 1, Spread: 30 * time.Second, Restart: time.Minute, StallMax: time.Minute, Tries: 10,
	}
}

// Setting is one way to hold blocks: a lease that heartbeats renew, or a fixed time to live.
type Setting struct {
	Term  time.Duration
	Fixed bool
}

// Name is that of a row of the table.
func (s Setting) Name() string {
	if s.Fixed {
		return "fixed " + short(s.Term)
	}
	return "lease " + short(s.Term)
}

func short(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return fmt.Sprintf("%g s", d.Seconds())
}

// Bounds of what can be asked for.
const (
	EnginesMax  = 4096
	blocksMax   = 1 << 26
	queueMost   = 1 << 14
	slotsMax    = 1 << 14 // leases of a P at once
	TermLeast   = time.Second
	TermMost    = 24 * time.Hour
	tokensMax   = 1 << 26 // of one request
	loadMost    = 1e6
	perHourMost = 3600
)

// check names the first thing that cannot be. The words are those of the tool's flags.
func (c *Config) check() error {
	bad := func(what, format string, args ...any) error {
		return fmt.Errorf("%w: %s %s", ErrConfig, what, fmt.Sprintf(format, args...))
	}
	for _, v := range []struct {
		name        string
		n           int
		least, most int
	}{
		{"prefill engines", c.P, 1, EnginesMax}, {"decode engines", c.D, 1, EnginesMax},
		{"tokens of a block", c.BlockTokens, 1, 1 << 20}, {"blocks of a cache", c.CacheBlocks, 1, blocksMax},
		{"slots", c.Slots, 1, queueMost}, {"queue of a decode engine", c.QueueMax, c.Slots, queueMost},
		{"requests", c.Requests, 0, math.MaxInt}, {"tries", c.Tries, 1, 200},
	} {
		if v.n < v.least || v.n > v.most {
			return bad(v.name, "%d, allowed: %d to %d", v.n, v.least, v.most)
		}
	}
	if c.BlockBytes < 1 || c.BlockBytes > 1<<32 {
		return bad("bytes of a block", "%d, allowed: 1 to %d", c.BlockBytes, int64(1)<<32)
	}
	for _, v := range []struct {
		name string
		x    float64
		zero bool // allowed
		most float64
	}{
		{"prefill speed", c.Prefill, false, 1e12}, {"decode speed", c.Decode, false, 1e12}, {"link rate", c.LinkRate, false, 1e15},
		{"load", c.Load, false, loadMost}, {"crashes of a prefill engine an hour", c.CrashP, true, perHourMost},
		{"crashes of a decode engine an hour", c.CrashD, true, perHourMost}, {"stalls an hour", c.Stalls, true, perHourMost},
		{"wired share", c.Wired, true, 1},
	} {
		if math.IsNaN(v.x) || v.x < 0 || v.x > v.most || v.x == 0 && !v.zero {
			least := "more than 0"
			if v.zero {
				least = "0"
			}
			return bad(v.name, "%g, allowed: %s to %g", v.x, least, v.most)
		}
	}
	for _, v := range []struct {
		name        string
		d           time.Duration
		least, most time.Duration
	}{
		{"pass", c.Pass, time.Millisecond, time.Second}, {"delay", c.Delay, 0, time.Second}, {"hand-over", c.Handover, 0, time.Minute},
		{"spread", c.Spread, 0, time.Hour}, {"restart", c.Restart, time.Millisecond, 24 * time.Hour}, {"longest stall", c.StallMax, time.Millisecond, time.Hour},
	} {
		if v.d < v.least || v.d > v.most {
			return bad(v.name, "%v, allowed: %v to %v", v.d, v.least, v.most)
		}
	}
	if c.Router != RoundRobin && c.Router != LeastLoaded {
		return bad("router", "%q, allowed: %s, %s", c.Router, RoundRobin, LeastLoaded)
	}
	return nil
}

func (s Setting) check(pass time.Duration) error {
	if s.Term < TermLeast || s.Term > TermMost {
		return fmt.Errorf("%w: %s, allowed: %v to %v", ErrConfig, s.Name(), TermLeast, TermMost)
	}
	if ext, interval := s.Term*2/3, s.Term/6; !s.Fixed && 2*interval+pass >= ext {
		return fmt.Errorf("%w: %s with a pass of %v: two lost heartbeats must be survivable, so 2 x interval (%v) + pass must be less than the extension (%v)",
			ErrConfig, s.Name(), pass, interval, ext)
	}
	return nil
}
