package timeline

import (
	"io"
	"math"
	"strconv"

	"github.com/kvlease/kvlease/internal/svg"
)

// Sizes in px.
const (
	width         = svg.Width
	left          = 150.0 // lane labels
	right         = 30.0
	laneHeight    = 32.0
	barTop        = 3.0
	barHeight     = 18.0 // below it is room for ticks
	laneGap       = 6.0
	momentRow     = 14.0
	charWidth     = svg.CharWidth
	legendColumns = 4
	legendWidth   = (width - 40) / legendColumns
)

// style is that of marks; dark is what differs on dark pages.
const style = `
.moment { stroke: #57606a; stroke-width: 1; stroke-dasharray: 2 3; }
.lease { fill: #9ecae9; stroke: #2f78b7; }
.beat { stroke: #08306b; stroke-width: 1.5; }
.first { stroke: #6f42c1; stroke-width: 1.5; fill: #6f42c1; }
.reclaimed { stroke: #c4500c; stroke-width: 2; fill: #c4500c; }
.completed { stroke: #0b7a56; stroke-width: 2; fill: #0b7a56; }
.released { stroke: #8250df; stroke-width: 2; fill: #8250df; }
.revoked { stroke: #bf3989; stroke-width: 2; fill: #bf3989; }
.reuse { fill: #f7c97c; stroke: #b97b10; }
.waiting { fill: #dfe3e8; stroke: #8c959f; }
.read { fill: #2fae83; stroke: #0b7a56; }
.refused { stroke: #c4500c; stroke-width: 2; fill: #ffffff; }
.aside { fill: #f6d0e4; stroke: #bf3989; stroke-dasharray: 4 2; }
.told { stroke: #bf3989; stroke-width: 2; fill: #ffffff; }
.meeting { fill: #e3d7f7; stroke: #8250df; }
.reset { stroke: #c4500c; stroke-width: 2.5; fill: none; }
.stopped { fill: url(#hatch); stroke: #6e7781; }
.crash { stroke: #c4500c; stroke-width: 3; }
.broken { stroke: #cf222e; stroke-width: 2.5; fill: #ffffff; }
.on { fill: #10202f; }
`

const dark = `
	.moment { stroke: #9aa5b1; }
	.beat { stroke: #79b8ff; }
	.first { stroke: #b392f0; fill: #b392f0; }
	.reclaimed, .crash, .reset { stroke: #f0883e; }
	.reclaimed { fill: #f0883e; }
	.released { stroke: #b392f0; fill: #b392f0; }
	.revoked { stroke: #f778ba; fill: #f778ba; }
	.told { stroke: #f778ba; fill: #0d1117; }
	.completed { stroke: #3fb68b; fill: #3fb68b; }
	.refused { stroke: #f0883e; fill: #0d1117; }
	.broken { stroke: #ff7b72; fill: #0d1117; }
	.waiting { fill: #b9c0c8; }
	.on { fill: #10202f; }
`

var classes = [kinds]string{
	Lease: "lease", Beat: "beat", Sent: "beat", FirstTerm: "first", Completed: "completed", Reclaimed: "reclaimed", Released: "released", Revoked: "revoked",
	Reuse: "reuse", Waiting: "waiting", Read: "read", Refused: "refused", Aside: "aside", Told: "told", Meeting: "meeting", Reset: "reset",
	Stopped: "stopped", Crash: "crash", Broken: "broken",
}

// bars are kinds that have a length.
var bars = [kinds]bool{Lease: true, Reuse: true, Waiting: true, Read: true, Aside: true, Meeting: true, Stopped: true}

// Write draws the chart.
func (c *Chart) Write(w io.Writer) error {
	p := &svg.Pen{}
	y := c.header(p)
	for i := range c.Scenes {
		y = c.Scenes[i].draw(p, y)
	}
	pic := svg.Picture{Title: c.Title, Description: c.Subtitle, Style: style, Dark: dark, Defs: hatch, Height: y + 10}
	return pic.Write(w, p)
}

const hatch = `<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#d0d7de"/><line x1="0" y1="0" x2="0" y2="6" stroke="#57606a" stroke-width="2"/></pattern>`

func (c *Chart) header(p *svg.Pen) float64 {
	p.Text("title", 20, 34, "start", c.Title)
	y := 54.0
	for _, line := range svg.Wrap(c.Subtitle, 170) {
		p.Text("story", 20, y, "start", line)
		y += 16
	}
	var used [kinds]bool
	for _, s := range c.Scenes {
		for _, r := range s.Runs {
			for _, l := range r.Lanes {
				for _, m := range l.Marks {
					used[m.Kind] = true
				}
			}
		}
	}
	y += 4
	column := 0
	for k := Kind(0); k < kinds; k++ {
		if !used[k] {
			continue
		}
		x := 20 + float64(column)*legendWidth
		sample := Mark{Kind: k}
		sample.draw(p, x+4, x+26, y, 14)
		p.Text("", x+34, y+11, "start", meaning[k])
		if column++; column == legendColumns {
			column, y = 0, y+20
		}
	}
	if column > 0 {
		y += 20
	}
	return y + 6
}

func (s *Scene) draw(p *svg.Pen, y float64) float64 {
	length := s.length() * 1.02
	scale := (width - left - right) / length
	at := func(t float64) float64 { return left + t*scale }

	y += 24
	p.Text("scene", 20, y, "start", s.Title)
	for _, line := range svg.Wrap(s.Story, 175) {
		y += 17
		p.Text("story", 20, y, "start", line)
	}
	y += 10
	top := y
	body := &svg.Pen{}
	for i := range s.Runs {
		y = s.Runs[i].draw(body, y, at)
	}
	for t := 0.0; t <= length; t += step(length) {
		p.Line("grid", at(t), top, at(t), y)
		p.Text("quiet", at(t), y+13, "middle", strconv.FormatFloat(math.Round(t*10)/10, 'f', -1, 64)+" s")
	}
	p.Append(body)
	return y + 22
}

func (r *Run) draw(p *svg.Pen, y float64, at func(float64) float64) float64 {
	// Words of moments go where they do not run into each other: three rows, then they are left to the dotted line.
	const rows = 3
	var ends [rows]float64
	type word struct {
		x, y   float64
		anchor string
		text   string
	}
	var words []word
	used := 1
	ends[0] = 20 + float64(len(r.Label))*charWidth*1.1 + 14
	for _, m := range r.Moments {
		size := float64(len([]rune(m.Text)))*charWidth + 10
		x, anchor := at(m.At)+3, "start"
		if x+size > width-4 {
			x, anchor = at(m.At)-3, "end"
		}
		from := x
		if anchor == "end" {
			from = x - size
		}
		for row := range rows {
			if ends[row] <= from {
				words = append(words, word{x, float64(row), anchor, m.Text})
				ends[row] = from + size
				used = max(used, row+1)
				break
			}
		}
	}
	y += 4
	p.Text("run", 20, y+momentRow-3, "start", r.Label)
	lanesTop := y + momentRow*float64(used) + 2
	bottom := lanesTop + float64(len(r.Lanes))*(laneHeight+laneGap)
	for _, w := range words {
		p.Text("", w.x, y+momentRow*(w.y+1)-3, w.anchor, w.text)
	}
	for i, lane := range r.Lanes {
		top := lanesTop + float64(i)*(laneHeight+laneGap)
		p.Text("", left-10, top+barTop+13, "end", lane.Label)
		p.Rect("lane", left, top, width-left-right, laneHeight)
		for _, bar := range []bool{true, false} { // points lie above bars
			for _, m := range lane.Marks {
				if bars[m.Kind] == bar {
					m.draw(p, at(m.From), at(max(m.From, m.To)), top, laneHeight)
				}
			}
		}
	}
	for _, m := range r.Moments {
		top := y
		for _, w := range words {
			if w.text == m.Text && math.Abs(w.x-at(m.At)) < 4 {
				top = y + momentRow*w.y + 2
			}
		}
		p.Line("moment", at(m.At), top, at(m.At), bottom-laneGap)
	}
	return bottom + 4
}

// draw puts one mark between x1 and x2 (equal for points) into a lane of this top and height.
func (m *Mark) draw(p *svg.Pen, x1, x2, top, height float64) {
	class := classes[m.Kind]
	middle := top + min(height/2, barTop+barHeight/2)
	p.Open(m.Text)
	defer p.End()
	if bars[m.Kind] {
		from, tall := top+barTop, barHeight
		if height < laneHeight { // in the legend
			from, tall = top+1, height-2
		}
		wide := max(x2-x1, 4)
		p.RoundRect(class, x1, from, wide, tall, 2)
		if size := float64(len([]rune(m.Text))) * charWidth; m.Text != "" && m.Kind != Stopped && size+16 < wide {
			p.Text("on", x1+8, from+13, "start", m.Text)
		}
		return
	}
	x := x1
	if x2-x1 > 10 { // a sample of the legend has room on both sides
		x = (x1 + x2) / 2
	}
	switch m.Kind {
	case Beat, Sent:
		p.Line(class, x, top+min(height-9, barTop+barHeight), x, top+min(height-1, barTop+barHeight+8))
	case FirstTerm:
		p.Line(class, x, top-2, x, top+min(height, barTop+barHeight))
		p.Path(class, x, top-2, "l7 3 l-7 3 z")
	case Completed, Reclaimed, Released, Revoked: // a pin; its head says which
		p.Line(class, x, top-1, x, top+min(height+1, barTop+barHeight+2))
		switch m.Kind {
		case Released:
			p.Path(class, x, top-2.5, "l3.5 3.5 l-3.5 3.5 l-3.5 -3.5 z")
		case Revoked:
			p.Rect(class, x-2.5, top-1.5, 5, 5)
		default:
			p.Circle(class, x, top+1, 3)
		}
	case Refused:
		p.Circle(class, x, middle, 6)
		p.Line(class, x-4, middle+4, x+4, middle-4)
	case Told:
		p.Path(class, x, middle-7, "l7 12 l-14 0 z")
		p.Line(class, x, middle-2, x, middle+2)
	case Reset:
		p.Path(class, x+2, middle-9, "l-5 9 l8 -1 l-5 9")
	case Crash:
		p.Line(class, x-6, middle-6, x+6, middle+6)
		p.Line(class, x-6, middle+6, x+6, middle-6)
	case Broken:
		p.Path(class, x, middle-8, "l8 8 l-8 8 l-8 -8 z")
		p.Line(class, x, middle-4, x, middle+1)
		p.Line(class, x, middle+3, x, middle+5)
	}
}
