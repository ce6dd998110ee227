// Package svg writes kvlease's pictures: files that stand alone, without script or font, readable on light and dark pages.
package svg

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
)

// Sizes in px that all pictures share. Text is measured by CharWidth, since a renderer's font is not known here.
const (
	Width     = 1160.0
	CharWidth = 5.9 // of the 11 px text
)

// base works without scripts and variables, so that plain renderers understand it; dark pages get the second block.
const base = `
text { font: 11px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #24292f; }
.bg { fill: #ffffff; }
.title { font-size: 20px; font-weight: 600; }
.scene { font-size: 15px; font-weight: 600; }
.story, .quiet { fill: #57606a; }
.story { font-size: 12px; }
.run { font-weight: 600; }
.lane { fill: #f3f5f7; }
.grid { stroke: #d8dee4; stroke-width: 1; }
`

const baseDark = `
	text { fill: #e6edf3; }
	.bg { fill: #0d1117; }
	.story, .quiet { fill: #9aa5b1; }
	.lane { fill: #161b22; }
	.grid { stroke: #30363d; }
`

// Picture is what stands around the elements.
type Picture struct {
	Title, Description string
	Style, Dark        string // rules of its own, and those for dark pages
	Defs               string
	Height             float64
}

// Write writes the file.
func (c *Picture) Write(w io.Writer, body *Pen) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="t d">`+"\n",
		Px(Width), Px(c.Height), Px(Width), Px(c.Height))
	fmt.Fprintf(out, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", html.EscapeString(c.Title), html.EscapeString(c.Description))
	fmt.Fprintf(out, "<style>%s%s@media (prefers-color-scheme: dark) {%s%s}\n</style>\n", base, c.Style, baseDark, c.Dark)
	if c.Defs != "" {
		out.WriteString("<defs>" + c.Defs + "</defs>\n")
	}
	fmt.Fprintf(out, `<rect class="bg" width="%s" height="%s"/>`+"\n", Px(Width), Px(c.Height))
	out.WriteString(body.b.String())
	out.WriteString("</svg>\n")
	return out.Flush()
}

// Pen collects elements.
type Pen struct{ b strings.Builder }

// Px is a length in a file.
func Px(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Text writes at a point; anchor is start, middle or end.
func (p *Pen) Text(class string, x, y float64, anchor, s string) {
	fmt.Fprintf(&p.b, `<text class="%s" x="%s" y="%s" text-anchor="%s">%s</text>`+"\n", class, Px(x), Px(y), anchor, html.EscapeString(s))
}

// Line draws a straight line.
func (p *Pen) Line(class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(&p.b, `<line class="%s" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, Px(x1), Px(y1), Px(x2), Px(y2))
}

// Rect draws a rectangle.
func (p *Pen) Rect(class string, x, y, width, height float64) {
	fmt.Fprintf(&p.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s"/>`+"\n", class, Px(x), Px(y), Px(width), Px(height))
}

// RoundRect draws a rectangle with corners of this radius.
func (p *Pen) RoundRect(class string, x, y, width, height, radius float64) {
	fmt.Fprintf(&p.b, `<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="%s"/>`+"\n", class, Px(x), Px(y), Px(width), Px(height), Px(radius))
}

// Circle draws a circle.
func (p *Pen) Circle(class string, x, y, radius float64) {
	fmt.Fprintf(&p.b, `<circle class="%s" cx="%s" cy="%s" r="%s"/>`+"\n", class, Px(x), Px(y), Px(radius))
}

// Path draws a path that begins at a point; rest are its further commands.
func (p *Pen) Path(class string, x, y float64, rest string) {
	fmt.Fprintf(&p.b, `<path class="%s" d="M%s %s %s"/>`+"\n", class, Px(x), Px(y), rest)
}

// Open begins a group with a tooltip.
func (p *Pen) Open(tip string) {
	p.b.WriteString("<g>")
	if tip != "" {
		fmt.Fprintf(&p.b, "<title>%s</title>", html.EscapeString(tip))
	}
	p.b.WriteString("\n")
}

// End ends it.
func (p *Pen) End() { p.b.WriteString("</g>\n") }

// Append puts the elements of another pen on top.
func (p *Pen) Append(o *Pen) { p.b.WriteString(o.b.String()) }

// Wrap breaks text at blanks into lines of at most n characters.
func Wrap(s string, n int) []string {
	var lines []string
	line := ""
	for _, w := range strings.Fields(s) {
		if line != "" && len([]rune(line))+1+len([]rune(w)) > n {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += w
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}
