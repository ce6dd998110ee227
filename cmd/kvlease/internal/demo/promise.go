package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Rules of a promise.
const (
	atMost  = "at most"
	atLeast = "at least"
	exactly = "exactly"
)

// Promise is one line of the table: what a run promised and what it measured.
type Promise struct {
	Scene    string  `json:"scene"`
	Run      string  `json:"run"`
	What     string  `json:"promise"`
	Rule     string  `json:"rule"`
	Promised float64 `json:"promised"`
	Measured float64 `json:"measured"`
	Unit     string  `json:"unit,omitempty"`
	Kept     bool    `json:"kept"`

	always bool // no stall of the machine excuses it
}

func (p *Promise) judge() {
	switch p.Rule {
	case atMost:
		p.Kept = p.Measured <= p.Promised
	case atLeast:
		p.Kept = p.Measured >= p.Promised
	case exactly:
		p.Kept = p.Measured == p.Promised
	}
}

func (p *Promise) String() string {
	return fmt.Sprintf("scene %s, %s: %s: promised %s %s, measured %s", p.Scene, p.Run, p.What, p.Rule, quantity(p.Promised, p.Unit), quantity(p.Measured, p.Unit))
}

func quantity(v float64, unit string) string {
	digits := 2
	switch {
	case v == float64(int64(v)):
		digits = 0
	case v >= 100 || v <= -100:
		digits = 0
	case v >= 10:
		digits = 1
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if unit != "" {
		s += " " + unit
	}
	return s
}

// table prints promises, the runs of a scene side by side.
func table(w io.Writer, scenes []sceneDef, promises []Promise, p paint) {
	for _, s := range scenes {
		var order []string
		byWhat := map[string][]Promise{}
		var runs []string
		for _, q := range promises {
			if q.Scene != s.key {
				continue
			}
			if _, there := byWhat[q.What]; !there {
				order = append(order, q.What)
			}
			byWhat[q.What] = append(byWhat[q.What], q)
			if !contains(runs, q.Run) {
				runs = append(runs, q.Run)
			}
		}
		if len(order) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s  %s\n", p.bold(s.key+"  "+s.title), p.dim("("+strings.Join(runs, "  ·  ")+")"))
		for _, what := range order {
			same := byWhat[what]
			kept := p.good("kept")
			var promised, measured []string
			for _, q := range same {
				promised = appendNew(promised, quantity(q.Promised, q.Unit))
				measured = append(measured, quantity(q.Measured, ""))
				if !q.Kept {
					kept = p.bad("BROKEN")
				}
			}
			unit := same[0].Unit
			if unit != "" {
				unit = " " + unit
			}
			fmt.Fprintf(w, "   %-58s %-26s %-30s %s\n", what, same[0].Rule+" "+strings.Join(promised, " / "), strings.Join(measured, " · ")+unit, kept)
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func appendNew(list []string, s string) []string {
	if contains(list, s) {
		return list
	}
	return append(list, s)
}
