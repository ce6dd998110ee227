package mutate

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func drawnResult(pkg, kind, old string, v Verdict, by string) DrawnResult {
	return DrawnResult{Site{Package: pkg, File: pkg + "/x.go", Func: "f", Line: 7, Kind: kind, Old: old, Text: "if " + old + " {"}, Result{Verdict: v, Package: by, Test: "TestX"}}
}

func TestThePageCountsWhatCompiledAndNamesWhatWasNotNoticed(t *testing.T) {
	r := Run{Seed: 5, Commit: "abc", Date: "2026-01-02",
		Named: []NamedResult{{"first", Result{Verdict: WasCaught}}, {"second", Result{Verdict: TimedOut}}, {"third", Result{Verdict: Survived}}},
		Drawn: []DrawnResult{
			drawnResult("ringbuf", Negated, "a", WasCaught, "ringbuf"),
			drawnResult("ringbuf", Negated, "b || c", Survived, ""),
			drawnResult("ringbuf", Dropped, "d()", TimedOut, "dataplane/submit"),
			drawnResult("ringbuf", Constant, "8", Survived, ""),
			drawnResult("ringbuf", Dropped, "e()", Broken, ""),
		},
	}
	r.Drawn[0].Late = true
	named := []Mutation{{Name: "first", Caught: Caught{Test: "TestOne"}}, {Name: "second", Caught: Caught{Test: "TestTwo"}}, {Name: "third"}, {Name: "fourth"}}
	page := r.Page(named, []Equal{{File: "ringbuf/x.go", Func: "f", Kind: Constant, Old: "8", Why: "it is | the same"}})
	if strings.Contains(page, "no others") {
		t.Error("the page says that other packages were not asked")
	}
	r.Stages = 1
	page = r.Page(named, []Equal{{File: "ringbuf/x.go", Func: "f", Kind: Constant, Old: "8", Why: "it is | the same"}})
	for _, want := range []string{
		"asked (short ones), and no others.",
		"**2 of 3 named mistakes were caught by the test that is named for them. Of 4 drawn ones (seed 5, 1 more did not compile) 2 were caught: 50.0 %\n(at least 1 of them by tests that were written because of them); 1 more change nothing that can be seen, and 1 were not noticed.**",
		"TestOne |", "TestTwo (time-out) |", "| **survived** |", "| not run |",
		"| `ringbuf` | 4 | 2 | 50.0 % | 1 | 1 | 1 | 1 |",
		"| condition negated | 2 | 1 | 50.0 % | 1 | 0 | 0 | 1 |",
		"| statement dropped | 1 | 1 | 100.0 % | 0 | 1 | 0 | 0 |",
		"| `ringbuf/x.go:7` | condition negated: `b \\|\\| c` | `if b \\|\\| c {` |",
		"| constant +-1: `8` | `if 8 {` | it is \\| the same |",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

func TestARunIsReadAsItWasSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "run.json")
	if r, err := LoadRun(path); err != nil || r.Drawn != nil {
		t.Errorf("none yet: %+v, %v", r, err)
	}
	want := Run{Seed: 3, Named: []NamedResult{{"n", Result{Verdict: WasCaught, Test: "TestX", Took: 5}}},
		Drawn: []DrawnResult{drawnResult("ringbuf", Negated, "a", Survived, "")}}
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := LoadRun(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Site{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestThePageSaysOfWhichCommitsItsResultsAre(t *testing.T) {
	drawn := drawnResult("ringbuf", Negated, "a", WasCaught, "ringbuf")
	r := Run{Commit: "first", Date: "2026-01-02", Named: []NamedResult{{"n", Result{Verdict: WasCaught}}}, Drawn: []DrawnResult{drawn, drawn}}
	if page := r.Page(nil, nil); !strings.Contains(page, "\nOf commit first, 2026-01-02.\n") {
		t.Errorf("all of one commit:\n%s", page)
	}
	path := filepath.Join(t.TempDir(), "run.json")
	if err := r.Save(path); err != nil {
		t.Fatal(err)
	}
	r, err := LoadRun(path)
	if err != nil {
		t.Fatal(err)
	}
	r.Commit = "second" // a new run of one kind leaves the results of the other
	r.Named[0].Commit = "second"
	if page := r.Page(nil, nil); !strings.Contains(page, "Results: 2 of commit first, 1 of commit second, 2026-01-02.") {
		t.Errorf("of two commits:\n%s", page)
	}
}

func TestResultsOfPlacesThatAreGoneAreForgotten(t *testing.T) {
	r := Run{Drawn: []DrawnResult{drawnResult("ringbuf", Negated, "a", WasCaught, "ringbuf"), drawnResult("ringbuf", Negated, "b", WasCaught, "ringbuf")}}
	moved := r.Drawn[1].Site
	moved.Line = 9
	want := r.Drawn[1]
	want.Site = moved
	r.Forget([]Site{moved})
	if diff := cmp.Diff([]DrawnResult{want}, []DrawnResult(r.Drawn), cmp.AllowUnexported(Site{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestEachEqualMutationHasAReasonAndIsDrawnFromASite(t *testing.T) {
	equal, err := LoadEqual(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range Packages {
		names = append(names, p.Name)
	}
	sites, err := Draw(root, names, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range equal {
		found := false
		for i := range sites {
			found = found || whyEqual([]Equal{e}, &sites[i]) != ""
		}
		if e.Why == "" || !found {
			t.Errorf("%s %s %s %q: no reason, or no such place any more", e.File, e.Func, e.Kind, e.Old)
		}
	}
}
