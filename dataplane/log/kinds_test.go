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
	for k := range kinds {
		d := &Defs[k]
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(d.Name) || named[d.Name] {
			t.Errorf("kind %d: name %q", k, d.Name)
		}
		named[d.Name] = true
		if d.What == "" || d.Remedy == "" || d.Level != Info && d.Remedy == "none" {
			t.Errorf("%s: what %q, remedy %q", d.Name, d.What, d.Remedy)
		}
		number := false
		for _, p := range place.FindAllStringSubmatch(d.What, -1) {
			switch name := p[1]; {
			case name == "" && !number:
				t.Errorf("%s: no number stands before %s", d.Name, p[0])
			case name != "" && name != "text" && name != d.Values[0] && name != d.Values[1]:
				t.Errorf("%s: %s is no value of it", d.Name, p[0])
			case name != "" && name != "text":
				number = true
			}
		}
		if rest := place.ReplaceAllString(d.What, ""); strings.ContainsAny(rest, "{}[]|") {
			t.Errorf("%s: %q has parts that are put in for nothing", d.Name, rest)
		}
	}
}

// ordinals are the numbers that count nothing: what follows them is a verb.
var ordinals = map[string]bool{"rank": true, "slot": true}

// behind are a number and up to four words of what it counts and does.
var behind = regexp.MustCompile(`\b([12])((?: [a-z]+){1,4})`)

// misnumbered says whether in a text 1 is followed by many, or 2 by one.
func misnumbered(text string) bool {
	for _, m := range behind.FindAllStringSubmatch(text, -1) {
		noun := true // words up to a verb or a preposition
		for i, w := range strings.Fields(m[2]) {
			switch w {
			case "is", "was", "has":
				if m[1] == "2" {
					return true
				}
			case "are", "were", "have":
				if m[1] == "1" {
					return true
				}
			case "that", "of", "to", "here":
			default:
				if noun && i < 2 && strings.HasSuffix(w, "s") && m[1] == "1" {
					return true
				}
				continue
			}
			if noun = false; w == "that" {
				break
			}
		}
	}
	return false
}

func TestNoKindSaysOneRequestsOrTwoRequest(t *testing.T) {
	forms := 0
	for k := range kinds {
		d := &Defs[k]
		for _, n := range []uint64{1, 2} {
			values, whole := map[string]uint64{}, []string{d.What}
			for _, name := range d.Values {
				if name != "" {
					values[name] = n
				}
				if ordinals[name] {
					whole = append(whole, "{"+name+"}", "#")
				}
			}
			say := Def{What: strings.NewReplacer(whole[1:]...).Replace(whole[0])}
			if got := say.say(values, "x"); misnumbered(got) {
				t.Errorf("%s: %q", d.Name, got)
			}
		}
		forms += strings.Count(d.What, "|")
	}
	if forms < 25 {
		t.Errorf("%d choices between one and many in all kinds: this test looks at nothing", forms)
	}
	for text, want := range map[string]bool{
		"1 requests": true, "1 tracked requests": true, "1 request are": true, "1 request was": false, "2 requests was": true, "2 requests are": false,
		"1 request that was tracked there is lost, and leases": false,
	} {
		if misnumbered(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
	two := Def{What: "{reads} [read is|reads are] open of {rank}, [it|they] {text}", Values: [2]string{"reads", "rank"}}
	for reads, want := range map[uint64]string{0: "0 reads are open of 1, it [a|b]{reads}", 1: "1 read is open of 1, it [a|b]{reads}"} {
		if got := two.say(map[string]uint64{"reads": reads, "rank": 1}, "[a|b]{reads}"); got != want {
			t.Errorf("%q, want %q", got, want)
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

// shown is What as the docs have it: the names of its values, and many of each.
func shown(what string) string {
	return place.ReplaceAllStringFunc(what, func(p string) string {
		if m := place.FindStringSubmatch(p); m[1] == "" {
			return m[3]
		}
		return "*" + strings.Trim(p, "{}") + "*"
	})
}

func TestTheTableOfKindsInTheDocsIsTrue(t *testing.T) {
	const file = "../../docs/logging.md"
	var b strings.Builder
	b.WriteString("| kind | level | it says | do |\n|---|---|---|---|\n")
	for k := range kinds {
		d := &Defs[k]
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", d.Name, d.Level, shown(d.What), d.Remedy)
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
