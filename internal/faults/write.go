package faults

import (
	"bytes"
	"fmt"
	"strings"
)

// WriteDoc makes docs/faults.md.
func WriteDoc(r *Registry, marks []Mark) []byte {
	n, _ := r.Check(marks)
	at := map[string][]Mark{}
	for _, m := range marks {
		at[m.Line] = append(at[m.Line], m)
	}
	b := &bytes.Buffer{}
	fmt.Fprintf(b, `<!-- Made by make generate from faults.yaml and the marks in the tests. -->
# Known faults, and what shows that they do not happen here

Each row is one thing that must hold where systems of this kind have been seen to fail: the rule by which it holds, the test
that shows it, and the assertion. %d are shown, %d are open, %d do not apply. C01 to C78 are faults of other systems, S01 to
S33 weak points of vLLM 0.33.0's NIXL connector, F1 to F5 what NIXL does and one must live with. `+"`make test`"+` fails if a test
that is named here did not run or did not pass, or if all tests of a line were skipped.

## Rules

| rule | says | stated in |
|---|---|---|
`, n.Shown, n.Open, n.NotApplicable)
	for _, rule := range r.Rules {
		fmt.Fprintf(b, "| %s | %s | [%s](%s) |\n", cell(rule.Name), cell(rule.Says), strings.TrimPrefix(rule.Where, "../"), rule.Where)
	}
	kind := ""
	for i := range r.Cases {
		c := &r.Cases[i]
		if c.Kind != kind {
			kind = c.Kind
			fmt.Fprintf(b, "\n## %s\n", kind)
		}
		fmt.Fprintf(b, "\n### %s %s\n", c.ID, c.Title)
		if c.NA != "" {
			fmt.Fprintf(b, "\nNot applicable: %s\n", c.NA)
		}
		if len(c.Right) == 0 {
			continue
		}
		fmt.Fprint(b, "\n| | right | rule | shown by |\n|---|---|---|---|\n")
		for j, right := range c.Right {
			name := line(c, j)
			by := ""
			switch {
			case right.NA != "" && c.NA == "":
				by = "not applicable: " + right.NA
			case right.Open != "":
				by = "open: " + right.Open
			}
			rule := right.Rule
			if right.NA != "" {
				rule = ""
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s%s |\n", name, cell(right.Says), cell(rule), cell(by), shownBy(at[name]))
		}
	}
	return b.Bytes()
}

// shownBy is the cell of a table that names the marks of a line. Tests of ctest that run one program are named together.
func shownBy(marks []Mark) string {
	var parts []string
	for i := 0; i < len(marks); i++ {
		m, tests := marks[i], marks[i].Test.String()
		for i+1 < len(marks) && marks[i+1].File == m.File && marks[i+1].At == m.At {
			i++
			tests += ", " + marks[i].Test.Name
		}
		parts = append(parts, fmt.Sprintf("[%s](../%s#L%d) `%s`", cell(tests), m.File, m.At, strings.ReplaceAll(cell(m.Text), "`", "'")))
	}
	return strings.Join(parts, "<br>")
}

// cell keeps a text from ending a cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
