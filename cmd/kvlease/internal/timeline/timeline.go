// Package timeline draws what a demo run did as one SVG file: leases as bars, heartbeats as ticks, reads, stops, crashes.
// The file stands alone: no script, no font, readable on light and dark pages.
package timeline

// Kind is what a mark on a lane means; the legend has one entry for each that occurs.
type Kind uint8

const (
	Lease     Kind = iota // bar: blocks held under a lease
	Beat                  // tick: a heartbeat batch has arrived
	FirstTerm             // flag: where the lease would have ended without heartbeats
	Reclaimed             // end of a lease that ran out
	Completed             // end of a lease that was read
	Reuse                 // bar: the blocks hold another request
	Waiting               // bar: the request waits in D's queue
	Read                  // bar: read, proven, handed out
	Refused               // read, not proven, thrown away
	Stopped               // bar: the process does not run
	Crash                 // the process was killed
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
	Lease:     "blocks held under a lease on P",
	Beat:      "heartbeat from D arrives",
	FirstTerm: "end of the lease without heartbeats",
	Reclaimed: "lease ran out, blocks free again",
	Completed: "read confirmed, blocks free at once",
	Reuse:     "same blocks, another request",
	Waiting:   "request waits in D's queue",
	Read:      "D reads, every byte proven",
	Refused:   "read refused as stale, data thrown away",
	Stopped:   "process stopped (SIGSTOP)",
	Crash:     "process killed (SIGKILL)",
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
	for _, s := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60} {
		if length/s <= 12 {
			return s
		}
	}
	return length / 10
}
