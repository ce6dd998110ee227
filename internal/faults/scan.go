package faults

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Mark is the place of an assertion that shows a right line.
type Mark struct {
	Line string // C26.2
	File string // from the root, with slashes
	At   int    // line of the assertion
	Text string // its code
	Test Test
}

// Test is what runs the assertion.
type Test struct {
	Package string // folder of a Go package from the root; "" for a test of ctest
	Name    string // TestX, TestX/case, or the name in ctest
}

func (t Test) String() string {
	if t.Package == "" {
		return "ctest " + t.Name
	}
	return t.Package + " " + t.Name
}

// caseTest runs the files in caseFolder, each in a subtest of its own.
const (
	caseFolder = "dataplane/sim/testdata"
	caseTest   = "TestEveryCaseComesOutRight"
)

var (
	markForm  = regexp.MustCompile(`\bshows ([CSF]\d\d?\.\d+(?:(?:, | and )[CSF]\d\d?\.\d+)*)`)
	markStart = regexp.MustCompile(`\bshows:? \[?[CSF]\d`)
	markLine  = regexp.MustCompile(`[CSF]\d\d?\.\d+`)
)

// skipped are folders with nothing of ours to mark.
var skipped = []string{".git", ".deps", "build", "third_party", "node_modules", "__pycache__"}

// Scan finds all marks in the repository at root. What is wrong with marks comes as one joined error beside those that are right.
func Scan(root string, ctests map[string][]string) ([]Mark, error) {
	var marks []Mark
	var wrong []error
	err := filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, at)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains(skipped, d.Name()) || rel == "internal/faults" { // speaks of marks
				return fs.SkipDir
			}
			return nil
		}
		var scan func(rel string, text []byte, ctests map[string][]string) ([]Mark, error)
		switch path.Ext(rel) {
		case ".go":
			scan = scanGo
		case ".c", ".cpp", ".py", ".h":
			scan = scanC
		case ".yaml":
			if path.Dir(rel) != caseFolder {
				return nil
			}
			scan = scanCases
		default:
			return nil
		}
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		if !markStart.Match(text) {
			return nil
		}
		found, err := scan(rel, text, ctests)
		if err != nil {
			wrong = append(wrong, err)
		}
		marks = append(marks, found...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan for marks: %w", err)
	}
	slices.SortFunc(marks, func(a, b Mark) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.At - b.At
	})
	return marks, errors.Join(wrong...)
}

// marked are the lines that a comment marks, and whether it has the form of a mark at all.
func marked(comment string) (lines []string, ok bool) {
	for _, m := range markForm.FindAllStringSubmatch(comment, -1) {
		lines = append(lines, markLine.FindAllString(m[1], -1)...)
	}
	return lines, len(lines) > 0 && len(markForm.FindAllString(comment, -1)) == len(markStart.FindAllString(comment, -1))
}

// assertion is the code that a comment in line at (from 1) stands beside, else the first code below it.
func assertion(text []string, at int) (int, string) {
	code := func(s string) string {
		for _, sign := range []string{"//", "/*", "# "} {
			if i := strings.Index(s, sign); i >= 0 && markStart.MatchString(s[i:]) {
				s = s[:i]
			}
		}
		return strings.TrimSpace(s)
	}
	for n := at; n <= len(text) && n < at+10; n++ {
		s := code(text[n-1])
		if s != "" && !strings.HasPrefix(s, "//") && !strings.HasPrefix(s, "/*") && !strings.HasPrefix(s, "* ") && !strings.HasPrefix(s, "# ") {
			return n, s
		}
	}
	return at, ""
}

// scanGo finds marks in the comments of a Go file. They count inside of test and fuzz functions only.
func scanGo(rel string, text []byte, _ map[string][]string) ([]Mark, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(string(text), "\n")
	var marks []Mark
	var wrong []error
	for _, group := range file.Comments {
		for _, c := range group.List {
			if !markStart.MatchString(c.Text) {
				continue
			}
			at := fset.Position(c.Pos()).Line
			names, ok := marked(c.Text)
			if !ok {
				wrong = append(wrong, fmt.Errorf("%s:%d: %s: a mark names lines, as in C26.2", rel, at, c.Text))
				continue
			}
			test := enclosing(file, c.Pos())
			if test == "" || !strings.HasSuffix(rel, "_test.go") {
				wrong = append(wrong, fmt.Errorf("%s:%d: %s: a mark stands inside a test", rel, at, c.Text))
				continue
			}
			n, code := assertion(lines, at)
			for _, name := range names {
				marks = append(marks, Mark{Line: name, File: rel, At: n, Text: code, Test: Test{path.Dir(rel), test}})
			}
		}
	}
	return marks, errors.Join(wrong...)
}

// enclosing is the test function around a place, or nothing.
func enclosing(file *ast.File, at token.Pos) string {
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || at < f.Pos() || at > f.End() || f.Recv != nil {
			continue
		}
		if n := f.Name.Name; strings.HasPrefix(n, "Test") && n != "TestMain" || strings.HasPrefix(n, "Fuzz") {
			return n
		}
	}
	return ""
}

// scanC finds marks in a test program in C, C++ or Python.
func scanC(rel string, text []byte, ctests map[string][]string) ([]Mark, error) {
	names, ok := ctests[rel]
	if !ok {
		names = []string{strings.TrimSuffix(path.Base(rel), path.Ext(rel))}
	}
	lines := strings.Split(string(text), "\n")
	var marks []Mark
	var wrong []error
	for i, s := range lines {
		if !markStart.MatchString(s) {
			continue
		}
		shown, ok := marked(s)
		if !ok {
			wrong = append(wrong, fmt.Errorf("%s:%d: %s: a mark names lines, as in C26.2", rel, i+1, strings.TrimSpace(s)))
			continue
		}
		n, code := assertion(lines, i+1)
		for _, name := range shown {
			for _, test := range names {
				marks = append(marks, Mark{Line: name, File: rel, At: n, Text: code, Test: Test{Name: test}})
			}
		}
	}
	return marks, errors.Join(wrong...)
}

// scanCases finds the key "shows" beside the expectations of a case of the simulator.
func scanCases(rel string, text []byte, _ map[string][]string) ([]Mark, error) {
	var marks []Mark
	var wrong []error
	test := Test{path.Dir(caseFolder), caseTest + "/" + strings.TrimSuffix(path.Base(rel), path.Ext(rel))}
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value != "shows" {
					continue
				}
				shows := n.Content[i+1]
				names := shows.Content
				if shows.Kind == yaml.ScalarNode {
					names = []*yaml.Node{shows}
				}
				for _, name := range names {
					if markLine.FindString(name.Value) != name.Value || name.Value == "" {
						wrong = append(wrong, fmt.Errorf("%s:%d: shows %s: a mark names lines, as in C26.2", rel, name.Line, name.Value))
						continue
					}
					marks = append(marks, Mark{Line: name.Value, File: rel, At: n.Line, Text: expectation(n, i), Test: test})
				}
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	doc := yaml.Node{}
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); err != nil {
		return nil, fmt.Errorf("%s: %w", rel, err)
	}
	walk(&doc)
	return marks, errors.Join(wrong...)
}

// expectation is a map without its mark, in one line.
func expectation(n *yaml.Node, without int) string {
	rest := *n
	rest.Style = yaml.FlowStyle
	rest.Content = slices.Concat(n.Content[:without], n.Content[without+2:])
	text, err := yaml.Marshal(&rest)
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text)), " ")
}
