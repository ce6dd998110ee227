package faults

import (
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Failure is an outermost test that failed, or with no name a package that was not built or whose process ended inside its tests.
type Failure struct {
	Test
	Path string // the import path; "" of a test of ctest
	Held bool   // it passed when it was played once more
	Said []string
}

func (f Failure) String() string {
	if f.Name == "" {
		return f.Package
	}
	return f.Test.String()
}

// broke is where a process says that it has: what follows is of more use than how it ends.
var broke = regexp.MustCompile(`DATA RACE|race detected|(^|\s)(panic|fatal error): |SIG(SEGV|BUS|ABRT)|Sanitizer: `)

// finals are words after which a failure stands, whatever a second play would bring: those of our tests about data, and of draws.
var finals = []struct {
	words *regexp.Regexp
	why   string
}{
	{broke, "a process broke or raced"},
	{regexp.MustCompile(`(?i)(wrong|bad|other) (bytes|data|words)|(bytes|data|words) (are|is|were) (wrong|not)|bytes landed|handed out`), "data was wrong"},
	{regexp.MustCompile(`(?i)seeds?\b|\[rapid\]`), "it draws, and would draw something else"},
}

// Final says why no second play can excuse a failure, or nothing where one can.
func (f Failure) Final() string {
	if f.Name == "" {
		return "it was not built, or ended inside its tests"
	}
	for _, final := range finals {
		if slices.ContainsFunc(f.Said, final.words.MatchString) {
			return final.why
		}
	}
	return ""
}

// saidMax is how many lines of a failure are told.
const saidMax = 30

// Tell writes what each failure has said: its last lines, or those from where a process broke on.
func Tell(out io.Writer, failures []Failure) {
	for _, f := range failures {
		how := "failed"
		if f.Held {
			how = "failed, and held when it was played once more"
		}
		first := max(0, len(f.Said)-saidMax)
		if at := slices.IndexFunc(f.Said, broke.MatchString); at >= 0 {
			first = min(first, at)
		}
		last := min(len(f.Said), first+saidMax)
		fmt.Fprintf(out, "\n%s %s; lines %d to %d of %d:\n", f, how, min(first+1, last), last, len(f.Said))
		for _, line := range f.Said[first:last] {
			fmt.Fprintln(out, "  "+line)
		}
	}
}

// goRun is what is known in the middle of a log of go test -json. Packages have their import paths in it.
type goRun struct {
	failures []Failure
	said     map[Test][]string   // of outermost tests that have not ended; of packages, with no name
	builds   map[string][]string // what builds have said, of packages and of their test binaries
	open     map[string]bool     // packages that have not ended
	whole    map[string]bool     // packages whose process says itself that a test has failed
	failed   map[string]int
}

// endsWhole is said last by a process that has run all its tests, some of which failed. One that dies does not get there.
const endsWhole = "FAIL\n"

// GoFailures takes the log of go test -json, in which tests may be played more than once.
func GoFailures(in io.Reader) ([]Failure, error) {
	l := goRun{nil, map[Test][]string{}, map[string][]string{}, map[string]bool{}, map[string]bool{}, map[string]int{}}
	err := readEvents(in, func(e event) error {
		l.take(e)
		return nil
	})
	for _, path := range slices.Sorted(maps.Keys(l.open)) { // go test itself was ended
		l.broken(path, nil)
	}
	return l.failures, err
}

func (l *goRun) take(e event) {
	top, _, _ := strings.Cut(e.Test, "/")
	t := Test{e.Package, top}
	switch {
	case e.Action == "start":
		l.open[e.Package], l.whole[e.Package], l.failed[e.Package] = true, false, 0
		maps.DeleteFunc(l.said, func(t Test, _ []string) bool { return t.Package == e.Package })
	case e.Action == "build-output":
		l.builds[e.ImportPath] = append(l.builds[e.ImportPath], strings.TrimRight(e.Output, "\n"))
	case e.Action == "output" && e.Test == "" && e.Output == endsWhole:
		l.whole[e.Package] = true
	case e.Action == "output" && !strings.HasPrefix(e.Output, "=== "):
		l.said[t] = append(l.said[t], strings.TrimRight(e.Output, "\n"))
	case e.Test != top: // how a part of a test ended
	case top == "" && e.Action == "fail" && (!l.whole[e.Package] || l.failed[e.Package] == 0):
		l.broken(e.Package, l.builds[e.FailedBuild])
	case top == "" && slices.Contains([]string{"pass", "skip", "fail"}, e.Action):
		delete(l.open, e.Package)
	case e.Action == "fail":
		l.failed[e.Package]++
		l.fail(t, l.said[t])
		delete(l.said, t)
	case e.Action == "pass" || e.Action == "skip":
		for i, f := range l.failures {
			if f.Path == e.Package && f.Name == top && e.Action == "pass" {
				l.failures[i].Held = true
			}
		}
		delete(l.said, t)
	}
}

func (l *goRun) fail(t Test, said []string) {
	l.failures = append(l.failures, Failure{Test{strings.TrimPrefix(t.Package, module), t.Name}, t.Package, false, said})
}

// broken is a package that did not come to its end. What the tests that it was in have said is its own.
func (l *goRun) broken(path string, said []string) {
	delete(l.open, path)
	var in []Test
	for t := range l.said {
		if t.Package == path {
			in = append(in, t)
		}
	}
	slices.SortFunc(in, func(a, b Test) int { return -strings.Compare(a.Name, b.Name) }) // the package itself last
	for _, t := range in {
		said = append(said, l.said[t]...)
	}
	l.fail(Test{path, ""}, said)
}

// ctestStart is the line before the next test; what a test that failed has said stands before it.
var ctestStart = regexp.MustCompile(`^ +Start +\d+: |^\d+% tests passed`)

// CTestFailures takes what ctest --output-on-failure prints; under as for ReadCTest.
func CTestFailures(in io.Reader, under string) ([]Failure, error) {
	var failures []Failure
	telling := false
	err := readCTest(in, under, func(line string, t Test, how Outcome) {
		switch {
		case t.Name != "":
			if telling = how == Failed; telling {
				failures = append(failures, Failure{Test: t})
			}
		case ctestStart.MatchString(line):
			telling = false
		case telling:
			last := &failures[len(failures)-1]
			last.Said = append(last.Said, line)
		}
	})
	return failures, err
}
