package edges

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"
)

// edgeName is a letter and one digit. L1 to L9 are rules of a lease, and O1 to O3 levels of a compiler.
var edgeName = regexp.MustCompile(`\b[A-KMNP-Z][0-9]\b`)

// sources are the files in which edges are named, by what they are written in.
func sources(t *testing.T) map[string][]string {
	const root = "../../.."
	named := map[string][]string{}
	for _, dir := range []string{"ringbuf", "dataplane", "cmd/libkvlease", "cnixl"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() {
				switch d.Name() {
				case "test", "ctest", "testdata", "sim", "models":
					return filepath.SkipDir
				}
				return nil
			}
			ext := filepath.Ext(path)
			if ext != ".go" && ext != ".c" && ext != ".h" || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, line := range strings.Split(string(text), "\n") {
				at := strings.Index(line, "//")
				if ext != ".go" {
					if at = strings.Index(line, "/*"); at < 0 && strings.HasPrefix(strings.TrimSpace(line), "*") {
						at = 0
					}
				}
				if at < 0 {
					continue
				}
				for _, name := range edgeName.FindAllString(line[at:], -1) {
					where := filepath.ToSlash(strings.TrimPrefix(path, root+"/"))
					if !slices.Contains(named[name], where) {
						named[name] = append(named[name], where)
					}
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return named
}

func TestTheScenesKnowTheEdgesOfTheSourcesAndNoOthers(t *testing.T) {
	known := map[string]bool{}
	for _, s := range Scenes() {
		for _, site := range s.Sites {
			known[site.Edge] = true
		}
	}
	named := sources(t)
	for name, files := range named {
		if !known[name] {
			t.Errorf("%s of %v is in no scene", name, files)
		}
	}
	for name := range known {
		if named[name] == nil {
			t.Errorf("%s is an edge of a scene and of no source", name)
		}
	}
}

// Edges whose two halves are written in two languages stand in both.
func TestEdgesBetweenLanguagesAreNamedInBoth(t *testing.T) {
	named := sources(t)
	for name, files := range map[string][]string{
		"P1": {"ringbuf/producer.go", "ringbuf/include/kvlease/ring.h", "ringbuf/doc.go"},
		"C1": {"ringbuf/consumer.go", "ringbuf/include/kvlease/ring.h", "ringbuf/doc.go"},
		"P2": {"ringbuf/producer.go", "ringbuf/include/kvlease/ring.h", "ringbuf/doc.go", "cmd/libkvlease/src/producer.c"},
		"C2": {"ringbuf/consumer.go", "ringbuf/include/kvlease/ring.h", "ringbuf/doc.go"},
		"F1": {"dataplane/record/freelist.go", "cmd/libkvlease/src/reader.c"},
		"F2": {"dataplane/record/freelist.go", "cmd/libkvlease/src/reader.c", "cmd/libkvlease/src/owner.c"},
		"W1": {"cmd/libkvlease/src/producer.c", "dataplane/host/host.go", "dataplane/stream/end.go"},
		"W2": {"dataplane/core/pump.go", "dataplane/stream/end.go", "cmd/libkvlease/src/waitfd.c"},
		"E1": {"dataplane/record/era.go"},
		"E2": {"dataplane/record/era.go", "cmd/libkvlease/src/internal.h"},
		"S1": {"dataplane/core/core.go"},
		"S2": {"cmd/libkvlease/src/events.c", "cmd/libkvlease/src/fence.c"},
		"B1": {"dataplane/group/group.go"},
		"B2": {"cmd/libkvlease/src/events.c", "dataplane/host/poison.go"},
		"G1": {"cmd/libkvlease/src/owner.c"},
		"G2": {"cmd/libkvlease/src/events.c", "cmd/libkvlease/src/fence.c"},
	} {
		for _, file := range files {
			if !slices.Contains(named[name], file) {
				sort.Strings(named[name])
				t.Errorf("%s is not named in %s, but in %v", name, file, named[name])
			}
		}
	}
}

// A half that an atomic operation carries stands beside one: a comment that names an edge over a line without any is about something
// that has moved. Comments over a whole function are left out.
func TestEachNamedHalfStandsBesideAnAtomicOperation(t *testing.T) {
	atomic := regexp.MustCompile(`(?m)atomic|KVL_(RING_)?(LOAD|STORE)|\.(Load|Store|Add|Swap|CompareAndSwap)\(|Raise|func |^static |^enum`)
	colon := regexp.MustCompile(`(//|/\*) ([A-KMNP-Z][0-9])(, [A-KMNP-Z][0-9])*: `)
	seen := 0
	for name, files := range sources(t) {
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join("../../..", file))
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(string(text), "\n")
			for i, line := range lines {
				if m := colon.FindStringSubmatch(line); m == nil || m[2] != name {
					continue
				}
				seen++
				near := strings.Join(lines[max(i-1, 0):min(i+5, len(lines))], "\n")
				if !atomic.MatchString(near) {
					t.Errorf("%s:%d: %s stands beside no atomic operation", file, i+1, name)
				}
			}
		}
	}
	if seen < 20 {
		t.Errorf("%d halves found: the pattern has gone blind", seen)
	}
}
