package figures

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/svg"
)

// Sizes of a panel in px; two stand side by side.
const (
	panelWide = 560.0
	panelTall = 190.0
	panelPlot = 290.0
	panelLeft = 62.0 // of the axis, from the panel's edge
)

// curve is how the cost of one side grows.
type curve struct {
	class, name string
	at          []float64 // how many
	cost        []Summary
}

// family is what stands in one panel.
type family struct {
	name, unit string
	curves     []curve
}

// Families are the growth curves of these sections with two points at least, points in order.
func (f *File) families(sections []string) (out []family) {
	byName := make(map[string]int)
	rows := slices.Clone(f.Rows)
	slices.SortStableFunc(rows, func(a, b Row) int { return int(a.At - b.At) })
	for i := range f.Rows { // in the order of the table
		r := &f.Rows[i]
		if _, known := byName[r.Family]; !known && r.Family != "" && slices.Contains(sections, r.Section) {
			byName[r.Family] = len(out)
			out = append(out, family{name: r.Family, unit: r.Unit})
		}
	}
	for i := range rows {
		r := &rows[i]
		k, ok := byName[r.Family]
		if !ok || r.At <= 0 {
			continue
		}
		for _, s := range r.sides() {
			c := slices.IndexFunc(out[k].curves, func(c curve) bool { return c.name == s.name })
			if c < 0 {
				c = len(out[k].curves)
				out[k].curves = append(out[k].curves, curve{class: s.class, name: s.name})
			}
			of := &out[k].curves[c]
			of.at, of.cost = append(of.at, r.At), append(of.cost, s.Summary)
		}
	}
	for k := range out {
		out[k].curves = slices.DeleteFunc(out[k].curves, func(c curve) bool { return len(c.at) < 2 })
	}
	return slices.DeleteFunc(out, func(f family) bool { return len(f.curves) == 0 })
}

// drawCurves draws cost against number, both logarithmic: a straight line that rises a decade in a decade grows as the number does.
func (f *File) drawCurves(p *svg.Pen, y float64, sections []string) float64 {
	families := f.families(sections)
	if len(families) == 0 {
		return y
	}
	y += 24
	p.Text("scene", left, y, "start", "growth: cost against number")
	y += 8
	for i := range families {
		families[i].draw(p, left+panelWide*float64(i%2), y)
		if i%2 == 1 || i == len(families)-1 {
			y += panelTall + 26
		}
	}
	return y
}

func (m *family) draw(p *svg.Pen, x, y float64) {
	p.Text("run", x, y+12, "start", m.name)
	top, bottom := y+22, y+panelTall-16
	var at, cost []float64
	for _, c := range m.curves {
		at = append(at, c.at...)
		for _, s := range c.cost {
			cost = append(cost, s.Median)
		}
	}
	across, up := scaleOf(at, x+panelLeft, x+panelLeft+panelPlot), scaleOf(cost, bottom, top)
	p.Rect("lane", across.from, top, panelPlot, bottom-top)
	for _, v := range across.ticks(6) {
		p.Line("grid", across.at(v), top, across.at(v), bottom+3)
		p.Text("quiet", across.at(v), bottom+14, "middle", grouped(v))
	}
	for _, v := range up.ticks(6) {
		p.Line("grid", across.from-3, up.at(v), across.to, up.at(v))
		p.Text("quiet", across.from-6, up.at(v)+4, "end", Show(v, m.unit))
	}
	for i := len(m.curves) - 1; i >= 0; i-- { // ours on top
		c := &m.curves[i]
		var line strings.Builder
		for k, s := range c.cost {
			if k > 0 {
				fmt.Fprintf(&line, "L%s %s", svg.Px(across.at(c.at[k])), svg.Px(up.at(s.Median)))
			}
			p.Circle(c.class, across.at(c.at[k]), up.at(s.Median), 3)
		}
		p.Path(c.class+" curve", across.at(c.at[0]), up.at(c.cost[0].Median), line.String())
	}
	for i := range m.curves {
		c := &m.curves[i]
		first, last := c.cost[0].Median, c.cost[len(c.cost)-1].Median
		line := y + 32 + 27*float64(i)
		p.Circle(c.class, across.to+28, line-4, 3)
		p.Text("", across.to+36, line, "start", cut(c.name, 28))
		grown := fmt.Sprintf("%s to %s", Show(first, m.unit), Show(last, m.unit))
		if first > 0 {
			grown += ", × " + factor(last/first)
		}
		p.Text("quiet", across.to+36, line+12, "start", grown)
	}
}

// factor writes a number with two figures, whole ones as they are.
func factor(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.2g", v)
	}
	return grouped(v)
}
