package capacity

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"time"
)

// The charts: a small writer of bars and lines, and what stands in them.

const (
	panelW, panelH         = 620, 300
	plotLeft, plotTop      = 74, 46
	plotW, plotH           = 526, 190
	leaseColour, fixColour = "#2f6db3", "#c8741f"
	gridColour, inkColour  = "#d9dce1", "#22262b"
)

// parts of stacked bars, and series beside each other, from the first.
var partColours = []string{"#2f6db3", "#c8741f", "#7a4f9a", "#58a065"}

// bar is one setting's place on a chart: its parts from the bottom up, or beside each other.
type bar struct {
	name  string
	fixed bool
	parts []float64
}

// chart is bars of settings.
type chart struct {
	title, unit string
	legend      []string // of the parts; none if there is one
	log         bool
	beside      bool // parts stand beside each other
	bars        []bar
}

type canvas struct{ bytes.Buffer }

func (c *canvas) text(x, y float64, anchor string, size int, what string) {
	fmt.Fprintf(c, `<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">`, x, y, anchor, size)
	_ = xml.EscapeText(c, []byte(what)) // into memory
	c.WriteString("</text>\n")
}

func (c *canvas) rect(x, y, w, h float64, fill string) {
	fmt.Fprintf(c, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, w, max(h, 0), fill)
}

func (c *canvas) line(x1, y1, x2, y2 float64, stroke string) {
	fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x1, y1, x2, y2, stroke)
}

// axis is how values become heights.
type axis struct {
	log       bool
	low, high float64
}

// newAxis fits an axis to values.
func newAxis(log bool, values []float64) axis {
	a := axis{log: log, low: math.Inf(1)}
	for _, v := range values {
		a.high = max(a.high, v)
		if v > 0 {
			a.low = min(a.low, v)
		}
	}
	if a.high <= 0 {
		return axis{high: 1}
	}
	if !log {
		a.low = 0
		step := niceStep(a.high)
		a.high = math.Ceil(a.high*1.08/step) * step // room for the number over the highest bar
		return a
	}
	a.low = math.Pow(10, math.Floor(math.Log10(a.low)-1e-9))
	a.high = math.Pow(10, math.Ceil(math.Log10(a.high*1.4)))
	return a
}

// niceStep is a round step of which four or so reach v.
func niceStep(v float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(v/4)))
	for _, m := range []float64{1, 2, 5, 10} {
		if v/(step*m) <= 5 {
			return step * m
		}
	}
	return step * 10
}

// height is the share of the plot that a value reaches; on a logarithmic axis nothing is as high as 0.
func (a axis) height(v float64) float64 {
	if v <= 0 {
		return 0
	}
	if a.log {
		return min(max(math.Log10(v/a.low)/math.Log10(a.high/a.low), 0), 1)
	}
	return v / a.high
}

func (a axis) ticks() (list []float64) {
	if a.log {
		for v := a.low; v <= a.high*1.0001; v *= 10 {
			list = append(list, v)
		}
		return list
	}
	for v, step := 0.0, niceStep(a.high); v <= a.high*1.0001; v += step {
		list = append(list, v)
	}
	return list
}

func (c *canvas) frame(x, y float64, title, unit string, a axis) {
	c.text(x+plotLeft, y+20, "start", 15, title)
	c.text(x+plotLeft, y+37, "start", 11, unit)
	for _, v := range a.ticks() {
		at := y + plotTop + plotH*(1-a.height(v))
		if a.log && v == a.low {
			at = y + plotTop + plotH
		}
		c.line(x+plotLeft, at, x+plotLeft+plotW, at, gridColour)
		c.text(x+plotLeft-6, at+4, "end", 11, plain(v))
	}
}

func (c *canvas) legend(x, y float64, names []string, colours []string) {
	at := x + plotLeft + plotW
	for i := len(names) - 1; i >= 0; i-- {
		at -= float64(len(names[i]))*6.2 + 20
		c.rect(at, y+28, 10, 10, colours[i])
		c.text(at+14, y+37, "start", 11, names[i])
	}
}

// bars draws a chart with its corner at x, y.
func (c *canvas) bars(x, y float64, ch *chart) {
	var values []float64
	for _, b := range ch.bars {
		sum := 0.0
		for _, v := range b.parts {
			sum += v
			if ch.beside {
				values = append(values, v)
			}
		}
		if !ch.beside {
			values = append(values, sum)
		}
	}
	a := newAxis(ch.log, values)
	c.frame(x, y, ch.title, ch.unit, a)
	if len(ch.legend) > 0 {
		c.legend(x, y, ch.legend, partColours)
	}
	room := plotW / float64(max(len(ch.bars), 1))
	for i, b := range ch.bars {
		left, width := x+plotLeft+room*(float64(i)+0.15), room*0.7
		foot := y + plotTop + plotH
		sum := 0.0
		for k, v := range b.parts {
			colour := partColours[k%len(partColours)]
			if len(b.parts) == 1 {
				if colour = leaseColour; b.fixed {
					colour = fixColour
				}
			}
			if ch.beside {
				w := width / float64(len(b.parts))
				h := plotH * a.height(v)
				c.rect(left+w*float64(k), foot-h, w-1, h, colour)
				if len(b.parts) <= 2 || k == len(b.parts)-1 { // more would not be readable
					c.text(left+w*(float64(k)+0.5), foot-h-4, "middle", 11, plain(v))
				}
				continue
			}
			from := plotH * a.height(sum)
			sum += v
			h := plotH * a.height(sum)
			c.rect(left, foot-h, width, h-from, colour)
		}
		if !ch.beside {
			c.text(left+width/2, foot-plotH*a.height(sum)-4, "middle", 11, plain(sum))
		}
		c.text(left+width/2, foot+16, "middle", 11, b.name)
	}
	c.line(x+plotLeft, y+plotTop+plotH, x+plotLeft+plotW, y+plotTop+plotH, inkColour)
}

// lines draws what was wasted over time, a line for each setting.
func (c *canvas) lines(x, y float64, title, unit string, results []*Result, of func(Sample) float64) {
	var values []float64
	end := 1.0
	for _, r := range results {
		for _, s := range r.Samples {
			values = append(values, of(s))
			end = max(end, time.Duration(s.At).Seconds())
		}
	}
	a := newAxis(false, values)
	c.frame(x, y, title, unit, a)
	foot := y + plotTop + plotH
	for v, step := 0.0, niceStep(end); v <= end; v += step {
		at := x + plotLeft + plotW*v/end
		c.line(at, foot, at, foot+4, inkColour)
		c.text(at, foot+16, "middle", 11, plain(v)+" s")
	}
	for i, r := range results {
		colour, dash := lineStyle(results, i)
		fmt.Fprintf(c, `<polyline fill="none" stroke="%s" stroke-width="1.5"%s points="`, colour, dash)
		for _, s := range r.Samples {
			fmt.Fprintf(c, "%.1f,%.1f ", x+plotLeft+plotW*time.Duration(s.At).Seconds()/end, foot-plotH*a.height(of(s)))
		}
		c.WriteString("\"/>\n")
		atX, atY := x+plotLeft+plotW/4*float64(i%4), foot+30+15*float64(i/4)
		fmt.Fprintf(c, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-width="3"%s/>`+"\n", atX, atY, atX+18, atY, colour, dash)
		c.text(atX+23, atY+4, "start", 11, r.Setting)
	}
	c.line(x+plotLeft, foot, x+plotLeft+plotW, foot, inkColour)
}

// lineStyle goes from light to dark over the leases in blue, and over the fixed times, which are dashed, in orange.
func lineStyle(results []*Result, i int) (colour, dash string) {
	at, n := 0, 0
	for k, r := range results {
		if r.Fixed == results[i].Fixed {
			if k < i {
				at++
			}
			n++
		}
	}
	t := float64(at) / float64(max(n-1, 1))
	if results[i].Fixed {
		return fmt.Sprintf("#%02x%02x%02x", int(236-90*t), int(160-110*t), int(60-45*t)), ` stroke-dasharray="5 3"`
	}
	return fmt.Sprintf("#%02x%02x%02x", int(150-140*t), int(198-150*t), int(238-140*t)), ""
}

// SVG writes the charts of a comparison.
func SVG(out io.Writer, cfg *Config, results []*Result) error {
	bars := func(title, unit string, log, beside bool, legend []string, of func(*Result) []float64) *chart {
		ch := &chart{title: title, unit: unit, log: log, beside: beside, legend: legend}
		for _, r := range results {
			ch.bars = append(ch.bars, bar{r.Setting, r.Fixed, of(r)})
		}
		return ch
	}
	sec := func(s Span) float64 { return time.Duration(s).Seconds() }
	perSecond := func(v float64, r *Result, engines int) float64 { return v / (sec(r.Span) * float64(engines)) }
	c := &canvas{}
	fmt.Fprintf(c, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" fill="%s">`+"\n", 2*panelW+20, 3*panelH+50, inkColour)
	c.rect(0, 0, 2*panelW+20, 3*panelH+50, "#ffffff")
	n := uint64(0)
	if len(results) > 0 {
		n = results[0].Requests
	}
	c.text(plotLeft, 26, "start", 17, fmt.Sprintf("%d requests, %d P, %d D: what each way to hold blocks costs", n, cfg.P, cfg.D))
	for i, ch := range []*chart{
		bars("Wasted", "block-seconds held when nobody would read any more", true, false, nil, func(r *Result) []float64 {
			return []float64{r.WastedBlockSeconds}
		}),
		bars("Reclaimed after a crash of D", "seconds until its leases ended; the number is the longest", true, true, []string{"p50", "p99", "longest"}, func(r *Result) []float64 {
			return []float64{sec(r.Reclaim.P50), sec(r.Reclaim.P99), sec(r.Reclaim.Max)}
		}),
		bars("Lost to the lease", "attempts computed anew, as it had ended before it was read", true, false, nil, func(r *Result) []float64 {
			return []float64{float64(r.LostLease)}
		}),
		bars("Heartbeats", "bytes a second of one D", false, false, nil, func(r *Result) []float64 {
			return []float64{perSecond(float64(r.BeatBytes), r, cfg.D)}
		}),
		bars("The plane's steps", "microseconds a second of one engine", false, true, []string{"P", "D"}, func(r *Result) []float64 {
			return []float64{perSecond(sec(r.CPUP)*1e6, r, cfg.P), perSecond(sec(r.CPUD)*1e6, r, cfg.D)}
		}),
	} {
		c.bars(float64(i%2)*panelW, 40+float64(i/2)*panelH, ch)
	}
	c.lines(panelW, 40+2*panelH, "Wasted over time", "blocks held for nobody, all caches together", results, func(s Sample) float64 { return float64(s.Wasted) })
	c.WriteString("</svg>\n")
	_, err := out.Write(c.Bytes())
	return err
}
