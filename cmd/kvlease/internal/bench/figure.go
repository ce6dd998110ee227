package bench

import "slices"

// Figure is the median of the rounds' medians, with the least and the most of them.
type Figure struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

type series []float64

func (s series) median() float64 {
	sorted := slices.Sorted(slices.Values(s))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

func (s series) figure() Figure { return Figure{s.median(), slices.Min(s), slices.Max(s)} }

// less is what s has more than o, round by round: what disturbs a whole round falls out.
func (s series) less(o series) Figure {
	d := make(series, len(s))
	for i := range s {
		d[i] = s[i] - o[i]
	}
	return d.figure()
}

// per turns times into how much of work is done in a unit of them: the shortest time is the highest rate.
func (f Figure) per(work float64) Figure { return Figure{work / f.Median, work / f.High, work / f.Low} }
