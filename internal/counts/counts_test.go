package counts

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/mutate"
	"github.com/kvlease/kvlease/internal/require"
)

// As callgrind writes it: names are numbered where they first occur, the second line behind calls= has the cost of what was called.
const profile = `# callgrind format
version: 1
events: Ir
fl=(1) bench_test.go
fn=(7) example.org/a/lease.BenchmarkRenew.func1
10 500
cfn=(8) example.org/a/lease.(*Table).Renew
calls=3 20
11 600
fn=(8)
20 400
cfn=(9) example.org/a/lease.(*index).find
calls=6 30
+2 200
cfn=(8)
calls=1 20
* 90
fn=(10) main
5 1
cob=(2) lib.so
cfi=(3) table.go
cfn=(8)
calls=1 20
6 10000
cfn=(11) grants
calls=2 7
6 70
fn=(12) example.org/a/lease.(*Table).Renew'2
20 5
cfn=(9)
calls=2 30
-1 50

totals: 11111
`

func TestAProfileGivesTheCostOfAFunctionAndAllThatItCalls(t *testing.T) {
	p, err := ReadCallgrind(strings.NewReader(profile))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, called string
		except       []string
		want         Calls
	}{
		{"by anybody, but not by itself", "lease.(*Table).Renew", nil, Calls{4, 10600}},
		{"but for who prepares", "lease.(*Table).Renew", []string{"main"}, Calls{3, 600}},
		{"but for a closure", "lease.(*Table).Renew", []string{"lease.BenchmarkRenew.func1"}, Calls{1, 10000}},
		{"below itself", "lease.(*index).find", nil, Calls{8, 250}},
		{"of C", "grants", nil, Calls{2, 70}},
		{"nobody's", "lease.(*Table).Ren", nil, Calls{}},
	} {
		if got := p.Of(tc.called, tc.except...); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
	if all, some := p.But("nobody"), p.But("example.org/a/"); all != 906 || some != 1 {
		t.Errorf("of their own %d, without a package %d", all, some)
	}
	if p.Total != 11111 {
		t.Errorf("in all %d", p.Total)
	}
	for _, tc := range []struct{ old, new string }{
		{"events: Ir", "events: Cy"}, {"totals: 11111", ""}, {"calls=3 20", "calls=x 20"}, {"11 600", "11"}, {"11 600", "11 -600"}, {"totals: 11111", "totals: many"},
	} {
		if _, err := ReadCallgrind(strings.NewReader(strings.Replace(profile, tc.old, tc.new, 1))); !errors.Is(err, ErrProfile) {
			t.Errorf("with %q for %q: %v", tc.new, tc.old, err)
		}
	}
}

func TestACountMayGrowByItsToleranceOnly(t *testing.T) {
	chosen := []Item{{Name: "in Go", Per: "id", Tolerance: 0.01}, {Name: "in C", Per: "call", C: true, Tolerance: 0.05}}
	tools := map[string]string{"go": "go1", "cc": "cc1", "valgrind": "v1"}
	was := &File{Commit: "c", Tools: tools, Counts: map[string]float64{"in Go": 1000, "in C": 200}}
	for _, tc := range []struct {
		name      string
		inGo, inC float64
		tool      string // that is another one
		fails     string
		says      string
	}{
		{name: "the same", inGo: 1000, inC: 200, says: "2 of 2 compared"},
		{name: "within the tolerance", inGo: 1009, inC: 209, says: "2 of 2 compared"},
		{name: "in Go beyond it", inGo: 1011, inC: 200, fails: "in Go: 1011 for 1000, +1.1 %, allowed is +1 %", says: "MORE"},
		{name: "in C beyond it", inGo: 1000, inC: 211, fails: "in C: 211.0 for 200.0", says: "MORE"},
		{name: "fewer are no failure, and should be kept", inGo: 500, inC: 200, says: "1 take fewer instructions: make counts RENEW=1"},
		{name: "another C compiler leaves Go", inGo: 2000, inC: 400, tool: "cc", fails: "in Go: 2000", says: "not the same cc: other, committed are counts of cc1"},
		{name: "another valgrind leaves nothing", inGo: 2000, inC: 400, tool: "valgrind", says: "0 of 2 compared"},
	} {
		is := &File{Tools: maps.Clone(tools), Counts: map[string]float64{"in Go": tc.inGo, "in C": tc.inC}}
		if tc.tool != "" {
			is.Tools[tc.tool] = "other"
		}
		var out bytes.Buffer
		err := compare(&out, chosen, chosen, was, is)
		if tc.fails == "" && err != nil || tc.fails != "" && (!errors.Is(err, ErrGrown) || !strings.Contains(err.Error(), tc.fails)) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.fails)
		}
		if !strings.Contains(out.String(), tc.says) {
			t.Errorf("%s: %q is not in\n%s", tc.name, tc.says, &out)
		}
	}
	is := &File{Tools: tools, Counts: map[string]float64{"in Go": 1000, "in C": 200}}
	if err := compare(new(bytes.Buffer), chosen, chosen, &File{Tools: tools, Counts: map[string]float64{"in Go": 1000}}, is); !errors.Is(err, ErrGrown) {
		t.Errorf("what is counted and was never committed: %v", err)
	}
	if err := compare(new(bytes.Buffer), chosen[:1], chosen[:1], was, is); !errors.Is(err, ErrGrown) {
		t.Errorf("what is committed and not counted any more: %v", err)
	}
	if err := compare(new(bytes.Buffer), chosen[:1], chosen, was, is); err != nil {
		t.Errorf("what is not chosen is missed: %v", err)
	}
}

func TestTheCommittedCountsAreThoseOfTheItems(t *testing.T) {
	f, err := Load("../../bench/counts.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, it := range items {
		if f.Counts[it.Name] == 0 {
			t.Errorf("%s is not committed: make counts RENEW=1", it.Name)
		}
		if it.Tolerance <= 0 || it.Tolerance > 0.1 {
			t.Errorf("%s may grow by %v", it.Name, it.Tolerance)
		}
	}
	if len(f.Counts) != len(items) {
		t.Errorf("%d counts are committed, %d are taken", len(f.Counts), len(items))
	}
	for _, tool := range append(goTools, "cc", "libc") {
		if f.Tools[tool] == "" {
			t.Errorf("they do not say with which %s", tool)
		}
	}
}

func TestFilesThatAreNoCountsAreRefused(t *testing.T) {
	for _, text := range []string{"", "{", `{"counts":{"a":1}}`, `{"tools":{"go":"1"}}`, `{"tools":{"go":"1"},"counts":{"a":0}}`, `{"tools":{"go":"1"},"counts":{"a":"b"}}`} {
		path := filepath.Join(t.TempDir(), "counts.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if f, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q is %+v, %v", text, f, err)
		}
	}
}

// Really counted: the function as it is, again, and a copy of it that hashes each id once more.
func TestAHotFunctionThatGotSlowerFails(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	const name = "renew by id"
	count := func(flags ...string) *File {
		r := &Runner{Root: root, Libs: t.TempDir(), Out: t.TempDir(), Flags: flags}
		if err := r.Check(); err != nil {
			require.Skip(t, "valgrind", err.Error())
		}
		n, err := r.Count(context.Background(), Items(name))
		if err != nil {
			t.Fatal(err)
		}
		return &File{Tools: r.Tools(), Counts: n}
	}
	const line = "func (t *Table) RenewIDs(ids [][]byte, agent []byte, now clock.Instant, out []Outcome) (named int) {\n"
	overlay, err := mutate.Overlay(root, t.TempDir(), mutate.Change{
		File: "dataplane/lease/stock.go", Old: line, New: line + "\tfor _, id := range ids {\n\t\tt.touched ^= t.tag(id)\n\t}\n",
	})
	if err != nil {
		t.Fatal(err)
	}
	was := count()
	for name, n := range was.Counts {
		if n < 50 || n > 5000 {
			t.Errorf("%s: %v instructions an id cannot be", name, n)
		}
	}
	for _, tc := range []struct {
		is    *File
		fails bool
	}{{count(), false}, {count("-overlay", overlay), true}} {
		var out bytes.Buffer
		if err := compare(&out, Items(name), Items(name), was, tc.is); errors.Is(err, ErrGrown) != tc.fails {
			t.Errorf("%v, want a failure: %v\n%s", err, tc.fails, &out)
		}
	}
}

func TestCallsThatAreNotThoseOfTheBenchmarkAreNoCount(t *testing.T) {
	p, err := ReadCallgrind(strings.NewReader(profile))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		called string
		calls  uint64
		fails  string
	}{
		{"lease.(*Table).Renew", 3, ""},
		{"lease.(*Table).Renew", 4, "3 calls of lease.(*Table).Renew were seen, not about 4"}, // callgrind has lost one
		{"lease.(*Table).Renewed", 3, "0 calls of lease.(*Table).Renewed were seen"},          // renamed
	} {
		it := bench("renewals", "id", "a/lease", "Renew/^sub$", 1, 2, tc.called, tc.calls, "main")
		n, err := it.from(map[string]*Profile{it.jobs()[0].String(): p})
		if tc.fails == "" && (err != nil || n != 300) || tc.fails != "" && (err == nil || !strings.Contains(err.Error(), tc.fails)) {
			t.Errorf("%v, %v, want %q", n, err, tc.fails)
		}
	}
}

func TestACallInAHundredMayBeginTwice(t *testing.T) {
	for _, tc := range []struct {
		seen, want uint64
		near       bool
	}{{40001, 40000, true}, {40400, 40000, true}, {40401, 40000, false}, {39600, 40000, true}, {39599, 40000, false}, {99, 99, true}, {98, 99, false}, {100, 99, false}, {0, 1, false}} {
		if near(tc.seen, tc.want) != tc.near {
			t.Errorf("%d calls for %d", tc.seen, tc.want)
		}
	}
}

// Callgrind's stack may be wrong once Go has changed goroutines: what a function calls may be counted to another.
func TestOfTwoRunsTheDifferenceCountsWhoeverCalled(t *testing.T) {
	read := func(steps, way, core, below string) *Profile {
		p, err := ReadCallgrind(strings.NewReader("events: Ir\nfn=(1) kvl_step\n1 " + way + "\ncfn=(2) a/core.(*Core).StepAt\ncalls=" + steps + " 1\n1 " + below +
			"\nfn=(2)\n7 " + core + "\ntotals: 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	it := Item{Name: "the way in", program: "p.c", args: []string{"1"}, again: []string{"2"}, called: "core.(*Core).StepAt", per: 100, but: "a/core"}
	first, second := it.jobs()[0].String(), it.jobs()[1].String()
	for _, tc := range []struct {
		steps string
		ok    bool
	}{{"110", true}, {"111", true}, {"112", false}, {"108", false}} {
		n, err := it.from(map[string]*Profile{first: read("10", "7000", "50000", "50000"), second: read(tc.steps, "57000", "1183000", "99")})
		if (err == nil) != tc.ok || tc.ok && n != 500 {
			t.Errorf("%s calls: %v, %v", tc.steps, n, err)
		}
	}
}
