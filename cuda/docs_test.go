package cuda

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// filled stands for words that are filled in.
const filled = "\x00"

var (
	verb    = regexp.MustCompile(`%[-+#]?[0-9.]*[a-zA-Z]`)
	cString = regexp.MustCompile(`"((?:[^"\\\n]|\\.)*)"`)
)

// words are those of a message; filled in are what %-verbs, and on the page N, X and names in capitals, stand for.
func words(text string, onPage bool) []string {
	if onPage {
		text = regexp.MustCompile(`\b(N|X|NAME|HOW|MEMORY|CALL)\b`).ReplaceAllString(text, filled)
		text = regexp.MustCompile(`\b\d+(\.\d+)?\b`).ReplaceAllString(text, filled)
	} else {
		text = verb.ReplaceAllString(text, filled)
		text = regexp.MustCompile(`\b\d+(\.\d+)?\b`).ReplaceAllString(text, filled)
	}
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n`\"'(),:;", r) })
}

// within tells whether part is somewhere in whole. What is filled in stands for up to five words of the other; one of three has to be the same.
func within(part, whole []string) bool {
	var from func(p, w []string, same int) bool
	from = func(p, w []string, same int) bool {
		switch {
		case len(p) == 0:
			return 3*same >= len(part)
		case len(w) == 0:
			return false
		case p[0] == w[0] && from(p[1:], w[1:], same+1):
			return true
		}
		for n := 1; n <= 5; n++ {
			if strings.Contains(w[0], filled) && n <= len(p) && from(p[n:], w[1:], same) || strings.Contains(p[0], filled) && n <= len(w) && from(p[1:], w[n:], same) {
				return true
			}
		}
		return false
	}
	for i := range whole {
		if from(part, whole[i:], 0) {
			return true
		}
	}
	return len(part) == 0
}

// said are the texts in the sources that a registration goes through.
func said(t *testing.T) (all [][]string) {
	t.Helper()
	add := func(text string) {
		list := words(text, false)
		if plain := slices.DeleteFunc(slices.Clone(list), func(w string) bool { return strings.Contains(w, filled) }); len(plain) > 1 && 2*len(plain) > len(list) {
			all = append(all, list) // others would be found in anything
		}
	}
	for _, dir := range []string{".", "../dataplane/core", "../dataplane/log", "../cnixl", "../cmd/libkvlease/src", "../python/ext"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.[gc]*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			if strings.HasSuffix(f, ".c") {
				for _, m := range cString.FindAllSubmatch(text, -1) {
					add(string(m[1]))
				}
			}
			if !strings.HasSuffix(f, ".go") || strings.HasSuffix(f, "_test.go") {
				continue
			}
			parsed, err := parser.ParseFile(token.NewFileSet(), f, text, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(parsed, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					s, _ := strconv.Unquote(lit.Value)
					add(s)
				}
				return true
			})
		}
	}
	return all
}

// TestThePageOnMemoryHasTheWordsOfEachMessage: what an operator looks for there is what a refusal says.
func TestThePageOnMemoryHasTheWordsOfEachMessage(t *testing.T) {
	page, err := os.ReadFile("../docs/memory.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tables, ok := strings.Cut(string(page), "\n## Each message\n")
	if !ok {
		t.Fatal("the page has no messages")
	}
	all, rows := said(t), 0
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]*)`").FindAllStringSubmatch(tables, -1) {
		if regexp.MustCompile(`^\d+ `).MatchString(m[1]) || !strings.Contains(m[1], " ") { // codes of the driver, kinds of the log
			continue
		}
		rows++
		for part := range strings.SplitSeq(m[1], "...") {
			list := words(part, true)
			if !slices.ContainsFunc(all, func(whole []string) bool { return within(list, whole) }) {
				t.Errorf("nothing says %q, of %q", part, m[1])
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d messages were found", rows)
	}
	for _, made := range [][]string{words("it does not begin at a multiple of N", true), words("a kitten sleeps below seven green hats", true)} {
		if is := slices.ContainsFunc(all, func(whole []string) bool { return within(made, whole) }); is != (made[0] == "it") {
			t.Errorf("%q is said: %v", made, is)
		}
	}
}
