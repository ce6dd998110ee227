package faults

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// Outcome is how a test ended.
type Outcome string

// Outcomes. A test that does not occur in the logs has none.
const (
	Passed  Outcome = "passed"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Outcomes are those of a run, by test.
type Outcomes map[Test]Outcome

// module is what import paths of ours begin with.
const module = "github.com/kvlease/kvlease/"

// ReadGo takes the log of go test -json.
func (o Outcomes) ReadGo(in io.Reader) error {
	return readEvents(in, func(e event) error {
		t := Test{strings.TrimPrefix(e.Package, module), e.Test}
		switch e.Action {
		case "pass":
			o[t] = Passed
		case "skip":
			o[t] = Skipped
		case "fail":
			o[t] = Failed
		}
		return nil
	})
}

var ctestLine = regexp.MustCompile(`^ *\d+/\d+ Test +#\d+: (\S+) \.*(.*?) +[0-9.]+ sec`)

// ReadCTest takes what ctest prints. Tests of a run under a sanitizer have its name before theirs, as in tsan/ring_test: under is tsan/.
func (o Outcomes) ReadCTest(in io.Reader, under string) error {
	return readCTest(in, under, func(_ string, t Test, how Outcome) {
		if t.Name != "" {
			o[t] = how
		}
	})
}

// readCTest gives each line to do, with the test whose end it says, or none.
func readCTest(in io.Reader, under string, do func(line string, t Test, how Outcome)) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		m := ctestLine.FindStringSubmatch(lines.Text())
		switch {
		case m == nil:
			do(lines.Text(), Test{}, "")
		case strings.Contains(m[2], "Passed"):
			do(lines.Text(), Test{Name: under + m[1]}, Passed)
		case strings.Contains(m[2], "Skipped"):
			do(lines.Text(), Test{Name: under + m[1]}, Skipped)
		default:
			do(lines.Text(), Test{Name: under + m[1]}, Failed)
		}
	}
	return lines.Err()
}

// Ran fails for each marked test that did not run or did not pass. It says which were skipped, as a whole or in part, and which
// lines that leaves without any test.
func (o Outcomes) Ran(marks []Mark) (skips, unshown []string, err error) {
	lines := map[Test][]string{}
	var tests []Test
	for _, m := range marks {
		if lines[m.Test] == nil {
			tests = append(tests, m.Test)
		}
		if !slices.Contains(lines[m.Test], m.Line) {
			lines[m.Test] = append(lines[m.Test], m.Line)
		}
	}
	var wrong []error
	for _, t := range tests {
		shows := strings.Join(lines[t], ", ")
		switch o[t] {
		case Passed:
			for sub, how := range o {
				if how == Skipped && sub.Package == t.Package && strings.HasPrefix(sub.Name, t.Name+"/") {
					skips = append(skips, fmt.Sprintf("%s was skipped: %s not shown there", sub, shows))
				}
			}
		case Skipped:
			skips = append(skips, fmt.Sprintf("%s was skipped: %s not shown", t, shows))
		case Failed:
			wrong = append(wrong, fmt.Errorf("%s failed: it should show %s", t, shows))
		default:
			wrong = append(wrong, fmt.Errorf("%s did not run: it should show %s", t, shows))
		}
	}
	slices.Sort(skips)
	shown := map[string]bool{}
	for _, m := range marks {
		shown[m.Line] = shown[m.Line] || o[m.Test] == Passed
	}
	for _, m := range marks {
		if !shown[m.Line] && o[m.Test] == Skipped && !slices.Contains(unshown, m.Line) {
			unshown = append(unshown, m.Line)
		}
	}
	slices.Sort(unshown)
	return skips, unshown, errors.Join(wrong...)
}
