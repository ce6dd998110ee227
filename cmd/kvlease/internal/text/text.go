// Package text makes names and numbers of others fit for a line on a terminal.
package text

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Printable quotes text that would do something to a terminal, or that is no text.
func Printable(s string) string {
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}

// JSON is v in one line of JSON that has nothing for a terminal to obey: what is no plain text in it is escaped.
func JSON(v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(plain)+1)
	for _, r := range string(plain) {
		switch {
		case strconv.IsPrint(r):
			out = utf8.AppendRune(out, r)
		case r < 1<<16:
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		}
	}
	return append(out, '\n'), nil
}

// Width is the number of cells that printable text takes: two for each wide character.
func Width(s string) int { return ansi.StringWidth(s) }

// Cut shortens printable text to so many cells.
func Cut(s string, cells int) string {
	if cells <= 0 {
		return ""
	}
	if Width(s) <= cells {
		return s
	}
	return ansi.Truncate(s, cells, "…")
}

// Left makes printable text exactly so many cells wide, Right with the room before it.
func Left(s string, cells int) string {
	s = Cut(s, cells)
	return s + strings.Repeat(" ", max(0, cells-Width(s)))
}

// Right is Left with the room before the text.
func Right(s string, cells int) string {
	s = Cut(s, cells)
	return strings.Repeat(" ", max(0, cells-Width(s))) + s
}

// Count is a number of things in at most four characters: 999, 1.2k, 12k, 123k, 1.2M.
func Count(v float64) string { return scaled(v, 1000, "", "k", "M", "G", "T", "P", "E") }

// Bytes is a size in at most four characters, in powers of 1,024: 999, 1.2K, 12K, 1.0G.
func Bytes(v float64) string { return scaled(v, 1024, "", "K", "M", "G", "T", "P", "E") }

func scaled(v, step float64, units ...string) string {
	switch {
	case math.IsNaN(v):
		return "?"
	case v < 0:
		return "-" + scaled(-v, step, units...)
	case v > 0 && v < 0.95 && v == v-math.Floor(v):
		return fmt.Sprintf("%.1f", max(v, 0.1))
	}
	i := 0
	for v >= 999.5 && i < len(units)-1 {
		v /= step
		i++
	}
	if i > 0 && v < 9.95 {
		return fmt.Sprintf("%.1f%s", v, units[i])
	}
	return fmt.Sprintf("%.0f%s", v, units[i])
}

// Span is a time in at most five characters: 0.2s, 14.8s, 123s, 12m, 3.4h, 12d; 40ms and 12us where it is short.
func Span(d time.Duration) string {
	if d < 0 {
		return "-" + before(-d)
	}
	s := d.Seconds()
	switch {
	case d == 0:
		return "0s"
	case d < time.Microsecond:
		return fmt.Sprintf("%dns", d)
	case s < 999.5e-6:
		return fmt.Sprintf("%.0fus", s*1e6)
	case s < 99.5e-3:
		return fmt.Sprintf("%.0fms", s*1e3)
	case s < 99.95:
		return fmt.Sprintf("%.1fs", s)
	case s < 599.5:
		return fmt.Sprintf("%.0fs", s)
	case s < 99.5*60:
		return fmt.Sprintf("%.0fm", s/60)
	case s < 99.5*3600:
		return fmt.Sprintf("%.1fh", s/3600)
	}
	return fmt.Sprintf("%.0fd", s/86400)
}

// before is a time that has passed, in the four characters that its sign leaves: 9.8s, 14s, 12h; 1ms where it is less.
func before(d time.Duration) string {
	s := d.Seconds()
	switch text := Span(d); {
	case len(text) < 5:
		return text
	case s < 999.5e-9:
		return "1us"
	case s < 999.5e-6:
		return "1ms"
	case s < 99.95:
		return fmt.Sprintf("%.0fs", s)
	default:
		return fmt.Sprintf("%.0fh", s/3600)
	}
}

// Column is one of a table: its heading and on which side its cells have their room.
type Column struct {
	Head  string
	Right bool
}

// Table lays rows out under their headings, each column as wide as its widest cell, columns that are empty throughout left out.
func Table(columns []Column, rows [][]string) []string {
	widths := make([]int, len(columns))
	for _, r := range rows {
		for i, cell := range r {
			widths[i] = max(widths[i], Width(cell))
		}
	}
	last := 0
	for i, w := range widths {
		if w > 0 {
			last, widths[i] = i, max(w, Width(columns[i].Head))
		}
	}
	line := func(cells func(i int) string) string {
		var b strings.Builder
		for i, w := range widths {
			switch {
			case w == 0:
			case columns[i].Right:
				b.WriteString(Right(cells(i), w))
			case i < last:
				b.WriteString(Left(cells(i), w))
			default:
				b.WriteString(cells(i))
			}
			if w > 0 && i < last {
				b.WriteString("  ")
			}
		}
		return strings.TrimRight(b.String(), " ")
	}
	lines := []string{line(func(i int) string { return columns[i].Head })}
	for _, r := range rows {
		lines = append(lines, line(func(i int) string { return r[i] }))
	}
	return lines
}
