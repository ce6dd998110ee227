package top

import "time"

// rateWindow is over how long rates are taken: a page changes ten times a second, and a number that jumps cannot be read.
const rateWindow = 3 * time.Second

// point is what a context had counted at some time.
type point struct {
	at           time.Duration
	beats, bytes uint64
	peers        map[string]uint64 // bytes
}

// rates remember what contexts had counted lately.
type rates struct{ of map[string][]point }

func newRates() *rates { return &rates{map[string][]point{}} }

// fill makes rates of counters, and forgets contexts that are gone.
func (r *rates) fill(list []*Engine) {
	seen := make(map[string]bool, len(list))
	for _, e := range list {
		seen[e.key] = true
		r.of[e.key] = e.rates(r.of[e.key])
	}
	for key := range r.of {
		if !seen[key] {
			delete(r.of, key)
		}
	}
}

func (e *Engine) rates(past []point) []point {
	e.fresh = len(past) == 0
	now := point{at: e.at, beats: e.beats, bytes: e.bytes, peers: make(map[string]uint64, len(e.Peers))}
	for i := range e.Peers {
		now.peers[e.Peers[i].key] = e.Peers[i].bytes
	}
	if n := len(past); n > 0 && (past[n-1].at > now.at || past[n-1].beats > now.beats || past[n-1].bytes > now.bytes) {
		past, e.fresh = nil, true // another life
	}
	if n := len(past); n == 0 || past[n-1].at < now.at {
		past = append(past, now)
	}
	for len(past) > 2 && now.at-past[1].at >= rateWindow {
		past = past[1:]
	}
	from := past[0]
	span := (now.at - from.at).Seconds()
	if span <= 0 || e.Age > e.stillAfter() || !e.alive {
		return past
	}
	e.Beats, e.Rate = float64(now.beats-from.beats)/span, float64(now.bytes-from.bytes)/span
	for i := range e.Peers {
		if was, ok := from.peers[e.Peers[i].key]; ok && e.Peers[i].bytes >= was {
			e.Peers[i].Rate = float64(e.Peers[i].bytes-was) / span
		}
	}
	return past
}
