package sim

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every case file is run and what it expects is looked at. Which lines of docs/faults.yaml an expectation shows stands beside it.
func TestEveryCaseComesOutRight(t *testing.T) {
	for _, file := range caseFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c, err := LoadCase(file)
			if err != nil {
				t.Fatal(err)
			}
			wantRight(t, file, c)
		})
	}
}

// wantRight runs a case: no rule is broken, and what it expects is so.
func wantRight(t *testing.T, file string, c *Case) {
	t.Helper()
	out, err := c.Run(Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range out.Result.Violations {
		t.Errorf("seed %d: %v", out.Seed, v)
	}
	for _, f := range out.Findings {
		if !f.OK {
			t.Errorf("%s:%d: seed %d: %s: at %v: %s", file, f.Expectation.Line(), out.Seed, f.Expectation, f.At, f.Got)
		}
	}
}

// wantUnbroken runs the schedule of a case: no rule is broken.
func wantUnbroken(t *testing.T, text string) {
	t.Helper()
	res, err := Run(parsedCase(t, text).Schedule, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range res.Violations {
		t.Error(v)
	}
}

func parsedCase(t *testing.T, text string) *Case {
	t.Helper()
	c, err := ParseCase("case", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// An expectation that holds whatever happens shows nothing. So each file is run again with one thing less, and each expectation
// must fail in one of these runs, but those that want something not to be, or not to be more: they may hold in all. And the opposite
// of each, looked at in the run of the whole file, must fail.
func TestEveryExpectationCanFail(t *testing.T) {
	for _, file := range caseFiles(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			c, err := LoadCase(file)
			if err != nil {
				t.Fatal(err)
			}
			can := make([]bool, len(c.Expect))
			var opposites []Expectation
			for i := range c.Expect {
				can[i] = c.Expect[i].limits()
				opposites = append(opposites, c.Expect[i].opposite())
			}
			for _, less := range withLess(c) {
				if !slices.Contains(can, false) {
					break
				}
				out, err := less.runSeed(c.Seed, c.Expect, Options{})
				if err != nil {
					continue // it was needed
				}
				for i, f := range out.Findings {
					can[i] = can[i] || !f.OK
				}
			}
			for i, ok := range can {
				if !ok {
					t.Errorf("%s:%d: %v: it holds whatever is left out", file, c.Expect[i].Line(), &c.Expect[i])
				}
			}
			out, err := c.runSeed(c.Seed, opposites, Options{})
			if err != nil {
				t.Fatal(err)
			}
			for i, f := range out.Findings {
				if f.OK {
					t.Errorf("%s:%d: %v: its opposite holds, too", file, c.Expect[i].Line(), f.Expectation)
				}
			}
		})
	}
}

// withLess gives a case without each of its actions, or of their kinds, with ordinary engines and links, and without any action.
func withLess(c *Case) (out []*Case) {
	without := func(cut func(*Action) bool) {
		k := *c
		k.Actions = nil
		for i := range c.Actions {
			if !cut(&c.Actions[i]) {
				k.Actions = append(k.Actions, c.Actions[i])
			}
		}
		out = append(out, &k)
	}
	type kind struct {
		do   Verb
		by   string
		req  string
		at   int
		many bool
	}
	seen := map[kind]bool{}
	of := func(a *Action) kind {
		if len(c.Actions) > 40 {
			return kind{do: a.Do, by: a.Engine, many: true}
		}
		return kind{do: a.Do, by: a.Engine, req: a.Req, at: int(a.At)}
	}
	for i := range c.Actions {
		k := of(&c.Actions[i])
		if !seen[k] {
			seen[k] = true
			without(func(a *Action) bool { return of(a) == k })
		}
	}
	for i := range c.Engines {
		k := *c
		k.Engines = slices.Clone(c.Engines)
		ordinary[0](&k.Engines[i])
		out = append(out, &k)
	}
	k := *c
	k.Link = Link{}
	out = append(out, &k)
	without(func(*Action) bool { return true })
	return out
}

// limits reports that an expectation wants something not to be, or not to be more.
func (x *Expectation) limits() bool {
	return x.Never != nil || x.Is != nil && *x.Is == 0 || x.Most != nil || slices.Contains(x.Outcome, outcomeNone)
}

// opposite is what must not hold if the expectation does: another number, another end, or never what is wanted.
func (x Expectation) opposite() Expectation {
	switch {
	case x.Never != nil:
		x.Until, x.Never = x.Never, nil
	case x.Is != nil:
		other := *x.Is + 1
		x.Is = &other
	case x.Least != nil:
		less := *x.Least - 1
		x.Most, x.Least = &less, nil
	case x.Most != nil:
		more := *x.Most + 1
		x.Most, x.Least = nil, &more
	case x.Held != nil:
		x.Freed, x.Held = x.Held, nil
	case x.Freed != nil:
		x.Held, x.Freed, x.Reason = x.Freed, nil, nil
	case x.Read != nil && slices.Contains(x.Outcome, outcomeNone):
		x.Outcome = names{outcomeBad, "ok"}
	case x.Read != nil:
		x.Outcome = names{outcomeNone}
	case x.Aside != nil:
		x.Back, x.Aside = x.Aside, nil
	case x.Back != nil:
		x.Aside, x.Back = x.Back, nil
	default:
		t := x.end()
		x.At, x.By, x.After, x.Until, x.From, x.Never = nil, nil, nil, nil, &t, &t
	}
	return x
}
