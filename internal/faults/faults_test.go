package faults

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// ours is the registry of this repository and all marks in it.
func ours(t *testing.T) (*Registry, []Mark) {
	t.Helper()
	r, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	marks, err := Scan(root, r.CTests)
	if err != nil {
		t.Fatal(err)
	}
	return r, marks
}

func TestEveryRightLineIsShownByATest(t *testing.T) {
	r, marks := ours(t)
	n, err := r.Check(marks)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d shown, %d open, %d not applicable", n.Shown, n.Open, n.NotApplicable)
}

func TestTheRegistryHasEveryCase(t *testing.T) {
	r, _ := ours(t)
	got := map[string]int{}
	for _, c := range r.Cases {
		got[c.ID] = len(c.Right)
	}
	// How many right lines each of C01 to C78 has: none may get lost by an edit.
	const lines = "222232322333313333333221132223222232232232222422234333332222322123323333222232"
	for i, n := range lines {
		if id := fmt.Sprintf("C%02d", i+1); got[id] != int(n-'0') {
			t.Errorf("%s has %d right lines, want %c", id, got[id], n)
		}
	}
	want := map[byte]int{'C': len(lines), 'S': 33, 'F': 5}
	for kind, n := range want {
		for i := 1; i <= n; i++ {
			id := fmt.Sprintf("%c%02d", kind, i)
			if kind == 'F' {
				id = fmt.Sprint("F", i)
			}
			if _, ok := got[id]; !ok {
				t.Errorf("%s is missing", id)
			}
			delete(got, id)
		}
	}
	if len(got) != 0 {
		t.Errorf("nobody knows %v", got)
	}
	for _, rule := range r.Rules {
		if _, err := os.Stat(filepath.Join(root, "docs", rule.Where)); err != nil {
			t.Errorf("rule %q: %v", rule.Name, err)
		}
	}
}

func TestTheTableOfFaultsIsUpToDate(t *testing.T) {
	r, marks := ours(t)
	got, err := os.ReadFile(filepath.Join(root, DocFile))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(got), "\n"), strings.Split(string(WriteDoc(r, marks)), "\n")); diff != "" {
		t.Errorf("%s: make generate is due (-there +made):\n%s", DocFile, diff)
	}
}

func TestTestsOfCtestThatMarksNameAreAdded(t *testing.T) {
	_, marks := ours(t)
	added := map[string]string{}
	for _, m := range marks {
		if m.Test.Package != "" {
			continue
		}
		lists := filepath.Join(root, filepath.Dir(m.File), "CMakeLists.txt")
		if added[lists] == "" {
			text, err := os.ReadFile(lists)
			if err != nil {
				t.Fatal(err)
			}
			added[lists] = string(text)
		}
		base := strings.TrimSuffix(filepath.Base(m.File), filepath.Ext(m.File))
		if !strings.Contains(added[lists], m.Test.Name) && !strings.Contains(added[lists], base) {
			t.Errorf("%s:%d: %s is in no test of %s", m.File, m.At, m.Test, lists)
		}
	}
}

// tree makes a small repository of files.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestMarksAreFoundWithTestAndAssertion(t *testing.T) {
	dir := tree(t, map[string]string{
		"a/a_test.go": `package a
func TestOne(t *testing.T) {
	if got != 1 { // shows C01.1, C02.3 and S04.1
	}
	// shows C09.1
	//
	// And why.
	want(2)
}
func FuzzTwo(f *testing.F) {
	f.Fuzz(func(t *testing.T) {
		want(3) // shows F1.1: in a closure
	})
}
`,
		"c/b_test.c":  "int main(void)\n{\n\tCHECK(x); /* shows C70.1 */\n\t/* shows C70.2 */\n\tCHECK(y);\n}\n",
		"c/scene.py":  "assert z  # shows C03.2\n",
		"docs/x.yaml": "shows: [C99.9]\n",
		"dataplane/sim/testdata/one.yaml": `expect:
  - {at: 5s, held: a, shows: [C26.2, C27.1]}
  - at: 6s
    shows: [C29.1]
    engine: D
`,
		"third_party/x_test.go": "package x // shows C01.1 in vain",
	})
	got, err := Scan(dir, map[string][]string{"c/scene.py": {"scene_inline", "scene_pump"}})
	if err != nil {
		t.Fatal(err)
	}
	one, sim := Test{"a", "TestOne"}, Test{"dataplane/sim", "TestEveryCaseComesOutRight/one"}
	want := []Mark{
		{"C01.1", "a/a_test.go", 3, "if got != 1 {", one}, {"C02.3", "a/a_test.go", 3, "if got != 1 {", one}, {"S04.1", "a/a_test.go", 3, "if got != 1 {", one},
		{"C09.1", "a/a_test.go", 8, "want(2)", one},
		{"F1.1", "a/a_test.go", 12, "want(3)", Test{"a", "FuzzTwo"}},
		{"C70.1", "c/b_test.c", 3, "CHECK(x);", Test{"", "b_test"}},
		{"C70.2", "c/b_test.c", 5, "CHECK(y);", Test{"", "b_test"}},
		{"C03.2", "c/scene.py", 1, "assert z", Test{"", "scene_inline"}}, {"C03.2", "c/scene.py", 1, "assert z", Test{"", "scene_pump"}},
		{"C26.2", "dataplane/sim/testdata/one.yaml", 2, "{at: 5s, held: a}", sim}, {"C27.1", "dataplane/sim/testdata/one.yaml", 2, "{at: 5s, held: a}", sim},
		{"C29.1", "dataplane/sim/testdata/one.yaml", 3, "{at: 6s, engine: D}", sim},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("marks (-want +got):\n%s", diff)
	}
}

func TestAMarkThatShowsNothingIsAnError(t *testing.T) {
	for _, tc := range []struct{ name, file, text, want string }{
		{"without a line", "a_test.go", "package a\nfunc TestA() {\n\twant(1) // shows C26\n}\n", "a_test.go:3: // shows C26: a mark names lines"},
		{"with half a list", "a_test.go", "package a\nfunc TestA() {\n\twant(1) // shows C26.1, shows C2\n}\n", "a mark names lines"},
		{"outside of a test", "a_test.go", "package a\n\n// shows C26.1\nvar x = 1\n", "a mark stands inside a test"},
		{"in a helper", "a_test.go", "package a\nfunc helper() {\n\twant(1) // shows C26.1\n}\n", "a mark stands inside a test"},
		{"in a method", "a_test.go", "package a\nfunc (r *rig) TestX() {\n\twant(1) // shows C26.1\n}\n", "a mark stands inside a test"},
		{"in TestMain", "a_test.go", "package a\nfunc TestMain() {\n\twant(1) // shows C26.1\n}\n", "a mark stands inside a test"},
		{"in the code itself", "a.go", "package a\nfunc TestX() {\n\twant(1) // shows C26.1\n}\n", "a mark stands inside a test"},
		{"in C, without a line", "a.c", "/* shows C26 */\n", "a.c:1: /* shows C26 */: a mark names lines"},
		{"in a case, without a line", "dataplane/sim/testdata/a.yaml", "expect:\n  - {shows: [C26]}\n", "a.yaml:2: shows C26: a mark names lines"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			marks, err := Scan(tree(t, map[string]string{tc.file: tc.text}), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(marks) != 0 {
				t.Errorf("%v, %v, want an error with %q", marks, err, tc.want)
			}
		})
	}
}

const small = `
rules: [{name: L1, says: x, where: y}]
cases:
  - {id: C01, title: a, kind: k, rule: L1, right: [first, {says: second, open: later}, {says: third, not_applicable: never}]}
  - {id: S02, title: b, kind: k, not_applicable: not built}
`

func TestWhatIsNotShownIsNamed(t *testing.T) {
	r, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	mark := func(lines ...string) (out []Mark) {
		for _, l := range lines {
			out = append(out, Mark{Line: l, File: "f", At: 7})
		}
		return out
	}
	for _, tc := range []struct {
		name  string
		marks []Mark
		want  []string
		count Counts
	}{
		{"all is well", mark("C01.1", "C01.1"), nil, Counts{1, 1, 2}},
		{"a line that nothing shows", nil, []string{"C01.1 is shown by no test: first"}, Counts{0, 1, 2}},
		{"a line that is open no more", mark("C01.1", "C01.2"), []string{"C01.2 is marked: it is not open any more"}, Counts{1, 0, 2}},
		{"a line that does not apply", mark("C01.1", "C01.3"), []string{"C01.3 is marked, and called not applicable"}, Counts{1, 1, 1}},
		{"a line that there is not", mark("C01.1", "C01.4"), []string{"f:7: shows C01.4, which is no line of docs/faults.yaml"}, Counts{1, 1, 2}},
		{"a case that there is not", mark("C01.1", "S02.1"), []string{"f:7: shows S02.1, which is no line of docs/faults.yaml"}, Counts{1, 1, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := r.Check(tc.marks)
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" || n != tc.count {
				t.Errorf("%+v, want %+v; said (-want +got):\n%s", n, tc.count, diff)
			}
		})
	}
}

func TestARegistryThatCannotBeIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"names the rule":             strings.Replace(small, "rule: L1", "rule: L9", 1),
		"is no id, or stands twice":  strings.Replace(small, "S02", "C01", 1),
		"lacks title":                strings.Replace(small, "title: a, ", "", 1),
		"says nothing":               strings.Replace(small, "says: second, ", "", 1),
		"field wrong not found":      strings.Replace(small, "title: a", "wrong: a", 1),
		"is named twice":             strings.Replace(small, "says: x", "says: ''", 1),
		"is no id, or stands twice ": strings.Replace(small, "C01", "C1234", 1),
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(name)) {
			t.Errorf("%v, want an error with %q", err, name)
		}
	}
}

// What go test -json says of a package whose first test passes, whose second fails, and of one that does not build.
const goLog = `{"Action":"start","Package":"github.com/kvlease/kvlease/a"}
{"Action":"run","Package":"github.com/kvlease/kvlease/a","Test":"TestOne"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestOne","Output":"    a_test.go:3: seed 7\n"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestOne/sub","Output":"    --- SKIP: TestOne/sub (0.00s)\n"}
{"Action":"skip","Package":"github.com/kvlease/kvlease/a","Test":"TestOne/sub"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestOne","Output":"--- PASS: TestOne (0.00s)\n"}
{"Action":"pass","Package":"github.com/kvlease/kvlease/a","Test":"TestOne"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestTwo/sub","Output":"        a_test.go:9: bad\n"}
{"Action":"fail","Package":"github.com/kvlease/kvlease/a","Test":"TestTwo/sub"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestTwo","Output":"--- FAIL: TestTwo (0.00s)\n"}
{"Action":"fail","Package":"github.com/kvlease/kvlease/a","Test":"TestTwo"}
{"Action":"skip","Package":"github.com/kvlease/kvlease/a","Test":"TestThree"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Test":"TestFour","Output":"panic: it ends here\n"}
{"Action":"output","Package":"github.com/kvlease/kvlease/a","Output":"FAIL\tgithub.com/kvlease/kvlease/a\t0.1s\n"}
{"Action":"fail","Package":"github.com/kvlease/kvlease/a"}
{"ImportPath":"b","Action":"build-output","Output":"# b\n"}
not JSON at all
{"Action":"output","Package":"c","Output":"PASS\n"}
{"Action":"output","Package":"c","Output":"ok  \tc\t0.2s\n"}
{"Action":"pass","Package":"c"}
`

func TestTestsArePrintedAsGoTestWould(t *testing.T) {
	var log, out bytes.Buffer
	if err := PrintTests(strings.NewReader(goLog), &log, &out); err != nil {
		t.Fatal(err)
	}
	if log.String() != goLog {
		t.Error("the log is not a copy")
	}
	want := `        a_test.go:9: bad
--- FAIL: TestTwo (0.00s)
panic: it ends here
FAIL	github.com/kvlease/kvlease/a	0.1s
# b
not JSON at all
ok  	c	0.2s
`
	got := strings.ReplaceAll(out.String(), "FAIL\tgithub.com/kvlease/kvlease/a\t0.1s\npanic: it ends here\n", "panic: it ends here\nFAIL\tgithub.com/kvlease/kvlease/a\t0.1s\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
}

const cLog = `Test project /x
      Start  1: args_test
 1/4 Test  #1: args_test ........................   Passed    0.01 sec
 2/4 Test  #2: scene_inline .....................***Skipped   0.00 sec
 3/4 Test  #3: scene_pump .......................***Failed    0.02 sec
 4/4 Test #10: slow .............................***Timeout 120.00 sec
`

func TestANamedTestThatDidNotRunOrPassIsAnError(t *testing.T) {
	o := Outcomes{}
	if err := o.ReadGo(strings.NewReader(goLog)); err != nil {
		t.Fatal(err)
	}
	if err := o.ReadCTest(strings.NewReader(cLog), ""); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		test  Test
		skips []string
		err   string
	}{
		{Test{"a", "TestOne"}, []string{"a TestOne/sub was skipped: C01.1 not shown there"}, ""},
		{Test{"a", "TestOne/sub"}, []string{"a TestOne/sub was skipped: C01.1 not shown"}, ""},
		{Test{"a", "TestTwo"}, nil, "a TestTwo failed: it should show C01.1"},
		{Test{"a", "TestThree"}, []string{"a TestThree was skipped: C01.1 not shown"}, ""},
		{Test{"a", "TestFour"}, nil, "a TestFour did not run: it should show C01.1"},
		{Test{"", "args_test"}, nil, ""},
		{Test{"", "scene_inline"}, []string{"ctest scene_inline was skipped: C01.1 not shown"}, ""},
		{Test{"", "scene_pump"}, nil, "ctest scene_pump failed: it should show C01.1"},
		{Test{"", "slow"}, nil, "ctest slow failed: it should show C01.1"},
		{Test{"", "nobody"}, nil, "ctest nobody did not run: it should show C01.1"},
		{Test{"", "tsan/args_test"}, nil, "ctest tsan/args_test did not run: it should show C01.1"},
	} {
		skips, _, err := o.Ran([]Mark{{Line: "C01.1", Test: tc.test}, {Line: "C01.1", Test: tc.test}})
		if !slices.Equal(skips, tc.skips) || (err == nil) != (tc.err == "") || err != nil && err.Error() != tc.err {
			t.Errorf("%s: %q, %v; want %q, %s", tc.test, skips, err, tc.skips, tc.err)
		}
	}
}

func TestALineWhoseTestsWereAllSkippedIsNotShown(t *testing.T) {
	o := Outcomes{{"a", "TestOne"}: Passed, {"a", "TestTwo"}: Skipped, {"a", "TestThree"}: Skipped}
	_, unshown, err := o.Ran([]Mark{
		{Line: "C02.1", Test: Test{"a", "TestTwo"}}, {Line: "C02.1", Test: Test{"a", "TestThree"}},
		{Line: "C01.1", Test: Test{"a", "TestTwo"}}, {Line: "C01.1", Test: Test{"a", "TestOne"}},
		{Line: "C01.2", Test: Test{"a", "TestThree"}},
	})
	if diff := cmp.Diff([]string{"C01.2", "C02.1"}, unshown); diff != "" || err != nil {
		t.Errorf("error %v, not shown (-want +got):\n%s", err, diff)
	}
}

func TestARunUnderASanitizerIsATestOfItsOwn(t *testing.T) {
	o := Outcomes{}
	if err := o.ReadCTest(strings.NewReader(cLog), "tsan/"); err != nil {
		t.Fatal(err)
	}
	if o[Test{"", "tsan/args_test"}] != Passed || o[Test{"", "tsan/scene_pump"}] != Failed || o[Test{"", "args_test"}] != "" {
		t.Errorf("%v", o)
	}
}

func TestTheTableNamesTestAssertionAndRule(t *testing.T) {
	r, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	doc := string(WriteDoc(r, []Mark{
		{"C01.1", "a/a_test.go", 3, "if a || b {", Test{"a", "TestOne"}},
		{"C01.1", "c/s.c", 4, "CHECK(x);", Test{"", "s_inline"}}, {"C01.1", "c/s.c", 4, "CHECK(x);", Test{"", "s_pump"}},
	}))
	for _, want := range []string{
		"1 are shown, 1 are open, 2 do not apply",
		"| C01.1 | first | L1 | [a TestOne](../a/a_test.go#L3) `if a \\|\\| b {`<br>[ctest s_inline, s_pump](../c/s.c#L4) `CHECK(x);` |",
		"| C01.2 | second | L1 | open: later |",
		"| C01.3 | third |  | not applicable: never |",
		"Not applicable: not built",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("no %q in\n%s", want, doc)
		}
	}
}
