package figures

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/svg"
)

// Sizes in px.
const (
	left      = 20.0
	plotLeft  = 350.0
	plotRight = 850.0
	textLeft  = 862.0
	lineTall  = 13.0 // of one series
	rowGap    = 7.0
	labelMax  = 48 // characters
	textMax   = 46
)

const style = `
.ours { fill: #e6862e; stroke: #e6862e; }
.own { fill: #f2bf8e; stroke: #f2bf8e; }
.peer0 { fill: #3182bd; stroke: #3182bd; }
.peer1 { fill: #756bb1; stroke: #756bb1; }
.peer2 { fill: #2a9d8f; stroke: #2a9d8f; }
.peer3 { fill: #8c96a0; stroke: #8c96a0; }
.peer4 { fill: #8c564b; stroke: #8c564b; }
.met { stroke: #2da44e; stroke-width: 2; }
.missed { stroke: #cf222e; stroke-width: 2; }
.num { font-variant-numeric: tabular-nums; }
.curve { fill: none; stroke-width: 1.5; }
`

const dark = `
	.own { fill: #8a5a2b; stroke: #8a5a2b; }
	.peer0 { fill: #58a6dd; stroke: #58a6dd; }
	.peer1 { fill: #a79be0; stroke: #a79be0; }
	.peer4 { fill: #b98a7e; stroke: #b98a7e; }
	.met { stroke: #3fb950; }
	.missed { stroke: #f85149; }
`

// series is one side of a row.
type series struct {
	class, name string
	Summary
}

// sides are ours and the peers.
func (r *Row) sides() []series {
	out := []series{{"ours", "kvlease", r.Ours}}
	peers := 0
	for i := range r.Peers {
		p := &r.Peers[i]
		class := "own"
		if !p.own() {
			class = fmt.Sprintf("peer%d", peers%5)
			peers++
		}
		out = append(out, series{class, p.name(), p.Summary})
	}
	return out
}

// high is where a series ends: of single events p99, since the greatest is one accident.
func (r *Row) high(s Summary) float64 {
	if r.Tail {
		return s.P99
	}
	return s.Max
}

// goal is where the median must be to meet the target; 0 if there is none, or no peer for it.
func (r *Row) goal() float64 {
	switch {
	case r.Limit != nil:
		return *r.Limit
	case r.Ratio == nil || len(r.Peers) == 0:
		return 0
	}
	best := 0.0
	for _, p := range r.Peers {
		if p.Project != r.Peers[0].Project {
			continue
		}
		if best == 0 || (r.Better == "more") == (p.Median > best) {
			best = p.Median
		}
	}
	if r.Better == "more" {
		return best * *r.Ratio
	}
	return best / *r.Ratio
}

// scale is a logarithmic axis of whole decades.
type scale struct{ low, high, from, to float64 }

// scaleOf holds all values above 0. What is not above it stands at the lower end.
func scaleOf(values []float64, from, to float64) scale {
	low, high := math.Inf(1), 0.0
	for _, v := range values {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 {
		low, high = 1, 1
	}
	s := scale{math.Floor(math.Log10(low) + 1e-9), math.Ceil(math.Log10(high) - 1e-9), from, to}
	if s.low == s.high {
		s.high++
	}
	return s
}

func (s scale) at(v float64) float64 {
	d := s.low
	if v > 0 {
		d = min(max(math.Log10(v), s.low), s.high)
	}
	return s.from + (d-s.low)/(s.high-s.low)*(s.to-s.from)
}

// ticks are the decades, every second or third of them where they are many.
func (s scale) ticks(most int) (out []float64) {
	step := math.Ceil((s.high - s.low) / float64(most))
	for d := s.low; d <= s.high; d += step {
		out = append(out, math.Pow(10, d))
	}
	return out
}

// Sections are those of a file, in order.
func (f *File) Sections() (out []string) {
	for i := range f.Rows {
		if !slices.Contains(out, f.Rows[i].Section) {
			out = append(out, f.Rows[i].Section)
		}
	}
	return out
}

// WriteChart draws the rows of these sections, each median with its range on a logarithmic axis and the target as a line, and then, with curves, how the cost
// grows.
func (f *File) WriteChart(w io.Writer, title string, sections []string, curves bool) error {
	p := &svg.Pen{}
	story := fmt.Sprintf("%.10s, commit %s, %v, %v cores. Dots are medians, lines go from the least to the greatest round (of latencies to p99); to the left is faster.",
		f.Date, f.Commit, f.Machine["cpu"], f.Machine["cores"])
	p.Text("title", left, 34, "start", title)
	p.Text("story", left, 54, "start", story)
	x := left
	for _, k := range []struct{ class, text string }{{"ours", "kvlease"}, {"own", "kvlease in another way"}, {"peer0", "peers"}} {
		p.Circle(k.class, x+4, 70, 4)
		p.Text("", x+13, 74, "start", k.text)
		x += 34 + svg.CharWidth*float64(len(k.text))
	}
	for _, k := range []struct{ class, text string }{{"met", "target, met"}, {"missed", "target, missed"}} {
		p.Line(k.class, x+4, 64, x+4, 76)
		p.Text("", x+13, 74, "start", k.text)
		x += 34 + svg.CharWidth*float64(len(k.text))
	}
	y := 84.0
	for _, section := range sections {
		var of []*Row // of the section, in groups of one unit each
		for i := range f.Rows {
			if f.Rows[i].Section == section {
				of = append(of, &f.Rows[i])
			}
		}
		for _, unit := range units {
			group := slices.DeleteFunc(slices.Clone(of), func(r *Row) bool { return r.Unit != unit })
			if len(group) > 0 {
				y = drawRows(p, y, section, group)
			}
		}
	}
	if curves {
		y = f.drawCurves(p, y, sections)
	}
	pic := svg.Picture{Title: title, Description: story, Style: style, Dark: dark, Height: y + 10}
	return pic.Write(w, p)
}

// drawRows draws rows of one unit on one axis, and tells where it ends.
func drawRows(p *svg.Pen, y float64, section string, rows []*Row) float64 {
	var values []float64
	for _, r := range rows {
		for _, s := range r.sides() {
			values = append(values, s.Min, s.Median, r.high(s.Summary))
		}
		values = append(values, r.goal())
	}
	s := scaleOf(values, plotLeft, plotRight)
	head := section
	if rows[0].Better == "more" {
		head += ": to the right is better"
	}
	y += 24
	p.Text("scene", left, y, "start", head)
	y += 9
	top, body := y, &svg.Pen{}
	for _, r := range rows {
		label := svg.Wrap(strings.ReplaceAll(r.What, "`", ""), labelMax)
		sides := r.sides()
		tall := lineTall * float64(max(len(sides), len(label)))
		p.Rect("lane", plotLeft, y, plotRight-plotLeft, tall)
		for i, line := range label {
			p.Text("run", left, y+lineTall*float64(i)+10, "start", line)
		}
		for i, side := range sides {
			middle := y + lineTall*float64(i) + lineTall/2
			if high := r.high(side.Summary); high > side.Min {
				body.Line(side.class, s.at(side.Min), middle, s.at(high), middle)
			}
			body.Circle(side.class, s.at(side.Median), middle, 4)
			body.Text("num", textLeft, middle+4, "start", cut(Show(side.Median, r.Unit)+"  "+side.name, textMax))
		}
		if goal := r.goal(); goal > 0 {
			class := "met"
			if r.Met != nil && !*r.Met {
				class = "missed"
			}
			body.Line(class, s.at(goal), y, s.at(goal), y+tall)
		}
		y += tall + rowGap
	}
	y -= rowGap
	for _, v := range s.ticks(10) {
		p.Line("grid", s.at(v), top, s.at(v), y+3)
		p.Text("quiet", s.at(v), y+14, "middle", Show(v, rows[0].Unit))
	}
	p.Append(body)
	return y + 20
}

// cut shortens a text to n characters.
func cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}
