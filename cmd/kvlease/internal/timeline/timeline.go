// Package timeline draws what a run of the demo or of the simulation did as one SVG file: leases as bars, heartbeats as ticks, reads, stops, crashes.
// The file stands alone: no script, no font, readable on light and dark pages.
package timeline

// Kind is what a mark on a lane means; the legend has one entry for each that occurs.
type Kind uint8

const (
	Lease     Kind = iota // bar: blocks held under a lease
	Beat                  // tick: a heartbeat batch has arrived
	Sent                  // tick: a heartbeat batch was sent to it
	FirstTerm             // flag: where the lease would have ended without heartbeats
	Completed             // end of a lease that was read
	Reclaimed             // end of a lease that ran out
	Released              // end of a lease whose reader is gone or has given up
	Revoked               // end of a lease that its owner took back
	Reuse                 // bar: the blocks hold another request
	Waiting               // bar: the request waits at its reader
	Read                  // bar: read, proven, handed out
	Refused               // read, not proven, thrown away
	Aside                 // bar: local blocks into which late bytes may still come
	Told                  // the reader is told that a lease is over
	Meeting               // bar: the engines do not know each other yet
	Reset                 // the connection was cut
	Stopped               // bar: the process does not run
	Crash                 // the process was killed
	Broken                // a rule of the simulation was broken
	kinds
)

// Mark is one thing on a lane, from From to To seconds after the start of its run; To is 0 for points in time.
type Mark struct {
	Kind     Kind
	From, To float64
	Text     string // shown inside a bar that is long enough, and as a tooltip
}

// Lane is one row of marks, usually one process.
type Lane struct {
	Label string
	Marks []Mark
}

// Moment is a point in time that concerns all lanes of a run: a dotted line with words.
type Moment struct {
	At   float64
	Text string
}

// Run is one run of a scene.
type Run struct {
	Label   string
	Moments []Moment
	Lanes   []Lane
}

// Scene is one story with its runs below each other on one axis.
type Scene struct {
	Title, Story string
	Runs         []Run
}

// Chart is the whole picture.
type Chart struct {
	Title, Subtitle string
	Scenes          []Scene
}

// meaning holds the legend.
var meaning = [kinds]string{
	Lease:     "blocks held under a lease",
	Beat:      "heartbeat batch arrives",
	Sent:      "heartbeat batch sent to it",
	FirstTerm: "end of the lease without heartbeats",
	Completed: "read confirmed, blocks free at once",
	Reclaimed: "lease ran out, blocks free again",
	Released:  "reader gone or gave up, blocks free",
	Revoked:   "lease taken back, blocks free",
	Reuse:     "same blocks, another request",
	Waiting:   "request waits at its reader",
	Read:      "read, every byte proven",
	Refused:   "read refused, nothing handed out",
	Aside:     "blocks set aside for late bytes",
	Told:      "told: lease is over, recompute",
	Meeting:   "reader does not know the owner yet",
	Reset:     "connection cut",
	Stopped:   "process stands still",
	Crash:     "process killed (SIGKILL)",
	Broken:    "a rule is broken",
}

// length of a run: the latest thing in it.
func (r *Run) length() float64 {
	end := 0.0
	for _, l := range r.Lanes {
		for _, m := range l.Marks {
			end = max(end, m.From, m.To)
		}
	}
	for _, m := range r.Moments {
		end = max(end, m.At)
	}
	return end
}

func (s *Scene) length() float64 {
	end := 0.5
	for i := range s.Runs {
		end = max(end, s.Runs[i].length())
	}
	return end
}

// step is the distance of the axis marks: round, and at most twelve of them.
func step(length float64) float64 {
	for _, s := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400} {
		if length/s <= 12 {
			return s
		}
	}
	return length / 10
}
