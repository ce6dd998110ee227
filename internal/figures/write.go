package figures

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Write tells a comparison in text: what moved, then what could not be judged.
func (c *Comparison) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "%s (%s) and %s (%s)\n", c.Old.Commit, c.Old.Date, c.New.Commit, c.New.Date)
	for _, d := range c.Different {
		fmt.Fprintf(out, "not the same %s\n", d)
	}
	if c.Other {
		fmt.Fprintln(out, "not the same machine: rows are judged by what they are beside their peers, rows without peers are not")
	}
	for _, section := range slices.Sorted(maps.Keys(c.New.Load)) {
		if was, ok := c.Old.Load[section]; ok && (was > 2*c.New.Load[section]+1 || c.New.Load[section] > 2*was+1) {
			fmt.Fprintf(out, "not the same load in %s: %.1f, now %.1f\n", section, was, c.New.Load[section])
		}
	}
	for _, g := range []struct {
		v    Verdict
		head string
	}{
		{Slower, "slower, beyond the noise"}, {Faster, "faster, beyond the noise"}, {Machine, "moved as the machine did"},
	} {
		rows := c.with(g.v)
		if len(rows) == 0 {
			continue
		}
		fmt.Fprintf(out, "\n%s: %d\n", g.head, len(rows))
		for i := range rows {
			fmt.Fprintf(out, "  %s\n", rows[i].line())
		}
	}
	for _, why := range reasons(c.with(Unjudged)) {
		rows := slices.DeleteFunc(c.with(Unjudged), func(r Change) bool { return r.Why != why })
		fmt.Fprintf(out, "\nnot judged: %d, %s\n", len(rows), why)
		for i := range rows {
			fmt.Fprintf(out, "  %s\n", rows[i].line())
		}
	}
	for _, g := range []struct {
		head string
		rows []string
	}{{"gone", c.Gone}, {"new", c.Added}} {
		if len(g.rows) > 0 {
			fmt.Fprintf(out, "\n%s: %d\n", g.head, len(g.rows))
			for _, key := range g.rows {
				fmt.Fprintf(out, "  %s\n", key)
			}
		}
	}
	if len(c.LeftOut) > 0 {
		fmt.Fprintf(out, "\nin one of the runs only: %s\n", strings.Join(c.LeftOut, ", "))
	}
	fmt.Fprintf(out, "\n%d rows in both: %d slower, %d faster, %d with the machine, %d not judged, %d the same within the noise\n", len(c.Rows),
		len(c.with(Slower)), len(c.with(Faster)), len(c.with(Machine)), len(c.with(Unjudged)), len(c.with(Same)))
	return out.Flush()
}

func (r *Change) line() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s, now %s", r.Row, spread(r.Before, r.Unit), spread(r.After, r.Unit))
	if r.By > 0 {
		fmt.Fprintf(&s, ", × %.3g", r.By)
	}
	if r.Whose != "" {
		fmt.Fprintf(&s, " (%s × %.3g)", r.Whose, r.Peers)
	}
	if r.Missed {
		s.WriteString("; its target was met and is missed now")
	}
	return s.String()
}

// reasons are the different ones of rows, in their order.
func reasons(rows []Change) (out []string) {
	for i := range rows {
		if !slices.Contains(out, rows[i].Why) {
			out = append(out, rows[i].Why)
		}
	}
	return out
}

// spread is a median with its band.
func spread(s Summary, unit string) string {
	low, high := s.band()
	if low == high {
		return Show(s.Median, unit)
	}
	return fmt.Sprintf("%s (%s – %s)", Show(s.Median, unit), Show(low, unit), Show(high, unit))
}

// Show writes a figure as bench/report.py does.
func Show(v float64, unit string) string {
	switch {
	case unit == "B":
		return grouped(v) + " B"
	case unit != "ns" && v < 1000:
		return fmt.Sprintf("%.3g %s", v, unit)
	case unit != "ns":
		return grouped(v) + " " + unit
	}
	for _, u := range []struct {
		end, factor float64
		name        string
	}{{1e3, 1, "ns"}, {1e6, 1e3, "µs"}, {1e9, 1e6, "ms"}} {
		if v < u.end {
			return fmt.Sprintf("%.3g %s", v/u.factor, u.name)
		}
	}
	return fmt.Sprintf("%.3g s", v/1e9)
}

// grouped writes a whole number with commas.
func grouped(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
