package sim

import (
	"time"
)

// Options of a run that change nothing of what happens in it.
type Options struct {
	Log    bool    // keep the log
	Probes []Probe // looks at the world, in order of time
}

// Probe looks at the world at a time, behind what is due then.
type Probe struct {
	At   time.Duration
	Look func(*World)
}

// Run carries a schedule out. An error says that the schedule is none: an unknown engine, a verb without its fields.
func Run(s Schedule, o Options) (*Result, error) {
	return nil, nil
}

// World is a run in progress, for probes.
type World struct{}

// Time is the true time since the start.
func (w *World) Time() time.Duration { return 0 }

// LeaseView is what is known of a grant.
type LeaseView struct {
	Named   bool // an expectation or grant of this name was made
	Held    bool // granted, and the engine has not polled its end
	Freed   bool
	Reason  int // record.Freed*
	FreedAt time.Duration
	Held1st []bool // by rank: the rank's table holds it
}

// Lease tells of the latest grant with this name.
func (w *World) Lease(req string) LeaseView { return LeaseView{} }

// TrackView is what is known of a request at a reader.
type TrackView struct {
	Named      bool
	Tracked    bool // the reader beats for it
	Read       bool // read was called
	Done       bool // data accepted
	Failed     bool
	Status     int // of Failed: record.Read*
	At         time.Duration
	BlocksHeld bool // failed, and its blocks are still set aside
	Gone       bool // told that the lease is gone
	AtRisk     bool
}

// Track tells of the latest request of this name (As) at an engine.
func (w *World) Track(engine, as string) TrackView { return TrackView{} }

// Counter gives a counter or gauge of an engine, summed over its ranks; the names are those of Counters.
func (w *World) Counter(engine, name string) (int64, bool) { return 0, false }

// Counters lists the names that Counter knows.
func Counters() []string { return nil }
