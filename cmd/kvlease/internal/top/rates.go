package top

import "time"

// Over how long rates are taken: pages change ten times a second, and a number that jumps cannot be read. Heartbeats come in bursts, one an
// interval, so their rate is taken from one burst to another.
const (
	bytesWindow = 3 * time.Second
	beatsMost   = 30 * time.Second
	beatsSteps  = 40 // points of the window of heartbeats
)

// point is what a context had read at some time.
type point struct {
	at    time.Duration
	bytes uint64
	peers map[string]uint64 // bytes
}

// beatPoint is how many heartbeats it had counted, when that changed.
type beatPoint struct {
	at    time.Duration
	beats uint64
	first bool // it may have changed long before
}

// past is what is remembered of one context.
type past struct {
	points []point
	beats  []beatPoint
}

// rates remember what contexts had counted lately.
type rates struct{ of map[string]*past }

func newRates() *rates { return &rates{map[string]*past{}} }

// fill makes rates of counters, and forgets contexts that are gone.
func (r *rates) fill(list []*Engine) {
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		seen[e.key] = true
		if r.of[e.key] == nil || !r.of[e.key].follows(e) {
			r.of[e.key] = &past{}
		}
		r.of[e.key].take(e)
	}
	for key := range r.of {
		if !seen[key] {
			delete(r.of, key)
		}
	}
}

// follows is false for another life under the same name: its counters begin anew.
func (p *past) follows(e *Engine) bool {
	last, beat := p.points[len(p.points)-1], p.beats[len(p.beats)-1]
	return last.at <= e.at && last.bytes <= e.bytes && beat.beats <= e.Beaten
}

func (p *past) take(e *Engine) {
	e.fresh = len(p.points) == 0
	now := point{at: e.at, bytes: e.bytes, peers: make(map[string]uint64, len(e.Peers))}
	for i := range e.Peers {
		now.peers[e.Peers[i].key] = e.Peers[i].bytes
	}
	if n := len(p.points); n == 0 || p.points[n-1].at < now.at {
		p.points = append(p.points, now)
	}
	for len(p.points) > 2 && now.at-p.points[1].at >= bytesWindow {
		p.points = p.points[1:]
	}
	p.takeBeats(e)
	if e.Age > e.stillAfter() || !e.alive {
		none := 0.0
		e.Beats = &none
		return // it does nothing now, whatever it did within the window
	}
	e.Beats = p.beatRate(e)
	from := p.points[0]
	span := (now.at - from.at).Seconds()
	if span <= 0 {
		return
	}
	e.Rate = float64(now.bytes-from.bytes) / span
	for i := range e.Peers {
		if was, ok := from.peers[e.Peers[i].key]; ok && e.Peers[i].bytes >= was {
			e.Peers[i].Rate = float64(e.Peers[i].bytes-was) / span
		}
	}
}

func (p *past) takeBeats(e *Engine) {
	window := min(max(bytesWindow, 3*e.Interval), beatsMost)
	now := beatPoint{at: e.at, beats: e.Beaten}
	switch n := len(p.beats); {
	case n == 0:
		now.first = true
		p.beats = append(p.beats, now)
	case now.beats == p.beats[n-1].beats:
	case n > 1 && now.at-p.beats[n-2].at < window/beatsSteps:
		p.beats[n-1] = now
	default:
		p.beats = append(p.beats, now)
	}
	for len(p.beats) > 2 && (p.beats[0].first || now.at-p.beats[1].at >= window) {
		p.beats = p.beats[1:]
	}
}

// beatRate needs to have seen a burst, or an interval without one.
func (p *past) beatRate(e *Engine) *float64 {
	from, to := p.beats[0], p.beats[len(p.beats)-1]
	if from.first || e.at-to.at > e.Interval*3/2 { // the next burst is late, or there was but one
		to.at = e.at
	}
	if to.at <= from.at || from.first && to.at-from.at < e.Interval {
		return nil
	}
	rate := float64(to.beats-from.beats) / (to.at - from.at).Seconds()
	return &rate
}
