package mutate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const root = "../.."

func TestEachNamedMutationStillApplies(t *testing.T) {
	all, err := LoadNamed(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		t.Run(m.Name, func(t *testing.T) {
			if err := m.Check(root); err != nil {
				t.Error(err)
			}
		})
	}
	if len(all) < 40 {
		t.Errorf("%d mutations are named, want at least 40", len(all))
	}
}

func TestAHandfulOfNamedMutationsIsCaught(t *testing.T) {
	if testing.Short() {
		t.Skip("builds five test binaries; make mutate runs all mutations")
	}
	all, err := LoadNamed(root)
	if err != nil {
		t.Fatal(err)
	}
	var few []Mutation
	for _, m := range all {
		if m.CI {
			few = append(few, m)
		}
	}
	if len(few) < 5 {
		t.Fatalf("%d mutations are marked ci, want 5", len(few))
	}
	r := &Runner{Root: root, Dir: t.TempDir(), Workers: 1, Log: t.Logf}
	got, err := r.Named(context.Background(), few)
	if err != nil {
		t.Fatal(err)
	}
	for i, res := range got {
		if !res.Verdict.Caught() {
			t.Errorf("%s: %s by %s, want caught", res.Name, res.Verdict, few[i].Caught.Test)
		}
	}
}

// tree writes a module with one package, whose tests know what half is and whether last ends.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"p/p.go": `package p

func half(n int) int {
	if n < 0 {
		n = -n
	}
	return n / 2
}

func last(list []int) (i int) {
	for i+1 < len(list) {
		i++
	}
	return i
}
`,
		"p/p_test.go": `package p

import "testing"

func TestHalf(t *testing.T) {
	if half(8) != 4 {
		t.Error("not half")
	}
}

func TestLast(t *testing.T) {
	if last([]int{1, 2, 3}) != 2 {
		t.Error("not the last")
	}
}

func TestNothing(t *testing.T) {}
`,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAMutationIsCaughtOnlyByItsOwnTestAndOnlyIfItCompiles(t *testing.T) {
	dir := tree(t)
	r := &Runner{Root: dir, Dir: t.TempDir(), Workers: 2, Slack: time.Second, Log: t.Logf}
	mutation := func(name, old, instead, test string) Mutation {
		return Mutation{Name: name, Change: Change{File: "p/p.go", Old: old, New: instead}, Caught: Caught{Package: "p", Test: test}}
	}
	all := []Mutation{
		mutation("seen", "n / 2", "n / 3", "TestHalf"),
		mutation("seen by another test only", "n / 2", "n / 3", "TestNothing"),
		mutation("not seen", "n = -n", "n = n", "TestHalf"),
		mutation("broken", "n / 2", "n / m", "TestHalf"),
		mutation("endless", "\t\ti++\n", "", "TestLast"),
		mutation("stuck", "\t\ti++\n", "\t\tselect {}\n", "TestLast"),
	}
	got, err := r.Named(context.Background(), all)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []Verdict{WasCaught, Survived, Survived, Broken, TimedOut, TimedOut} {
		if got[i].Verdict != want {
			t.Errorf("%s: %s, want %s", got[i].Name, got[i].Verdict, want)
		}
	}
	if got[0].Package != "p" || got[0].Test != "TestHalf" {
		t.Errorf("caught by %s of %q, want TestHalf of p", got[0].Test, got[0].Package)
	}
	if got[4].Test != "TestLast" {
		t.Errorf("out of time in %q, want TestLast", got[4].Test)
	}
	if res, err := limited(context.Background(), dir, limit{time.Second, time.Minute}, "sh", "-c", "while :; do :; done"); err != nil ||
		!res.timedOut || res.took.Processor > 30*time.Second {
		t.Errorf("what takes more of the processor than it may: timed out %v after %v, %v", res.timedOut, res.took, err)
	}
	if res, err := limited(context.Background(), dir, limit{time.Minute, time.Minute}, "sh", "-c", "ulimit -d; ulimit -v"); err != nil || string(res.out) != "16777216\n134217728\n" {
		t.Errorf("a test may write to and map %q KiB, %v; want 16 and 128 GiB", res.out, err)
	}
	all[0].Caught.Test = "TestGone"
	if _, err := r.Named(context.Background(), all[:1]); err == nil || !strings.Contains(err.Error(), "TestGone") {
		t.Errorf("a test that is not there: %v, want an error that names it", err)
	}
	all[0] = mutation("no longer applies", "n / 4", "n / 3", "TestHalf")
	if _, err := r.Named(context.Background(), all[:1]); !errors.Is(err, ErrApply) {
		t.Errorf("a text that is not there: %v, want ErrApply", err)
	}
}

func TestADrawnMutationMayTakeWhatAllTestsOfItsPackageTakeAndNotOnlyThoseThatAreNamed(t *testing.T) {
	dir := tree(t)
	r := &Runner{Root: dir, Dir: t.TempDir(), Workers: 2, Slack: time.Second, Log: t.Logf}
	m := Mutation{Name: "seen", Change: Change{File: "p/p.go", Old: "n / 2", New: "n / 3"}, Caught: Caught{Package: "p", Test: "TestHalf"}}
	if _, err := r.Named(context.Background(), []Mutation{m}); err != nil {
		t.Fatal(err)
	}
	if cost, ok := r.Normal["p"]; ok {
		t.Errorf("after one named test all tests of p are said to take %v", cost)
	}
	sites, err := Draw(dir, []string{"p"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Drawn(context.Background(), sites, len(sites), 1)
	if err != nil {
		t.Fatal(err)
	}
	if r.Normal["p"] == (Cost{}) {
		t.Error("what the tests of p take was not measured")
	}
	want := map[string]Verdict{"n = -n": Survived, "i++": TimedOut, "i+1 < len(list)": WasCaught}
	for i := range got {
		if v, ok := want[got[i].Old]; ok && got[i].Verdict != v {
			t.Errorf("%s %s: %s, want %s", got[i].Kind, got[i].Old, got[i].Verdict, v)
		}
		delete(want, got[i].Old)
	}
	if len(got) != len(sites) || len(want) > 0 {
		t.Errorf("%d results of %d sites, without %v", len(got), len(sites), want)
	}
}

func TestNothingIsMutatedWhileTheTestsFailOnTheCodeAsItIs(t *testing.T) {
	dir := tree(t)
	path := filepath.Join(dir, "p", "p_test.go")
	if err := os.WriteFile(path, []byte("package p\n\nimport \"testing\"\n\nfunc TestHalf(t *testing.T) { t.Error(\"no\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &Runner{Root: dir, Dir: t.TempDir(), Workers: 1, Log: t.Logf}
	m := Mutation{Name: "any", Change: Change{File: "p/p.go", Old: "n / 2", New: "n / 3"}, Caught: Caught{Package: "p", Test: "TestHalf"}}
	if got, err := r.Named(context.Background(), []Mutation{m}); err == nil || !strings.Contains(err.Error(), "as it is") {
		t.Errorf("answered %v, %v; want an error", got, err)
	}
}
