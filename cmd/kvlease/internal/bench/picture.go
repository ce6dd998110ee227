package bench

import (
	"fmt"
	"io"
	"math"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/internal/plural"
	"github.com/kvlease/kvlease/internal/svg"
)

// Sizes in px.
const (
	shapeEnd  = 96.0
	wayEnd    = 156.0
	plotLeft  = 168.0
	plotRight = 960.0
	numberEnd = svg.Width - 20
	rowHeight = 14.0
	groupGap  = 10.0
)

const style = `
.copy { fill: #b8c0c8; }
.bare { fill: #9ecae9; }
.raw { fill: #6baed6; }
.raw8 { fill: #3182bd; }
.kvlease { fill: #e6862e; }
.spread { stroke: #24292f; stroke-width: 1; }
.num { font-variant-numeric: tabular-nums; }
`

const dark = `
	.copy { fill: #59636e; }
	.bare { fill: #79b4dc; }
	.raw { fill: #4a90c4; }
	.raw8 { fill: #2f6496; }
	.kvlease { fill: #e6862e; }
	.spread { stroke: #e6edf3; }
`

var wayClass = map[string]string{WayCopy: "copy", WayBare: "bare", WayRaw: "raw", WayFenced: "raw8", WayOurs: "kvlease"}

var wayMeaning = []struct{ way, text string }{
	{WayCopy, "a copy within D"}, {WayBare, "NIXL alone, P not told"}, {WayRaw, "NIXL alone, P told"}, {WayFenced, "and 8 bytes before it"}, {WayOurs, "lease, fence, completion"},
}

// bar is one row of a picture.
type bar struct {
	way    string
	figure Figure
	text   string
}

type group struct {
	name string
	bars []bar
}

// WriteSVG draws each figure as a bar with the spread of its rounds.
func (r *Result) WriteSVG(w io.Writer) error {
	p := &svg.Pen{}
	p.Text("title", 20, 34, "start", "kvlease bench")
	p.Text("story", 20, 54, "start", r.where())
	p.Text("story", 20, 71, "start", r.across())
	p.Text("story", 20, 88, "start", r.how())
	x := 20.0
	for _, m := range wayMeaning {
		p.Rect(wayClass[m.way], x, 101, 14, 10)
		label := m.way + ": " + m.text
		p.Text("", x+20, 110, "start", label)
		x += 46 + svg.CharWidth*float64(len(label))
	}
	y := 121.0
	var latency, burst group
	for i := range r.Notifications.Latency {
		one, many := &r.Notifications.Latency[i], &r.Notifications.Burst[i]
		latency.bars = append(latency.bars, bar{one.Way, one.Us, spread(one.Us, short)})
		burst.bars = append(burst.bars, bar{many.Way, many.PerSecond, spread(many.PerSecond, text.Count)})
	}
	var rates, first, adds []group
	for i := range r.Reads {
		read := &r.Reads[i]
		g, f := group{name: read.name()}, group{name: read.name()}
		for _, way := range read.Ways {
			g.bars = append(g.bars, bar{way.Way, way.GBs, spread(way.GBs, short)})
			if way.FirstUs != nil && way.Way != WayFenced {
				f.bars = append(f.bars, bar{way.Way, *way.FirstUs, spread(*way.FirstUs, short)})
			}
		}
		rates = append(rates, g)
		if len(f.bars) > 0 {
			first = append(first, f)
		}
		one := func(way string, f Figure) bar { return bar{way, f, spread(f, short)} }
		adds = append(adds, group{name: read.name(), bars: []bar{one(WayFenced, read.FenceLeastUs), one(WayOurs, read.FenceUs)}})
	}
	for _, s := range []struct {
		title, unit string
		groups      []group
	}{
		{"One notification, until P has acted on it", "us", []group{latency}},
		{plural.Counted(r.Burst, "notification", "notifications") + " at once", "a second", []group{burst}},
		{"Reads: bytes a second", "GB/s", rates},
		{"Reads: until the first word of the first block was seen", "us", first},
		{"Reads: what is added to raw, round by round", "us", adds},
	} {
		if len(s.groups) > 0 {
			y = section(p, y, s.title, s.unit, s.groups)
		}
	}
	pic := svg.Picture{Title: "kvlease bench", Description: r.where() + ". " + r.how(), Style: style, Dark: dark, Height: y + 14}
	return pic.Write(w, p)
}

// tick is a round step of an axis that ends at most: about six of them.
func tick(most float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(most/6)))
	for _, k := range []float64{1, 2, 5, 10} {
		if most/(k*step) <= 6 {
			return k * step
		}
	}
	return 10 * step
}

// section draws groups on one linear axis from 0. A difference that noise made less than 0 has no bar; its number says it.
func section(p *svg.Pen, y float64, title, unit string, groups []group) float64 {
	most := 0.0
	for _, g := range groups {
		for _, b := range g.bars {
			most = max(most, b.figure.High)
		}
	}
	if most <= 0 {
		most = 1
	}
	step := tick(most)
	most = step * math.Ceil(most/step)
	at := func(v float64) float64 { return plotLeft + max(v, 0)/most*(plotRight-plotLeft) }
	y += 28
	p.Text("scene", 20, y, "start", title)
	p.Text("quiet", numberEnd, y, "end", unit)
	y += 8
	top, body := y, &svg.Pen{}
	for _, g := range groups {
		height := rowHeight * float64(len(g.bars))
		p.Rect("lane", plotLeft, y, plotRight-plotLeft, height)
		p.Text("run", shapeEnd, y+height/2+4, "end", g.name)
		for _, b := range g.bars {
			p.Text("", wayEnd, y+11, "end", b.way)
			body.Rect(wayClass[b.way], plotLeft, y+2, at(b.figure.Median)-plotLeft, rowHeight-4)
			if b.figure.High > b.figure.Low {
				middle := y + rowHeight/2
				body.Line("spread", at(b.figure.Low), middle, at(b.figure.High), middle)
				body.Line("spread", at(b.figure.Low), middle-3, at(b.figure.Low), middle+3)
				body.Line("spread", at(b.figure.High), middle-3, at(b.figure.High), middle+3)
			}
			p.Text("num", numberEnd, y+11, "end", b.text)
			y += rowHeight
		}
		y += groupGap
	}
	y -= groupGap
	for i := 0.0; i*step <= most*1.001; i++ {
		p.Line("grid", at(i*step), top, at(i*step), y+3)
		p.Text("quiet", at(i*step), y+14, "middle", axis(i*step))
	}
	p.Append(body)
	return y + 18
}

// axis writes a round number.
func axis(v float64) string {
	if v >= 1000 {
		return text.Count(v)
	}
	return fmt.Sprintf("%.3g", v)
}
