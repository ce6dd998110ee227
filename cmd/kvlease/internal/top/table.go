package top

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/text"
)

func spanText(d time.Duration) string { return text.Span(d) }

func span(d *time.Duration) string {
	if d == nil {
		return "-"
	}
	return text.Span(*d)
}

func count(n uint64) string { return text.Count(float64(n)) }

// few is a number that is 0 as a rule, in three cells.
func few(n uint64) string {
	switch {
	case n == 0:
		return "-"
	case n < 1000:
		return strconv.FormatUint(n, 10)
	case n < 99_500:
		return strconv.FormatUint((n+500)/1000, 10) + "k"
	}
	return ">M"
}

// perSecond is the rate of heartbeats in four cells.
func perSecond(e *Engine) string {
	switch {
	case e.gone():
		return "-"
	case e.Beats == nil:
		return "..."
	case *e.Beats >= 0.05 && *e.Beats < 9.95:
		return fmt.Sprintf("%.1f", *e.Beats)
	}
	return text.Count(*e.Beats)
}

// gigabytes are 1e9 bytes, in four cells.
func gigabytes(perSecond float64) string {
	switch v := perSecond / 1e9; {
	case v == 0:
		return "0"
	case v < 0.01:
		return "<.01"
	case v < 9.995:
		return fmt.Sprintf("%.2f", v)
	case v < 99.95:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// cell is one of a table.
type cell struct {
	text string
	look look
}

// column of a table.
type column[T any] struct {
	head  string
	width int
	left  bool // text; numbers have their room on the left
	cell  func(v T) cell
}

// slackLook colours what is left by how many heartbeats may still be lost.
func slackLook(slack *time.Duration, interval time.Duration) look {
	switch {
	case slack == nil:
		return plain
	case *slack < interval:
		return red
	case *slack < 2*interval:
		return yellow
	}
	return green
}

func troubled(n uint64, l look) look {
	if n == 0 {
		return plain
	}
	return l
}

// roleText is the role in four cells.
func roleText(e *Engine) string {
	switch e.Role {
	case "engine":
		return "eng"
	case "rank":
		return "r" + strconv.Itoa(e.Rank)
	}
	return text.Printable(e.Role)
}

func stateLook(s State) look {
	switch s {
	case Fit:
		return green
	case Idle, Sleeps:
		return dim
	case Drains:
		return yellow
	}
	return red
}

// engineColumns are those of a screen so many cells wide; 0: as wide as it takes.
func engineColumns(width int, list []*Engine) []column[*Engine] {
	wide := width == 0 || width >= wideFrom
	name := func(e *Engine) string { return text.Printable(e.Name) }
	all := []column[*Engine]{
		{"ENGINE", 0, true, func(e *Engine) cell { return cell{name(e), plain} }},
		{"ROLE", 4, true, func(e *Engine) cell { return cell{roleText(e), plain} }},
	}
	if wide {
		all = append(all, column[*Engine]{"PID", 7, false, func(e *Engine) cell {
			if e.PID == 0 {
				return cell{"-", plain}
			}
			return cell{strconv.Itoa(e.PID), plain}
		}})
	}
	all = append(all,
		column[*Engine]{"STATE", 7, true, func(e *Engine) cell { return cell{string(e.State), stateLook(e.State)} }},
		column[*Engine]{"BEAT", 5, false, func(e *Engine) cell {
			l := plain
			if e.Beat != nil && *e.Beat > 2*e.Interval {
				l = yellow
			}
			return cell{span(e.Beat), l}
		}},
		column[*Engine]{"LEAS", 4, false, func(e *Engine) cell { return cell{count(e.Leases), plain} }},
		column[*Engine]{"BLKS", 4, false, func(e *Engine) cell { return cell{count(e.Blocks), plain} }},
		column[*Engine]{"HELD", 4, false, func(e *Engine) cell {
			if e.Bytes == 0 && e.Blocks > 0 {
				return cell{"?", plain}
			}
			return cell{text.Bytes(float64(e.Bytes)), plain}
		}},
		column[*Engine]{"SLACK", 5, false, func(e *Engine) cell { return cell{span(e.Slack), slackLook(e.Slack, e.Interval)} }},
		column[*Engine]{"BT/S", 4, false, func(e *Engine) cell { return cell{perSecond(e), plain} }},
		column[*Engine]{"READ", 4, false, func(e *Engine) cell { return cell{count(e.Reads), plain} }},
		column[*Engine]{"GB/S", 4, false, func(e *Engine) cell { return cell{fresh(e, gigabytes(e.Rate)), plain} }},
	)
	if wide {
		all = append(all,
			column[*Engine]{"STALE", 5, false, func(e *Engine) cell {
				n := e.Stale + e.Unproven
				return cell{few(n), troubled(n, yellow)}
			}},
			column[*Engine]{"QUAR", 4, false, func(e *Engine) cell { return cell{few(e.Quarantine), troubled(e.Quarantine, red)} }},
			column[*Engine]{"LATE", 4, false, func(e *Engine) cell { return cell{few(e.Late), troubled(e.Late, yellow)} }})
	} else {
		all = append(all,
			column[*Engine]{"STL", 3, false, func(e *Engine) cell {
				n := e.Stale + e.Unproven
				return cell{few(n), troubled(n, yellow)}
			}},
			column[*Engine]{"QUA", 3, false, func(e *Engine) cell { return cell{few(e.Quarantine), troubled(e.Quarantine, red)} }},
			column[*Engine]{"LAT", 3, false, func(e *Engine) cell { return cell{few(e.Late), troubled(e.Late, yellow)} }})
	}
	return fit(all, width, longest(list, name), "BLKS", "LAT", "STL", "BT/S", "READ", "ROLE", "GB/S", "HELD", "QUA")
}

// wideFrom is the width from which on headings are words.
const wideFrom = 110

// fresh is a rate, once there is one.
func fresh(e *Engine, s string) string {
	switch {
	case e.gone():
		return "-"
	case e.fresh:
		return "..."
	}
	return s
}

func longest[T any](list []T, name func(v T) string) (cells int) {
	for _, v := range list {
		cells = max(cells, text.Width(name(v)))
	}
	return cells
}

// fit gives the first column the room that the others leave: the mark stands before it, and a blank before each of them. Where that is
// too little for names, the columns of dull go, one after the other.
func fit[T any](columns []column[T], width, longest int, dull ...string) []column[T] {
	const least = 11
	want := max(longest, text.Width(columns[0].head))
	room := want // of text: nothing is cut
	if width > 0 {
		room = width - 1
		for _, c := range columns[1:] {
			room -= c.width + 1
		}
	}
	for ; len(dull) > 0 && room < min(want, least); dull = dull[1:] {
		if i := slices.IndexFunc(columns, func(c column[T]) bool { return c.head == dull[0] }); i > 0 {
			room += columns[i].width + 1
			columns = slices.Delete(columns, i, i+1)
		}
	}
	columns[0].width = max(1, min(room, want))
	return columns
}

func peerColumns(width int, e *Engine) []column[*Peer] {
	list := make([]*Peer, len(e.Peers))
	for i := range e.Peers {
		list[i] = &e.Peers[i]
	}
	name := func(p *Peer) string { return text.Printable(p.Name) }
	holder := func(p *Peer, s string) cell {
		if p.Kind == Reads {
			return cell{"", plain}
		}
		return cell{s, plain}
	}
	owner := func(p *Peer, s string) cell {
		if p.Kind == Holds {
			return cell{"", plain}
		}
		return cell{s, plain}
	}
	all := []column[*Peer]{
		{"PEER", 0, true, func(p *Peer) cell { return cell{name(p), plain} }},
		{"WHAT", 5, true, func(p *Peer) cell { return cell{string(p.Kind), plain} }},
		{"STATE", 9, true, func(p *Peer) cell { return cell{text.Printable(p.State), p.Level.look()} }},
		{"BEAT", 5, false, func(p *Peer) cell {
			l := plain
			if p.Leases > 0 && p.Beat != nil && *p.Beat > 2*e.Interval {
				l = yellow
			}
			return cell{span(p.Beat), l}
		}},
		{"LEAS", 4, false, func(p *Peer) cell { return cell{count(p.Leases), plain} }},
		{"BLKS", 4, false, func(p *Peer) cell { return holder(p, count(p.Blocks)) }},
		{"HELD", 4, false, func(p *Peer) cell {
			if p.Bytes == 0 && p.Blocks > 0 {
				return holder(p, "?")
			}
			return holder(p, text.Bytes(float64(p.Bytes)))
		}},
		{"SLACK", 5, false, func(p *Peer) cell {
			c := holder(p, span(p.Slack))
			c.look = slackLook(p.Slack, e.Interval)
			return c
		}},
		{"EXPD", 4, false, func(p *Peer) cell { return holder(p, few(p.Expired)) }},
		{"READ", 4, false, func(p *Peer) cell { return owner(p, count(p.Reads)) }},
		{"GB/S", 4, false, func(p *Peer) cell { return owner(p, fresh(e, gigabytes(p.Rate))) }},
		{"HEARD", 5, false, func(p *Peer) cell { return owner(p, span(p.Heard)) }},
	}
	return fit(all, width, longest(list, name), "BLKS", "EXPD", "GB/S", "READ", "HELD", "HEARD", "WHAT")
}

// headLine has the headings.
func headLine[T any](columns []column[T]) line {
	s := " "
	for i, c := range columns {
		if i > 0 {
			s += " "
		}
		if c.left {
			s += text.Left(c.head, c.width)
		} else {
			s += text.Right(c.head, c.width)
		}
	}
	return of(piece{s, inverse})
}

func row[T any](columns []column[T], v T, level Level) line {
	l := of(piece{level.mark(), level.look()})
	for i, c := range columns {
		if i > 0 {
			l.pieces = append(l.pieces, piece{text: " "})
		}
		k := c.cell(v)
		if c.left {
			k.text = text.Left(k.text, c.width)
		} else {
			k.text = text.Right(k.text, c.width)
		}
		l.pieces = append(l.pieces, piece(k))
	}
	return l
}
