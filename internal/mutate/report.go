package mutate

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/jsons"
	"github.com/kvlease/kvlease/internal/output"
)

// EqualFile lists the drawn mutations that change nothing that anybody could see, each with the reason.
const EqualFile = "internal/mutate/equal.yaml"

// Equal is a drawn mutation after which the code does what it did.
type Equal struct {
	File string `yaml:"file"`
	Func string `yaml:"func"`
	Kind string `yaml:"kind"`
	Old  string `yaml:"old"`
	New  string `yaml:"new,omitempty"`  // of several at one place
	Line string `yaml:"line,omitempty"` // of several in a function
	Nth  *int   `yaml:"nth,omitempty"`  // of several that are written alike, from 0
	Why  string `yaml:"why"`
}

// LoadEqual reads them.
func LoadEqual(root string) ([]Equal, error) {
	var all []Equal
	if err := readYAML(root, EqualFile, &all); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("equal mutations: %w", err)
	}
	return all, nil
}

// whyEqual gives the reason why a site changes nothing, or "".
func whyEqual(all []Equal, s *Site) string {
	for _, e := range all {
		if e.File == s.File && e.Func == s.Func && e.Kind == s.Kind && flat(e.Old) == flat(s.Old) &&
			(e.New == "" || e.New == s.New) && (e.Line == "" || flat(e.Line) == s.Text) && (e.Nth == nil || *e.Nth == s.Nth) {
			return e.Why
		}
	}
	return ""
}

func flat(s string) string { return strings.Join(strings.Fields(s), " ") }

// Run is what the last full run has found, kept between the parts of it.
type Run struct {
	Seed   uint64                  `json:"seed"`
	Commit string                  `json:"commit"`
	Date   string                  `json:"date"`
	Stages int                     `json:"stages"` // packages whose tests were asked about a drawn mutation, at most
	Named  jsons.List[NamedResult] `json:"named"`
	Drawn  jsons.List[DrawnResult] `json:"drawn"`

	Normal map[string]Cost `json:"normal"`
}

// LoadRun reads a run; none yet is an empty one. A result that does not say of which commit it is has the run's.
func LoadRun(path string) (r Run, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("results: %w", err)
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("results %s: %w", path, err)
	}
	r.Drawn = slices.DeleteFunc(r.Drawn, func(d DrawnResult) bool { return d.Verdict == "" })
	for res := range r.results() {
		res.Commit = cmp.Or(res.Commit, r.Commit)
	}
	return r, nil
}

// results gives those of named and drawn mutations.
func (r *Run) results() iter.Seq[*Result] {
	return func(yield func(*Result) bool) {
		for i := range r.Named {
			if !yield(&r.Named[i].Result) {
				return
			}
		}
		for i := range r.Drawn {
			if !yield(&r.Drawn[i].Result) {
				return
			}
		}
	}
}

// Forget drops the results of places that are no longer there, and notes where the others are now.
func (r *Run) Forget(sites []Site) {
	r.Drawn = slices.DeleteFunc(r.Drawn, func(d DrawnResult) bool {
		return !slices.ContainsFunc(sites, func(s Site) bool { return s.Same(&d.Site) })
	})
	for i := range r.Drawn {
		site := &r.Drawn[i].Site
		*site = sites[slices.IndexFunc(sites, func(s Site) bool { return s.Same(site) })]
	}
}

// commits says of which commits the results are, most first.
func (r *Run) commits() string {
	count := make(map[string]int)
	for res := range r.results() {
		count[cmp.Or(res.Commit, r.Commit)]++
	}
	if len(count) == 0 || len(count) == 1 && count[r.Commit] > 0 {
		return "Of commit " + r.Commit
	}
	all := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), cmp.Compare(a, b))
	})
	var parts []string
	for _, c := range all {
		parts = append(parts, fmt.Sprintf("%d of commit %s", count[c], c))
	}
	return "Results: " + strings.Join(parts, ", ")
}

// Save writes it.
func (r *Run) Save(path string) error {
	text, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := output.WriteFile(path, "name another file by -results", append(text, '\n')); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

// tally counts drawn mutations.
type tally struct{ all, caught, timedOut, own, late, equal, left int }

func (c *tally) add(d *DrawnResult, equal bool) {
	c.all++
	switch {
	case d.Verdict.Caught():
		c.caught++
		if d.Verdict == TimedOut {
			c.timedOut++
		}
		if d.Late {
			c.late++
		}
		if d.Result.Package == d.Site.Package {
			c.own++
		}
	case equal:
		c.equal++
	default:
		c.left++
	}
}

func (c *tally) row(name string) string {
	return fmt.Sprintf("| %s | %d | %d | %.1f %% | %d | %d | %d | %d |\n", name, c.all, c.caught, share(c.caught, c.all), c.own, c.timedOut, c.equal, c.left)
}

func share(n, of int) float64 { return 100 * float64(n) / float64(max(of, 1)) }

func whoIsAsked(stages int) string {
	if stages == 1 {
		return "The package's own tests are\nasked (short ones), and no others."
	}
	return "First the package's own tests\nare asked (short ones), then those of the packages that use it."
}

// Page makes docs/mutations.md.
func (r *Run) Page(named []Mutation, equal []Equal) string {
	var b strings.Builder
	caught := 0
	for _, n := range r.Named {
		if n.Verdict.Caught() {
			caught++
		}
	}
	var all tally
	byPackage, byKind := make(map[string]*tally), make(map[string]*tally)
	broken := 0
	for i := range r.Drawn {
		d := &r.Drawn[i]
		if d.Verdict == Broken {
			broken++
			continue
		}
		is := whyEqual(equal, &d.Site) != ""
		for _, t := range []*tally{&all, at(byPackage, d.Site.Package), at(byKind, d.Kind)} {
			t.add(d, is)
		}
	}
	fmt.Fprintf(&b, `# Mutations

<!-- Made by make mutate. -->

Does a test notice when the code is wrong? Each line below is a small mistake, made in a copy of one source file that only the
build sees (`+"`go test -overlay`"+`). A mistake that no longer compiles counts for nothing. One whose tests run out of time
(twice what they take of the processor otherwise, and 5 s) counts as caught and says so.
%s, %s.

**%d of %d named mistakes were caught by the test that is named for them. Of %d drawn ones (seed %d, %d more did not compile) %d were caught: %.1f %%
(at least %d of them by tests that were written because of them); %d more change nothing that can be seen, and %d were not noticed.**

## Named

What would go wrong, and the test that must see it. They stand in [internal/mutate/named.yaml](../internal/mutate/named.yaml).

| mistake | in | would mean | caught by |
|---|---|---|---|
`, r.commits(), r.Date, caught, len(r.Named), all.all, r.Seed, broken, all.caught, share(all.caught, all.all), all.late, all.equal, all.left)
	results := make(map[string]*NamedResult)
	for i := range r.Named {
		results[r.Named[i].Name] = &r.Named[i]
	}
	for _, m := range named {
		by := "not run"
		if res := results[m.Name]; res != nil {
			switch {
			case res.Verdict == TimedOut:
				by = m.Caught.Test + " (time-out)"
			case res.Verdict.Caught():
				by = m.Caught.Test
			default:
				by = "**" + string(res.Verdict) + "**"
			}
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", cell(m.Name), m.File, cell(m.Why), by)
	}
	fmt.Fprintf(&b, `
## Drawn

A condition negated, a statement dropped, a number one more or one less, anywhere in the files of these packages. %s
A test that fails must fail again by itself, so that a busy machine catches nothing.

| package | drawn | caught | | by its own tests | by time-out | change nothing | not noticed |
|---|---|---|---|---|---|---|---|
`, whoIsAsked(r.Stages))
	for _, p := range Packages {
		if t := byPackage[p.Name]; t != nil {
			b.WriteString(t.row("`" + p.Name + "`"))
		}
	}
	b.WriteString(all.row("**all**"))
	b.WriteString("\n| kind | drawn | caught | | by its own tests | by time-out | change nothing | not noticed |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range Kinds {
		if t := byKind[k]; t != nil {
			b.WriteString(t.row(k))
		}
	}
	var left, same []string
	for i := range r.Drawn {
		d := &r.Drawn[i]
		if d.Verdict != Survived {
			continue
		}
		line := fmt.Sprintf("| `%s` | %s: %s | %s |", d.Where(), d.Kind, code(d.change()), code(d.Text))
		if why := whyEqual(equal, &d.Site); why != "" {
			same = append(same, line+" "+cell(why)+" |")
		} else {
			left = append(left, line)
		}
	}
	slices.Sort(left)
	slices.Sort(same)
	b.WriteString("\n### Not noticed\n\n")
	if len(left) == 0 {
		b.WriteString("None.\n")
	} else {
		b.WriteString("| where | mistake | line |\n|---|---|---|\n" + strings.Join(left, "\n") + "\n")
	}
	b.WriteString("\n### Change nothing that can be seen\n\n")
	if len(same) == 0 {
		b.WriteString("None.\n")
	} else {
		b.WriteString("| where | mistake | line | why |\n|---|---|---|---|\n" + strings.Join(same, "\n") + "\n")
	}
	return b.String()
}

func at(m map[string]*tally, key string) *tally {
	if m[key] == nil {
		m[key] = &tally{}
	}
	return m[key]
}

func (s *Site) change() string {
	if s.New == "" {
		return s.Old
	}
	return s.New
}

func code(s string) string { return "`" + strings.ReplaceAll(flat(s), "|", `\|`) + "`" }
func cell(s string) string { return strings.ReplaceAll(flat(s), "|", `\|`) }
