package mutate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Kinds of drawn mutations.
const (
	Negated  = "condition negated"
	Dropped  = "statement dropped"
	Constant = "constant +-1"
)

// Kinds lists them.
var Kinds = []string{Negated, Dropped, Constant}

// Site is a place of a source file where one small mistake can be made.
type Site struct {
	Package string `json:"package"` // folder from the root
	File    string `json:"file"`
	Func    string `json:"func"` // what encloses it: function, method with its receiver's type, or the declared name
	Line    int    `json:"line"`
	Kind    string `json:"kind"`
	Old     string `json:"old"`
	New     string `json:"new"`  // empty: the text is gone
	Nth     int    `json:"nth"`  // of those in Func with the same text
	Text    string `json:"text"` // the whole line

	from, to int    // bytes of the file
	order    uint64 // by which the seed draws
}

// Draw lists all sites of the packages in the order in which the seed draws them. A site's place in that order depends on the seed
// and on what stands there, so that a change elsewhere does not draw others. What a compiler makes of a site is not known here.
func Draw(root string, packages []string, seed uint64) ([]Site, error) {
	var all []Site
	for _, p := range packages {
		sites, err := sitesOf(root, p)
		if err != nil {
			return nil, err
		}
		all = append(all, sites...)
	}
	nth := make(map[string]int)
	for i := range all {
		s := &all[i]
		key := strings.Join([]string{s.File, s.Func, s.Kind, s.Old}, "\x00")
		s.Nth = nth[key]
		s.order = hashOf(seed, key, s.Nth)
		nth[key]++
		if s.Kind == Constant { // the seed says which way, too
			if s.New = "(" + s.Old + "+1)"; s.order&1 == 0 {
				s.New = "(" + s.Old + "-1)"
			}
		}
	}
	slices.SortFunc(all, func(a, b Site) int { return cmp.Compare(a.order, b.order) })
	return all, nil
}

func hashOf(seed uint64, key string, nth int) uint64 {
	h := fnv.New64a()
	h.Write(binary.LittleEndian.AppendUint64(nil, seed))
	h.Write([]byte(key))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(nth)))
	v := h.Sum64() // FNV mixes its last bytes poorly
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// sitesOf lists the sites of the files of a package that are built here, tests excepted.
func sitesOf(root, pkg string) ([]Site, error) {
	dir := filepath.Join(root, filepath.FromSlash(pkg))
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		return nil, fmt.Errorf("no Go files in %s: %w", pkg, cmp.Or(err, os.ErrNotExist))
	}
	var all []Site
	for _, name := range names {
		base := filepath.Base(name)
		if built, err := build.Default.MatchFile(dir, base); err != nil || !built || strings.HasSuffix(base, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read a source: %w", err)
		}
		sites, err := sitesIn(pkg, pkg+"/"+base, text)
		if err != nil {
			return nil, err
		}
		all = append(all, sites...)
	}
	return all, nil
}

// walker collects the sites of one file.
type walker struct {
	pkg, file, name string
	text            []byte
	at              *token.File
	sites           []Site
}

func sitesIn(pkg, file string, text []byte) ([]Site, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse a source: %w", err)
	}
	w := &walker{pkg: pkg, file: file, text: text, at: set.File(tree.Pos())}
	for _, d := range tree.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if w.name = funcName(d); d.Body != nil && !forPeople(d) {
				ast.Inspect(d.Body, w.visit)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok {
					w.name = v.Names[0].Name
					for _, e := range v.Values {
						ast.Inspect(e, w.visit)
					}
				}
			}
		}
	}
	return w.sites, nil
}

func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + d.Name.Name
	}
	return d.Name.Name
}

// forPeople says of a function that its result is for logs only.
func forPeople(d *ast.FuncDecl) bool {
	return slices.Contains([]string{"String", "Error", "Name"}, d.Name.Name) && d.Type.Params.NumFields() == 0
}

// visit is for ast.Inspect.
func (w *walker) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.CallExpr: // texts of errors, and what is formatted into them
		if f, ok := n.Fun.(*ast.SelectorExpr); ok {
			if p, ok := f.X.(*ast.Ident); ok && (p.Name == "fmt" || p.Name == "errors" && f.Sel.Name == "New") {
				return false
			}
		}
	case *ast.IfStmt:
		w.negate(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			w.negate(n.Cond)
		}
	case *ast.SwitchStmt:
		if n.Tag == nil {
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					w.negate(e)
				}
			}
		}
	case *ast.BlockStmt:
		w.drop(n.List)
	case *ast.CaseClause:
		w.drop(n.Body)
	case *ast.CommClause:
		w.drop(n.Body)
	case *ast.BasicLit:
		if n.Kind == token.INT {
			w.add(n, Constant, "")
		}
	}
	return true
}

func (w *walker) negate(cond ast.Expr) {
	w.add(cond, Negated, "!("+w.textOf(cond)+")")
}

func (w *walker) drop(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				w.add(s, Dropped, "")
			}
		case *ast.ExprStmt, *ast.IncDecStmt, *ast.BranchStmt, *ast.DeferStmt, *ast.GoStmt, *ast.SendStmt:
			w.add(s, Dropped, "")
		case *ast.ReturnStmt:
			if len(s.Results) == 0 {
				w.add(s, Dropped, "")
			}
		}
	}
}

func (w *walker) textOf(n ast.Node) string {
	return string(w.text[w.at.Offset(n.Pos()):w.at.Offset(n.End())])
}

func (w *walker) add(n ast.Node, kind, instead string) {
	s := Site{
		Package: w.pkg, File: w.file, Func: w.name, Line: w.at.Line(n.Pos()), Kind: kind, Old: w.textOf(n), New: instead,
		from: w.at.Offset(n.Pos()), to: w.at.Offset(n.End()),
	}
	first := bytes.LastIndexByte(w.text[:s.from], '\n') + 1
	last := s.to + max(bytes.IndexByte(w.text[s.to:], '\n'), 0)
	s.Text = flat(string(w.text[first:last]))
	w.sites = append(w.sites, s)
}

// apply makes the changed text of a site's file. Lines keep their numbers.
func (s *Site) apply(text []byte) ([]byte, error) {
	if s.to > len(text) || string(text[s.from:s.to]) != s.Old {
		return nil, fmt.Errorf("%w: %s:%d no longer reads %q", ErrApply, s.File, s.Line, s.Old)
	}
	instead := s.New + strings.Repeat("\n", strings.Count(s.Old, "\n")-strings.Count(s.New, "\n"))
	return slices.Concat(text[:s.from], []byte(instead), text[s.to:]), nil
}

// Where is the place of a site for people.
func (s *Site) Where() string { return s.File + ":" + strconv.Itoa(s.Line) }

// Same says that two sites are the same mistake at the same place, whatever line that has now.
func (s *Site) Same(o *Site) bool {
	return s.File == o.File && s.Func == o.Func && s.Kind == o.Kind && s.Old == o.Old && s.Nth == o.Nth
}
