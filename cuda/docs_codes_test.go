package cuda

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// causes are the causes of refusals in the sources of this package, but for the driver's codes: what stands at Cause or as the first text
// of refuse and refused.
func causes(t *testing.T) (all []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	text := func(e ast.Expr) {
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) > 0 { // fmt.Sprintf
			e = call.Args[0]
		}
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			s, _ := strconv.Unquote(lit.Value)
			all = append(all, s)
		}
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), f, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Cause" {
					text(n.Value)
				}
			case *ast.AssignStmt:
				if at, ok := n.Lhs[0].(*ast.SelectorExpr); ok && at.Sel.Name == "Cause" {
					text(n.Rhs[0])
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "refuse" || f.Name == "refused") {
					text(n.Args[0])
				}
			}
			return true
		})
	}
	return all
}

// ofTheShim are causes that nobody who registers memory is told, with the reason.
var ofTheShim = map[string]string{
	"status %d of the shim": "no status is without its words",
}

// TestEachRefusalIsOnThePageOnMemory is the other way of TestThePageOnMemoryHasTheWordsOfEachMessage.
func TestEachRefusalIsOnThePageOnMemory(t *testing.T) {
	page, err := os.ReadFile("../docs/memory.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, _ := strings.Cut(string(page), "\n## Each message\n")
	var said [][]string
	for _, m := range regexp.MustCompile("`([^`\n]*)`").FindAllStringSubmatch(tables, -1) {
		for part := range strings.SplitSeq(m[1], "...") {
			if list := words(part, true); len(list) > 2 {
				said = append(said, list)
			}
		}
	}
	all := causes(t)
	for _, cause := range append(all, "the kitten of device %d sleeps below its hat") {
		if _, ok := ofTheShim[cause]; ok {
			continue
		}
		list := words(cause, false)
		// A row may leave the end of a cause to its dots, or begin with the name of a region: each has to lie in the other.
		found := slices.ContainsFunc(said, func(row []string) bool { return within(row, list) || within(list, row) })
		if found == strings.Contains(cause, "kitten") {
			t.Errorf("the page has a row for %q: %v", cause, found)
		}
	}
	if len(all) < 20 {
		t.Errorf("%d causes were found", len(all))
	}
}

// TestTheCodesOfTheDriverAreThoseOfThePage holds both tables against each other: codes, names, and the functions where a code says more.
func TestTheCodesOfTheDriverAreThoseOfThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/memory.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "\n### Codes of the driver\n")
	table, _, ok2 := strings.Cut(table, "\n### ")
	if !ok || !ok2 {
		t.Fatal("the page has no codes of the driver")
	}
	told := map[int]string{} // code: its row
	for _, m := range regexp.MustCompile("(?m)^\\| ([0-9][0-9, ]*)(?:`([A-Z_]+)`)? \\|.*$").FindAllStringSubmatch(table, -1) {
		for n := range strings.SplitSeq(m[1], ",") {
			code, err := strconv.Atoi(strings.TrimSpace(n))
			if err != nil {
				t.Fatalf("%q: %v", m[0], err)
			}
			told[code] = m[0]
			if m[2] != "" && codeNames[code] != m[2] {
				t.Errorf("%d is %s and stands there as %s", code, codeNames[code], m[2])
			}
		}
	}
	want := map[int]bool{}
	for code := range reasons {
		want[code] = true
	}
	for at := range reasonsAt {
		want[at.code] = true
		// What only memory of other processes or our own exports meet stands in no refusal of a registration.
		if row := told[at.code]; !strings.Contains(row, "`"+at.call+"`") && !notOfARegistration[at.call] {
			t.Errorf("%d says more where %s answers it, and its row does not: %q", at.code, at.call, row)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(want)) {
		if told[code] == "" && code != 217 { // of cuIpcOpenMemHandle alone
			t.Errorf("the page has no row for %d (%s)", code, codeName(code))
		}
	}
	for code := range told {
		if !want[code] {
			t.Errorf("the page has a row for %d, which is no code with words of its own", code)
		}
	}
}

// notOfARegistration are functions that a registration does not call.
var notOfARegistration = map[string]bool{"cuMemAlloc": true, "cuIpcOpenMemHandle": true, "cuMemGetHandleForAddressRange": true}
