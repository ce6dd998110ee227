package log

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

//go:generate env KVLEASE_UPDATE=1 go test -count=1 -run TestTheTableOfKindsInTheDocsIsTrue .

func TestEveryKindHasANameALevelASentenceAndARemedy(t *testing.T) {
	named := map[string]bool{}
	place := regexp.MustCompile(`\{[a-z_]*\}`)
	for k := range kinds {
		d := &Defs[k]
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(d.Name) || named[d.Name] {
			t.Errorf("kind %d: name %q", k, d.Name)
		}
		named[d.Name] = true
		if d.What == "" || d.Remedy == "" || d.Level != Info && d.Remedy == "none" {
			t.Errorf("%s: what %q, remedy %q", d.Name, d.What, d.Remedy)
		}
		for _, p := range place.FindAllString(d.What, -1) {
			if name := strings.Trim(p, "{}"); name != "text" && name != d.Values[0] && name != d.Values[1] {
				t.Errorf("%s: %s is no value of it", d.Name, p)
			}
		}
	}
}

// Kinds that are said nowhere, or that no test brings about through their cause, are dead.
func TestEveryKindIsSaidSomewhereAndBroughtAboutByATest(t *testing.T) {
	said, tested := map[string]bool{"RecordsLost": true}, map[string]bool{"RecordsLost": true} // both in this package
	root := "../.."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "log" || d.Name() == "build" || d.Name() == "third_party" || strings.HasPrefix(d.Name(), ".") && path != root):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, ".go"):
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(src), `kvlease/dataplane/log"`) {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, src, 0)
		if err != nil {
			return err
		}
		into := said
		if strings.HasSuffix(path, "_test.go") {
			into = tested
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "log" {
					into[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for k, name := range kindNames(t) {
		if !said[name] {
			t.Errorf("%s is said nowhere", Defs[k].Name)
		}
		if !tested[name] {
			t.Errorf("no test brings %s about", Defs[k].Name)
		}
	}
}

// kindNames are the names of the constants, in their order.
func kindNames(t *testing.T) (names []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "kinds.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			for _, s := range g.Specs {
				if name := s.(*ast.ValueSpec).Names[0].Name; name != "kinds" {
					names = append(names, name)
				}
			}
		}
	}
	if len(names) != int(kinds) {
		t.Fatalf("%d names of %d kinds", len(names), kinds)
	}
	return names
}

const tableHead, tableEnd = "<!-- kinds: made by go generate -->\n", "<!-- end of kinds -->"

func TestTheTableOfKindsInTheDocsIsTrue(t *testing.T) {
	const file = "../../docs/logging.md"
	var b strings.Builder
	b.WriteString("| kind | level | it says | do |\n|---|---|---|---|\n")
	value := regexp.MustCompile(`\{([a-z_]*)\}`)
	for k := range kinds {
		d := &Defs[k]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Level, value.ReplaceAllString(d.What, "*$1*"), d.Remedy)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), tableHead)
	table, after, ok2 := strings.Cut(rest, tableEnd)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of kinds", file)
	}
	if table == b.String() {
		return
	}
	if os.Getenv("KVLEASE_UPDATE") == "" {
		t.Fatalf("the table of kinds in %s is not that of the code: go generate ./dataplane/log", file)
	}
	if err := os.WriteFile(file, []byte(before+tableHead+b.String()+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
