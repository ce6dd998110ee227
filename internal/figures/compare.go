package figures

import (
	"fmt"
	"maps"
	"slices"

	"github.com/kvlease/kvlease/internal/jsons"
)

// Comparison is what moved from one run to a later one.
type Comparison struct {
	Old       Run                `json:"old"`
	New       Run                `json:"new"`
	Different jsons.List[string] `json:"different"` // what of the machine, in words
	Other     bool               `json:"other_machine"`
	Rows      jsons.List[Change] `json:"rows"` // that stand in both
	Gone      jsons.List[string] `json:"gone"`
	Added     jsons.List[string] `json:"added"`
	LeftOut   jsons.List[string] `json:"sections_left_out"` // sections that only one of the runs has; their rows are neither gone nor new
}

// Run names a file's run.
type Run struct {
	Date   string             `json:"date"`
	Commit string             `json:"commit"`
	Load   map[string]float64 `json:"load,omitempty"`
}

// Change is a row in both files.
type Change struct {
	Row     string  `json:"row"`
	Verdict Verdict `json:"verdict"`
	Why     string  `json:"why,omitempty"`
	Unit    string  `json:"unit"`
	Before  Summary `json:"before"`
	After   Summary `json:"after"`
	By      float64 `json:"by"`              // median after by median before; 0 where there is none
	Peers   float64 `json:"peers,omitempty"` // the same of the peer that moved furthest up; slower means beyond it
	Whose   string  `json:"peers_of,omitempty"`
	Missed  bool    `json:"missed,omitempty"` // the target, which was met before
}

type pair struct{ before, after *Row }

// Compare judges each row that both files have.
func Compare(before, after *File) *Comparison {
	c := &Comparison{Old: before.run(), New: after.run()}
	for _, key := range slices.Sorted(maps.Keys(before.Machine)) {
		was, is := fmt.Sprint(before.Machine[key]), fmt.Sprint(after.Machine[key])
		if was == is {
			continue
		}
		c.Different = append(c.Different, fmt.Sprintf("%s: %s, now %s", key, was, is))
		if key == "cpu" || key == "cores" {
			c.Other = true
		}
	}
	c.LeftOut = append(onlyIn(before, after), onlyIn(after, before)...)
	later := make(map[string]*Row, len(after.Rows))
	for i := range after.Rows {
		later[after.Rows[i].key()] = &after.Rows[i]
	}
	var pairs []pair
	for i := range before.Rows {
		r := &before.Rows[i]
		now, ok := later[r.key()]
		delete(later, r.key())
		switch {
		case !ok:
			if !slices.Contains(c.LeftOut, r.Section) {
				c.Gone = append(c.Gone, r.key())
			}
		case now.Unit != r.Unit || now.Better != r.Better:
			c.Gone = append(c.Gone, r.key()+", in "+r.Unit)
			c.Added = append(c.Added, r.key()+", in "+now.Unit)
		default:
			pairs = append(pairs, pair{r, now})
		}
	}
	for i := range after.Rows {
		if key := after.Rows[i].key(); later[key] != nil && !slices.Contains(c.LeftOut, later[key].Section) {
			c.Added = append(c.Added, key)
		}
	}
	for i, m := range shifts(pairs) {
		c.Rows = append(c.Rows, change(pairs[i], m, c.Other))
	}
	return c
}

// onlyIn are the sections of a that b did not run.
func onlyIn(a, b *File) (out []string) {
	for i := range a.Rows {
		section := a.Rows[i].Section
		if !slices.Contains(out, section) && !slices.ContainsFunc(b.Rows, func(r Row) bool { return r.Section == section }) {
			out = append(out, section)
		}
	}
	return out
}

func (f *File) run() Run { return Run{f.Date, f.Commit, f.Load} }

func change(p pair, m shift, other bool) Change {
	r := Change{
		Row: p.before.key(), Unit: p.before.Unit, Before: p.before.Ours, After: p.after.Ours,
		Missed: p.before.Met != nil && *p.before.Met && p.after.Met != nil && !*p.after.Met,
	}
	if r.Before.Median > 0 && r.After.Median > 0 {
		r.By = r.After.Median / r.Before.Median
	}
	if m.by != "" && r.Unit != "B" {
		r.Peers, r.Whose = m.high, m.by
	}
	r.Verdict, r.Why = judge(p.before, p.after, m, other)
	return r
}

// Slower are the rows that fail the gate.
func (c *Comparison) Slower() []Change { return c.with(Slower) }

func (c *Comparison) with(v Verdict) (out []Change) {
	for _, r := range c.Rows {
		if r.Verdict == v {
			out = append(out, r)
		}
	}
	return out
}
