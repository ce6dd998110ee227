package mutate

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `package p

import "fmt"

const most = 8

type T struct{ n int }

func (t *T) String() string { return fmt.Sprint(t.n + 1) }

func (t *T) add(k int) error {
	if k > most &&
		k > 0 {
		return fmt.Errorf("%d is more than %d", k, 100)
	}
	x := k
	t.n += x
	switch {
	case x == 3:
		t.n = 0
	}
	return nil
}
`

func TestSitesAreConditionsStatementsAndNumbersButNoTextsForPeople(t *testing.T) {
	sites, err := sitesIn("p", "p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range sites {
		got = append(got, strings.Join([]string{s.Func, s.Kind, flat(s.Old), flat(s.New)}, " | "))
	}
	want := []string{
		"most | constant +-1 | 8 | ",
		"T.add | statement dropped | t.n += x | ",
		"T.add | condition negated | k > most && k > 0 | !(k > most && k > 0)",
		"T.add | constant +-1 | 0 | ",
		"T.add | condition negated | x == 3 | !(x == 3)",
		"T.add | constant +-1 | 3 | ",
		"T.add | statement dropped | t.n = 0 | ",
		"T.add | constant +-1 | 0 | ",
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sites (-want +got):\n%s", diff)
	}
}

func TestAMutatedFileKeepsItsLines(t *testing.T) {
	sites, err := sitesIn("p", "p/p.go", []byte(source))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Count(source, "\n")
	for _, s := range sites {
		if s.Kind == Constant {
			s.New = "(" + s.Old + "+1)"
		}
		text, err := s.apply([]byte(source))
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n != lines || string(text) == source {
			t.Errorf("%s %q: %d lines, want %d, and another text", s.Kind, s.Old, n, lines)
		}
		if _, err := s.apply([]byte("// moved\n" + source)); err == nil {
			t.Errorf("%s %q applies to a file that has changed", s.Kind, s.Old)
		}
	}
}

func TestTheSeedDrawsTheSameSitesWhateverElseChanges(t *testing.T) {
	draw := func(seed uint64) (names []string) {
		sites, err := Draw(root, []string{"internal/mutate"}, seed)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range sites {
			names = append(names, s.File+" "+s.Func+" "+s.Old+" "+s.New)
		}
		return names
	}
	first := draw(1)
	if diff := cmp.Diff(first, draw(1)); diff != "" {
		t.Errorf("the same seed draws others:\n%s", diff)
	}
	if slices.Equal(first, draw(2)) {
		t.Error("two seeds draw the same order")
	}
	// A site keeps its number when another one comes before it.
	if a, b := hashOf(1, "k", 0), hashOf(1, "k", 0); a != b {
		t.Errorf("%x and %x for one site", a, b)
	}
}
