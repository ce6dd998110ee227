package figures

import (
	"fmt"
	"math"
	"slices"
)

const (
	// manyN is the number of samples from which on least and greatest are single accidents, so that the band is that of the median.
	manyN = 20
	// chanceMax is the chance of two bands of rounds lying apart where nothing has changed, above which a row is not judged.
	chanceMax = 1.0 / 100
	// timeFloor and bytesFloor are factors below which a movement is none: placement of code and data moves more than the clock does.
	timeFloor  = 1.05
	bytesFloor = 1.01
	// calmMax is the factor by which half of a section's peers may have moved before its rows are not judged: other work on the machine
	// does not slow all programs alike, so what it did to one says too little of another.
	calmMax = 1.2
	// floorNs is what bench/vllm/passes.py writes where a difference of two times is not above nothing.
	floorNs = 1
)

// Verdict is what Compare says of a row.
type Verdict string

// Of a row that stands in both files.
const (
	Same     Verdict = "same"
	Slower   Verdict = "slower"
	Faster   Verdict = "faster"
	Machine  Verdict = "machine"    // it moved, and its peers by as much
	Unjudged Verdict = "not judged" // Why has the reason
)

// band is where the figure of a summary lies: of rounds their least and greatest, of many single events a band around the median,
// 3 standard errors wide to each side if they are spread evenly from the least to p99, which is more than of most other shapes.
func (s Summary) band() (low, high float64) {
	if s.N < manyN {
		return s.Min, s.Max
	}
	w := 3 * 0.5 * (s.P99 - s.Min) / math.Sqrt(float64(s.N))
	return s.Median - w, s.Median + w
}

// inverse turns what is better when greater into what is better when less.
func (s Summary) inverse() Summary {
	return Summary{Median: 1 / s.Median, Min: 1 / s.Max, Max: 1 / s.Min, P99: 1 / s.Min, N: s.N}
}

// chance is how often all of the one side's rounds are above all of the other's if both come from the same source: one order
// of the sides in all.
func chance(a, b int) float64 {
	orders := 1.0
	for i := 1; i <= min(a, b); i++ {
		orders = orders * float64(max(a, b)+i) / float64(i)
	}
	return 1 / orders
}

// shift is by which factors the machine may have moved a row. Programs that did not change show it: the peers. It is the greatest
// and the least of what the row's own peers moved by, and of the section's where nine in ten lie within, since programs that did not
// change do not move alike on a busy machine.
type shift struct {
	low, high float64
	by        string  // whose high is
	own       bool    // a peer in the same row
	middle    float64 // of the section's peers, else of the run's; 1 where there are none
}

func (s *shift) include(low, high float64, by string) {
	if s.by == "" || low < s.low {
		s.low = low
	}
	if s.by == "" || high > s.high {
		s.high, s.by = high, by
	}
}

// moved are the factors of medians of a pair's peers that run none of our code, by name. What is at the floor of its clock has none.
func (p pair) moved() map[string]float64 {
	out := make(map[string]float64)
	for i := range p.before.Peers {
		was := &p.before.Peers[i]
		k := slices.IndexFunc(p.after.Peers, func(q Peer) bool { return q.name() == was.name() })
		if was.own() || k < 0 || was.Min <= floorNs || p.after.Peers[k].Min <= floorNs {
			continue
		}
		f := p.after.Peers[k].Median / was.Median
		if p.before.Better == "more" {
			f = 1 / f
		}
		out[was.name()] = f
	}
	return out
}

// shifts are those of all rows. A row whose section has no peers has the run's.
func shifts(pairs []pair) []shift {
	out := make([]shift, len(pairs))
	sections := make(map[string][]float64)
	var run []float64
	for i, p := range pairs {
		for by, f := range p.moved() {
			out[i].include(f, f, by)
			out[i].own = true
			sections[p.before.Section] = append(sections[p.before.Section], f)
			run = append(run, f)
		}
	}
	for i, p := range pairs {
		of, by := sections[p.before.Section], "peers of its section"
		if len(of) == 0 {
			of, by = run, "peers of the run"
		}
		if len(of) > 0 {
			out[i].include(quantile(of, 0.1), quantile(of, 0.9), by)
			out[i].middle = median(of)
		} else {
			out[i] = shift{low: 1, high: 1, middle: 1}
		}
	}
	return out
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return math.Sqrt(s[(len(s)-1)/2] * s[len(s)/2])
}

// quantile is the value at a share of the sorted ones, the outer one where it falls between two.
func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	at := q * float64(len(s)-1)
	if q < 0.5 {
		return s[int(math.Floor(at))]
	}
	return s[int(math.Ceil(at))]
}

// judge says what became of a row. Slower and faster are both: beyond the noise by the clock, and beside the peers.
func judge(before, after *Row, m shift, otherMachine bool) (v Verdict, why string) {
	was, is := before.Ours, after.Ours
	if was.Min <= 0 || is.Min <= 0 {
		if was.Median <= 0 || is.Median <= 0 || before.Better == "more" {
			return Unjudged, "a difference that is not above nothing"
		}
	}
	if before.Better == "more" {
		was, is = was.inverse(), is.inverse()
	}
	floor := timeFloor
	if before.Unit == "B" { // the same on any machine
		floor, m, otherMachine = bytesFloor, shift{low: 1, high: 1, middle: 1}, false
	} else if c := chance(was.N, is.N); c > chanceMax {
		return Unjudged, fmt.Sprintf("%d and %d rounds are too few: they lie apart once in %.0f times by chance", was.N, is.N, 1/c)
	}
	up, down := max(m.high, 1), min(m.low, 1)
	if otherMachine {
		if !m.own {
			return Unjudged, "the machine is another one, and the row has no peer"
		}
		up, down = m.high, m.low
	}
	if m.middle > calmMax || m.middle < 1/calmMax {
		if !otherMachine {
			return Unjudged, fmt.Sprintf("half of the peers moved by × %.2f or more: the machine was not as busy; run it again", m.middle)
		}
	}
	wasLow, wasHigh := was.band()
	isLow, isHigh := is.band()
	by := is.Median / was.Median
	switch {
	case isLow > wasHigh*up && by >= floor*up:
		return Slower, ""
	case isHigh < wasLow*down && by <= down/floor:
		return Faster, ""
	case !otherMachine && (isLow > wasHigh && by >= floor || isHigh < wasLow && by <= 1/floor):
		return Machine, ""
	}
	return Same, ""
}
