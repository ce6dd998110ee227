package faults

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatFailedIsFoundWithItsOwnWords(t *testing.T) {
	goFailures := func(log string) ([]Failure, error) { return GoFailures(strings.NewReader(log)) }
	for _, tc := range []struct {
		name, log string
		read      func(log string) ([]Failure, error)
		want      []string // "name: its lines"
	}{
		{
			name: "one test fails, one dies with its process, one does not build", read: goFailures,
			log: goLog + `{"ImportPath":"github.com/kvlease/kvlease/d [d.test]","Action":"build-output","Output":"d/d_test.go:3:32: undefined: x\n"}
{"Action":"start","Package":"github.com/kvlease/kvlease/d"}
{"Action":"output","Package":"github.com/kvlease/kvlease/d","Output":"FAIL\tgithub.com/kvlease/kvlease/d [build failed]\n"}
{"Action":"fail","Package":"github.com/kvlease/kvlease/d","FailedBuild":"github.com/kvlease/kvlease/d [d.test]"}
`,
			want: []string{
				"a TestTwo:         a_test.go:9: bad|--- FAIL: TestTwo (0.00s)",
				"a: panic: it ends here|FAIL	github.com/kvlease/kvlease/a	0.1s",
				"d: d/d_test.go:3:32: undefined: x|FAIL	github.com/kvlease/kvlease/d [build failed]",
			},
		},
		{
			name: "all tests pass and the process says that it has failed", read: goFailures,
			log: `{"Action":"start","Package":"a"}
{"Action":"pass","Package":"a","Test":"TestOne"}
{"Action":"output","Package":"a","Output":"a file was left behind\n"}
{"Action":"fail","Package":"a"}
`,
			want: []string{"a: a file was left behind"},
		},
		{
			name: "a log that ends inside a package", read: goFailures,
			log: `{"Action":"start","Package":"a"}
{"Action":"output","Package":"a","Test":"TestOne","Output":"began\n"}
`,
			want: []string{"a: began"},
		},
		{
			name: "ctest", read: func(log string) ([]Failure, error) { return CTestFailures(strings.NewReader(log), "tsan/") },
			log: `      Start  1: one
 1/4 Test  #1: one ..............................***Failed    0.02 sec
CHECK failed

      Start  2: two
 2/4 Test  #2: two ..............................   Passed    0.01 sec
      Start  3: three
 3/4 Test  #3: three ............................***Timeout 120.00 sec
it stands

50% tests passed, 2 tests failed out of 4
`,
			want: []string{"ctest tsan/one: CHECK failed|", "ctest tsan/three: it stands|"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			failures, err := tc.read(tc.log)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range failures {
				got = append(got, f.String()+": "+strings.Join(f.Said, "|"))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("failed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTheLastLinesAreToldOrThoseFromWhereItBroke(t *testing.T) {
	lines := func(n int, last ...string) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprint("line ", i+1))
		}
		return append(all, last...)
	}
	for _, tc := range []struct {
		name        string
		said        []string
		title       string
		first, last string
	}{
		{"nothing", nil, "a TestOne failed; lines 0 to 0 of 0:", "", ""},
		{"few", lines(2), "a TestOne failed; lines 1 to 2 of 2:", "  line 1", "  line 2"},
		{"many", lines(100), "a TestOne failed; lines 71 to 100 of 100:", "  line 71", "  line 100"},
		{"it broke at the end", append(lines(20), append([]string{"panic: it ends here"}, lines(5)...)...), "a TestOne failed; lines 1 to 26 of 26:", "  line 1", "  line 5"},
		{
			"goroutines after it broke", append(lines(50), append([]string{"panic: it ends here"}, lines(50)...)...),
			"a TestOne failed; lines 51 to 80 of 101:", "  panic: it ends here", "  line 29",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out bytes.Buffer
			Tell(&out, []Failure{{Test: Test{"a", "TestOne"}, Said: tc.said}})
			got := strings.Split(strings.Trim(out.String(), "\n"), "\n")
			if got[0] != tc.title || len(got) > 1 && (got[1] != tc.first || got[len(got)-1] != tc.last) || len(got) > 1+saidMax {
				t.Errorf("told %d lines:\n%s", len(got), out.String())
			}
		})
	}
}
