package sim

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Finding is what became of an expectation.
type Finding struct {
	Expectation *Expectation
	OK          bool
	At          time.Duration // of the look that decided
	Got         string        // what was seen then
}

// looksMax is how often an expectation about a span of time looks.
const looksMax = 400

// watch is an expectation in a run.
type watch struct {
	x     *Expectation
	found Finding
}

// look compares one look with what was wanted then. The first that goes wrong is the last that counts.
func (w *watch) look(at time.Duration, want, holds bool, got string) {
	if w.found.OK {
		w.found.OK, w.found.At, w.found.Got = holds == want, at, got
	}
}

// looks lists when an expectation is looked at, and whether it has to hold then.
func (x *Expectation) looks() (at []time.Duration, want []bool) {
	add := func(t time.Duration, w bool) { at, want = append(at, t), append(want, w) }
	from := time.Duration(0)
	if x.From != nil {
		from = *x.From
	}
	switch {
	case x.At != nil:
		add(*x.At, true)
	case x.By != nil:
		if x.After != nil {
			add(*x.After, false)
		}
		add(*x.By, true)
	default:
		end := x.end()
		step := max((end-from)/looksMax, 10*time.Millisecond)
		for t := from; t < end; t += step {
			add(t, x.Until != nil)
		}
		add(end, x.Until != nil)
	}
	return at, want
}

// probes looks at the world for an expectation whose fact is a state of it.
func (w *watch) probes() (out []Probe) {
	if w.x.logged() {
		return nil
	}
	since := int64(0)
	if w.x.Since != nil && w.x.Counter != "" {
		out = append(out, Probe{At: *w.x.Since, Look: func(v *World) { since, _ = v.Counter(w.x.Engine, w.x.Counter) }})
	}
	at, want := w.x.looks()
	for i := range at {
		out = append(out, Probe{At: at[i], Look: func(v *World) {
			holds, got := w.x.holds(v, since)
			w.look(at[i], want[i], holds, got)
		}})
	}
	return out
}

// fromLog looks at the log for an expectation about what was counted there.
func (w *watch) fromLog(log Log) {
	at, want := w.x.looks() // in order of time, as the log
	n, k := int64(0), 0
	for i := range at {
		for ; k < len(log) && log[k].At <= at[i]; k++ {
			if (w.x.Since == nil || log[k].At >= *w.x.Since) && w.x.counted(&log[k]) {
				n++
			}
		}
		w.look(at[i], want[i], w.x.within(n), fmt.Sprint(n))
	}
}

// counted reports that an entry of the log is one of those that the expectation counts.
func (x *Expectation) counted(e *Entry) bool {
	if e.Engine != x.Engine || x.Req != "" && e.Req != x.Req || x.Peer != "" && e.Peer != x.Peer {
		return false
	}
	switch {
	case x.Event != "":
		return e.Kind == Told && nameOf(eventNames[:], int(e.Event)) == x.Event
	case x.Sent != "":
		return e.Kind == Sent && strings.HasPrefix(e.What, x.Sent)
	}
	return e.Kind == Acted && strings.HasPrefix(e.What, x.Refused+" refused")
}

func (x *Expectation) within(n int64) bool {
	return (x.Is == nil || n == *x.Is) && (x.Least == nil || n >= *x.Least) && (x.Most == nil || n <= *x.Most)
}

// holds reports whether the fact holds now, and what is seen.
func (x *Expectation) holds(w *World, since int64) (bool, string) {
	if x.Counter != "" {
		n, ok := w.Counter(x.Engine, x.Counter)
		if !ok {
			return false, "the engine is gone"
		}
		return x.within(n - since), fmt.Sprint(n - since)
	}
	for _, list := range []names{x.Held, x.Freed} {
		for _, req := range list {
			if ok, got := x.leaseHolds(w.Lease(req)); !ok {
				return false, req + " " + got
			}
		}
	}
	for _, list := range []names{x.Tracked, x.Read, x.Aside, x.Back, x.Gone, x.AtRisk} {
		for _, req := range list {
			if ok, got := x.trackHolds(w.Track(x.Engine, req)); !ok {
				return false, req + " " + got
			}
		}
	}
	return true, "so it is"
}

func (x *Expectation) leaseHolds(v LeaseView) (bool, string) {
	got := "is not known"
	switch {
	case v.Freed:
		got = fmt.Sprintf("was freed at %v: %s", v.FreedAt, nameOf(freedNames[:], v.Reason))
	case v.Held:
		got = "is held"
	case v.Named:
		got = "is neither held nor freed"
	}
	if x.Held != nil {
		return v.Held, got
	}
	return v.Freed && (x.Reason == nil || slices.Contains(x.Reason, nameOf(freedNames[:], v.Reason))), got
}

func (x *Expectation) trackHolds(v TrackView) (bool, string) {
	outcome := v.outcome()
	got := fmt.Sprintf("has the outcome %s (tracked %v, blocks aside %v, gone %v, at risk %v)", outcome, v.Tracked, v.BlocksHeld, v.Gone, v.AtRisk)
	if v.Done || v.Failed {
		got += fmt.Sprintf(" since %v", v.At)
	}
	switch {
	case !v.Named:
		return false, "is not known"
	case x.Tracked != nil:
		return v.Tracked, got
	case x.Aside != nil:
		return v.BlocksHeld, got
	case x.Back != nil:
		return v.Failed && !v.BlocksHeld, got
	case x.Gone != nil:
		return v.Gone, got
	case x.AtRisk != nil:
		return v.AtRisk, got
	}
	return slices.Contains(x.Outcome, outcome) || v.Failed && slices.Contains(x.Outcome, outcomeBad), got
}

func (v TrackView) outcome() string {
	switch {
	case v.Done:
		return "ok"
	case v.Failed:
		return nameOf(readNames[:], v.Status)
	}
	return outcomeNone
}

// Outcome is what came of a case: of its last run.
type Outcome struct {
	Seed     uint64
	Result   *Result
	Findings []Finding // in the order of the expectations
}

// OK reports that no rule was broken and every expectation was met.
func (o *Outcome) OK() bool {
	return o.Result.OK() && !slices.ContainsFunc(o.Findings, func(f Finding) bool { return !f.OK })
}

// Run carries a case out with each of its seeds, until one of them goes wrong. Probes are its own.
func (c *Case) Run(o Options) (*Outcome, error) {
	var out *Outcome
	for n := range max(1, c.Seeds) {
		var err error
		if out, err = c.runSeed(c.Seed+uint64(n), c.Expect, o); err != nil || !out.OK() {
			return out, err
		}
	}
	return out, nil
}

func (c *Case) runSeed(seed uint64, expect []Expectation, o Options) (*Outcome, error) {
	o.Probes = nil
	watches := make([]*watch, len(expect))
	for i := range expect {
		w := &watch{x: &expect[i], found: Finding{Expectation: &expect[i], OK: true}}
		watches[i] = w
		some := w.probes()
		o.Probes = append(o.Probes, some...)
		o.Log = o.Log || some == nil
	}
	slices.SortStableFunc(o.Probes, func(a, b Probe) int { return int(max(-1, min(1, a.At-b.At))) })
	s := c.Schedule
	s.Seed = seed
	res, err := Run(s, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.File, err)
	}
	out := &Outcome{Seed: seed, Result: res}
	for _, w := range watches {
		if w.x.logged() {
			w.fromLog(res.Log)
		}
		out.Findings = append(out.Findings, w.found)
	}
	return out, nil
}
