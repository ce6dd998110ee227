package tracing

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/plural"
	"github.com/kvlease/kvlease/internal/svg"
)

// Sizes in px.
const (
	labelEnd  = 168.0
	plotLeft  = 180.0
	plotRight = 820.0
	rowHeight = 30.0
	rowGap    = 6.0
	barHeight = 24.0
	columnGap = 66.0
)

// columns of numbers beside a row, where each one ends.
var columnNames = [5]string{"n", "p50", "p90", "p99", "max"}

func columnEnd(i int) float64 { return plotRight + columnGap*float64(i+1) - 6 }

const style = `
.bar { fill: #9ecae9; }
.p50 { stroke: #08306b; stroke-width: 2; }
.p90 { stroke: #b97b10; stroke-width: 2; }
.p99 { stroke: #c4500c; stroke-width: 2; }
.max { fill: #c4500c; stroke: none; }
.num { font-variant-numeric: tabular-nums; }
`

const dark = `
	.bar { fill: #2f5f8a; }
	.p50 { stroke: #79b8ff; }
	.p90 { stroke: #f7c97c; }
	.p99 { stroke: #f0883e; }
	.max { fill: #f0883e; }
`

// scale turns spans into places on a logarithmic axis of whole decades.
type scale struct{ low, high float64 } // exponents of 10, of ns

// newScale fits all rows; below 10 ns nothing is told apart.
func (r *Report) newScale() scale {
	s := scale{low: math.Inf(1), high: math.Inf(-1)}
	for i := range r.Groups {
		for k := range r.Groups[i].Rows {
			h := &r.Groups[i].Rows[k]
			s.low = min(s.low, math.Floor(exponent(float64(h.Quantile(0)))))
			s.high = max(s.high, math.Ceil(exponent(float64(h.Max))+1e-9))
		}
	}
	if s.low > s.high {
		return scale{3, 6}
	}
	s.high = max(s.high, s.low+1)
	return s
}

// decade names a power of ten.
func decade(e float64) string {
	unit, ns := "ns", math.Pow(10, e)
	for _, u := range []string{"us", "ms", "s"} {
		if ns < 999 {
			break
		}
		ns, unit = ns/1000, u
	}
	return fmt.Sprintf("%.0f %s", ns, unit)
}

func exponent(ns float64) float64 { return max(math.Log10(max(ns, 1)), 1) }

func (s scale) x(ns float64) float64 {
	at := (exponent(ns) - s.low) / (s.high - s.low)
	return plotLeft + min(max(at, 0), 1)*(plotRight-plotLeft)
}

// WriteSVG draws each stage's histogram on one axis of time.
func (r *Report) WriteSVG(w io.Writer) error {
	p := &svg.Pen{}
	sub := fmt.Sprintf("%.1f s, %s of trace sites in %s. Each row is a stage: how often it took how long, on a logarithmic axis.",
		r.Seconds, plural.Counted(r.Counters.Hits, "hit", "hits"), plural.Counted(r.Processes, "process", "processes"))
	p.Text("title", 20, 34, "start", "kvlease trace")
	p.Text("story", 20, 54, "start", sub)
	y := r.legend(p, 66)
	s := r.newScale()
	for i := range r.Groups {
		y = r.Groups[i].draw(p, y, s)
	}
	if len(r.Groups) == 0 {
		y += 24
		p.Text("story", 20, y, "start", "Nothing has happened at the sites.")
	}
	for _, t := range append(r.troubles(), r.Notes...) {
		for _, line := range svg.Wrap(t, 170) {
			y += 16
			p.Text("story", 20, y, "start", line)
		}
	}
	pic := svg.Picture{Title: "kvlease trace", Description: sub, Style: style, Dark: dark, Height: y + 20}
	return pic.Write(w, p)
}

func (r *Report) legend(p *svg.Pen, y float64) float64 {
	x := 20.0
	entry := func(text string, draw func(x float64)) {
		draw(x)
		p.Text("", x+26, y+11, "start", text)
		x += 26 + float64(len([]rune(text)))*svg.CharWidth + 26
	}
	entry("how many (tallest: the most of its row)", func(x float64) {
		p.Rect("bar", x, y+4, 6, 10)
		p.Rect("bar", x+7, y, 6, 14)
		p.Rect("bar", x+14, y+7, 6, 7)
	})
	for _, c := range []string{"p50", "p90", "p99"} {
		entry(c, func(x float64) { p.Line(c, x+10, y, x+10, y+14) })
	}
	entry("longest", func(x float64) { p.Circle("max", x+10, y+7, 3.5) })
	for i := range r.Groups {
		for k := range r.Groups[i].Rows {
			if r.Groups[i].Rows[k].Stage == probe.Slack {
				p.Text("story", x, y+11, "start", strings.Replace(slackNote, "least", "the least, as its marks", 1))
				return y + 18
			}
		}
	}
	return y + 18
}

func (g *Group) draw(p *svg.Pen, y float64, s scale) float64 {
	y += 26
	p.Text("scene", 20, y, "start", g.name())
	for i, name := range columnNames {
		p.Text("quiet", columnEnd(i), y, "end", name)
	}
	y += 8
	top := y
	body := &svg.Pen{}
	for i := range g.Rows {
		p.Rect("lane", plotLeft, y, plotRight-plotLeft, rowHeight)
		g.Rows[i].draw(body, y, s)
		y += rowHeight + rowGap
	}
	y -= rowGap
	for e := s.low; e <= s.high+0.5; e++ {
		x := s.x(math.Pow(10, e))
		p.Line("grid", x, top, x, y+3)
		p.Text("quiet", x, y+14, "middle", decade(e))
	}
	p.Append(body)
	return y + 18
}

func (r *Row) draw(p *svg.Pen, y float64, s scale) {
	p.Open(fmt.Sprintf("%s: %s", r.Stage, r.Stage.Meaning()))
	p.Text("", labelEnd, y+19, "end", r.label())
	p.End()
	// Buckets are not equally wide on a logarithmic axis: what is drawn is how many there are to a widtr.
	var dense [probe.Buckets]float64
	most := 0.0
	for i, n := range r.Counts {
		dense[i] = float64(n) / math.Log(float64(max(probe.Lower(i+1), 2))/float64(max(probe.Lower(i), 1)))
		most = max(most, dense[i])
	}
	bottom := y + rowHeight - 2
	for i, n := range r.Counts {
		if n == 0 {
			continue
		}
		from, to := s.x(float64(probe.Lower(i))), s.x(float64(probe.Lower(i+1)))
		tall := max(barHeight*dense[i]/most, 1)
		p.Open(fmt.Sprintf("%d of %d between %s and %s", n, r.Count, duration(time.Duration(probe.Lower(i))), duration(time.Duration(probe.Lower(i+1)))))
		p.Rect("bar", from+0.4, bottom-tall, max(to-from-0.8, 1), tall)
		p.End()
	}
	v := r.columns()
	for i, class := range []string{"p50", "p90", "p99"} {
		x := s.x(float64(v[i]))
		p.Line(class, x, y+2, x, bottom)
	}
	p.Circle("max", s.x(float64(v[3])), bottom-4, 3.5)
	p.Text("num", columnEnd(0), y+19, "end", fmt.Sprint(r.Count))
	for i, d := range v {
		p.Text("num", columnEnd(i+1), y+19, "end", duration(d))
	}
}
