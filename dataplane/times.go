package dataplane

import (
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/histogram"
)

// Times are the distributions that a plane keeps beside those of its parts.
type Times struct {
	Drained histogram.Histogram // from a hook's word (kvl_grant, kvl_track) to the step that takes it; hooks take the coarse clock, tracks that wait together that of the first
	Entries histogram.Histogram // requests named in a message of heartbeats, completions or releases; things
}

// DepthAt is where the distribution of the bytes lies that steps found in the producers' rings.
func (p *Plane) DepthAt() *histogram.Histogram { return &p.sources.Depth }

// drained takes the time that a record was on its way.
func (p *Plane) drained(said uint64, now clock.Instant) {
	if at := clock.Instant(said); at > 0 && at <= now {
		p.Times.Drained.Observe(now.Sub(at))
	}
}
