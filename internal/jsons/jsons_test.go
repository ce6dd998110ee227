package jsons

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

func TestAListOfNothingIsAList(t *testing.T) {
	type report struct {
		Notes List[string] `json:"notes"`
	}
	for want, v := range map[string]report{`{"notes":[]}`: {}, `{"notes":["a"]}`: {Notes: []string{"a"}}} {
		if got, err := json.Marshal(v); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

// spoken are files of what processes of one program say to each other, line by line: what a line does not need is not in it.
var spoken = map[string]bool{
	"cmd/kvlease/internal/jsonl/jsonl.go": true,
	"cmd/kvlease/internal/bench/owner.go": true,
}

// Whoever reads a report asks a list for its length: it is no null and not missing where it is empty, in any tool.
func TestEachListOfAReportIsThereThoughItIsEmpty(t *testing.T) {
	root := filepath.Join("..", "..")
	lists := 0
	for _, dir := range []string{"cmd", "internal", "cuda", "dataplane"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, _ := filepath.Rel(root, path)
			if spoken[filepath.ToSlash(name)] {
				return nil
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				f, ok := n.(*ast.Field)
				if !ok || f.Tag == nil {
					return true
				}
				tag, _ := strconv.Unquote(f.Tag.Value)
				said, ok := reflect.StructTag(tag).Lookup("json")
				switch kind := listOf(f.Type); {
				case !ok || kind == noList:
				case kind == plain:
					t.Errorf("%s: the list %q is null where it is empty: jsons.List", set.Position(f.Pos()), said)
				case strings.Contains(said, "omit"):
					t.Errorf("%s: the list %q is missing where it is empty", set.Position(f.Pos()), said)
				default:
					lists++
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if lists < 20 {
		t.Errorf("%d lists in all reports: this test looks at nothing", lists)
	}
}

const (
	noList = iota
	plain
	ours
)

// listOf says what a field's type is. Bytes are text.
func listOf(e ast.Expr) int {
	switch e := e.(type) {
	case *ast.ArrayType:
		if of, ok := e.Elt.(*ast.Ident); e.Len == nil && !(ok && of.Name == "byte") {
			return plain
		}
	case *ast.IndexExpr:
		if of, ok := e.X.(*ast.SelectorExpr); ok && of.Sel.Name == "List" {
			return ours
		}
	}
	return noList
}
