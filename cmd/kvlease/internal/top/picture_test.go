package top

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
	"github.com/kvlease/kvlease/internal/svg"
)

const screenStyle = `
.t { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; white-space: pre; }
.bold { font-weight: 700; } .dim { fill: #6e7781; } .red { fill: #cf222e; } .yellow { fill: #9a6700; } .green { fill: #1a7f37; }
.inverse { fill: #ffffff; } .back { fill: #57606a; } .chosen { fill: #dbe4ee; }
`

const screenDark = `
	.dim { fill: #8b949e; } .red { fill: #ff7b72; } .yellow { fill: #e3b341; } .green { fill: #56d364; }
	.inverse { fill: #0d1117; } .back { fill: #8b949e; } .chosen { fill: #2d3b4e; }
`

// picture draws a screen.
func picture(v *view, title string) []byte {
	const cell, high, margin = 7.83, 18.0, 20.0
	var pen svg.Pen
	lines := v.lines()
	for i, l := range lines {
		y := margin + float64(i)*high
		at := 0
		for _, p := range l.pieces {
			x, w := margin+float64(at)*cell, float64(text.Width(p.text))*cell
			class := [...]string{plain: "t", bold: "t bold", dim: "t dim", inverse: "t inverse", red: "t red", yellow: "t yellow", green: "t green"}[p.look]
			switch {
			case l.selected:
				pen.Rect("chosen", x, y, w, high)
			case p.look == inverse:
				pen.Rect("back", x, y, w, high)
			}
			// A blank before text is left out by renderers: each word stands where it belongs.
			for k, word := 0, ""; k < len(p.text); k += len(word) {
				if p.text[k] == ' ' {
					word = " "
					at++
					continue
				}
				word, _, _ = strings.Cut(p.text[k:], " ")
				pen.Text(class, margin+float64(at)*cell, y+13, "start", word)
				at += text.Width(word)
			}
		}
	}
	var out bytes.Buffer
	p := svg.Picture{Title: title, Description: screen(v), Style: screenStyle, Dark: screenDark, Height: 2*margin + float64(len(lines))*high}
	if err := p.Write(&out, &pen); err != nil {
		panic(err)
	}
	return out.Bytes()
}

// What kvlease top --once --json has said is the screen in docs/top.svg.
func TestThePictureInTheDocsIsWhatTheToolShows(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("testdata", "reading.json"))
	if err != nil {
		t.Fatal(err)
	}
	var r Reading
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Engines {
		e.key = e.Source
	}
	v := &view{width: 80, height: 13, where: "/dev/shm"}
	v.set(r)
	v.press("down")
	path := filepath.Join("..", "..", "..", "..", "docs", "top.svg")
	got := picture(v, "kvlease top: a decode engine is stopped, and its leases run out")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("docs/top.svg (-want +got):\n%s", diff)
	}
}
