package top

import (
	"strings"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
)

// look is how a piece of a line looks. Without colours red, yellow and green are plain: levels have marks of their own.
type look uint8

const (
	plain look = iota
	bold
	dim
	inverse // headings, and the line that is selected
	red
	yellow
	green
)

var codes = [...]string{plain: "", bold: "1", dim: "2", inverse: "7", red: "31", yellow: "33", green: "32"}

func (l look) coloured() bool { return l >= red }

func (l Level) look() look { return [...]look{Fine: plain, Note: plain, Warn: yellow, Alarm: red}[l] }

// piece is text of one look. It is printable: whatever peers call themselves has gone through text.Printable.
type piece struct {
	text string
	look look
}

// line is one line of the screen.
type line struct {
	pieces   []piece
	selected bool
}

func of(pieces ...piece) line { return line{pieces: pieces} }

func say(s string) line { return of(piece{text: s}) }

// String is a line without looks.
func (l line) String() string {
	var b strings.Builder
	for _, p := range l.pieces {
		b.WriteString(p.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// cut shortens a line to so many cells.
func (l line) cut(cells int) line {
	out := line{selected: l.selected}
	for _, p := range l.pieces {
		w := text.Width(p.text)
		if w > cells {
			p.text = text.Cut(p.text, cells)
		}
		out.pieces = append(out.pieces, p)
		if cells -= w; cells <= 0 {
			break
		}
	}
	if cells > 0 && l.selected {
		out.pieces = append(out.pieces, piece{text: strings.Repeat(" ", cells)})
	}
	return out
}

// paint is a line for a terminal.
func (l line) paint(colours bool) string {
	var b strings.Builder
	for _, p := range l.pieces {
		var on []string
		if l.selected {
			on = append(on, codes[inverse])
		}
		if c := codes[p.look]; c != "" && (colours || !p.look.coloured()) && !(l.selected && p.look == inverse) {
			on = append(on, c)
		}
		if len(on) == 0 {
			b.WriteString(p.text)
			continue
		}
		b.WriteString("\x1b[" + strings.Join(on, ";") + "m" + p.text + "\x1b[m")
	}
	return b.String()
}
