package core

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const repository = "../.."

// librarySources gives do each file in Go and C of what is linked into an engine. ext is .go, .c or .h.
func librarySources(t *testing.T, do func(path, ext string, text []byte)) {
	t.Helper()
	files := 0
	for _, dir := range []string{"dataplane", "ringbuf", "cnixl", "cuda", "cmd/libkvlease"} {
		err := filepath.WalkDir(filepath.Join(repository, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && slices.Contains([]string{"test", "ctest", "sim", "testdata", "models", "fakecuda", "fakenvml"}, d.Name()) {
					return fs.SkipDir
				}
				return err
			}
			ext := filepath.Ext(path)
			if ext != ".c" && ext != ".h" && (ext != ".go" || strings.HasSuffix(path, "_test.go")) {
				return nil
			}
			text, err := os.ReadFile(path)
			if err == nil {
				files++
				do(path, ext, text)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 100 {
		t.Errorf("%d files looked at", files)
	}
}

// selectors gives do each x.name of a Go file; of is x if that is a name.
func selectors(t *testing.T, path string, text []byte, do func(at, of, name string)) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			of := ""
			if x, ok := sel.X.(*ast.Ident); ok {
				of = x.Name
			}
			do(set.Position(sel.Pos()).String(), of, sel.Sel.Name)
		}
		return true
	})
}

// The step is told the time, in CLOCK_BOOTTIME, and nothing that goes over a wire is a point of the wall clock. time.Now is
// left to what waits for a network, where it counts by its monotonic part.
func TestNoDeadlineIsMadeFromTheWallClock(t *testing.T) {
	wall := regexp.MustCompile(`CLOCK_REALTIME|gettimeofday|\btime\(NULL\)|\btime\(0\)`)
	plane := []string{".", "lease", "heartbeat", "read", "group", "wire", "submit", "record", "topology", "transport", "clock", "siphash"}
	librarySources(t, func(path, ext string, text []byte) {
		if m := wall.Find(text); m != nil { // shows C61.3
			t.Errorf("%s reads the wall clock: %s", path, m)
		}
		if ext != ".go" {
			return
		}
		in, _ := filepath.Rel(filepath.Join(repository, "dataplane"), filepath.Dir(path))
		selectors(t, path, text, func(at, of, name string) {
			if of != "time" && slices.Contains([]string{"Unix", "UnixNano", "UnixMilli", "UnixMicro"}, name) {
				t.Errorf("%s: a point of the wall clock as a number", at)
			}
			if of == "time" && slices.Contains(plane, in) && slices.Contains([]string{"Now", "Since", "Until", "After", "NewTimer", "Sleep"}, name) {
				t.Errorf("%s: the plane reads no clock", at) // shows C61.3
			}
		})
	})
}

// A peer that misbehaves would fill the log of its host. What happens is counted, and told in events, errors and statistics; what is
// written are the lines of package log alone, whose rate is bounded, and errWriter alone writes them.
func TestTheLibraryWritesNothingButLinesOfItsLog(t *testing.T) {
	inC := regexp.MustCompile(`\b(v?printf|v?fprintf|puts|fputs|fputc|putchar|perror|v?syslog|v?dprintf)\s*\(`)
	inGo := regexp.MustCompile(`(?m)^(import)?\s*"log(/slog)?"$|(^|[^.\w])println?\(`)
	librarySources(t, func(path, ext string, text []byte) {
		if ext != ".go" {
			if m := inC.Find(text); m != nil { // shows C19.3
				t.Errorf("%s writes: %s", path, m)
			}
			return
		}
		if m := inGo.Find(text); m != nil && !bytes.Contains(text, []byte("log.New(io.Discard,")) { // shows C19.3; net/http has to be silenced
			t.Errorf("%s writes: %s", path, m)
		}
		selectors(t, path, text, func(at, of, name string) {
			if of == "fmt" && strings.HasPrefix(name, "Print") || of == "os" && (name == "Stdout" || name == "Stderr") {
				t.Errorf("%s: %s.%s", at, of, name) // shows C19.3
			}
		})
	})
}
