package faults

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
)

// acts are what tests do, by "package Test", each time that they are played: pass, skip, die (the process ends in the test), hang
// (go test itself is killed), or fail, with what they say.
type acts map[string][]string

// play is a go test over acts. It notes what was asked of it.
func (a acts) play(asked *[]string) Play {
	return func(out io.Writer, args ...string) (bool, error) {
		*asked = append(*asked, strings.Join(args, " "))
		say := func(e event) {
			line, _ := json.Marshal(e)
			fmt.Fprintf(out, "%s\n", line)
		}
		passed := true
		for _, test := range slices.Sorted(maps.Keys(a)) {
			pkg, name, _ := strings.Cut(test, " ")
			if path := module + pkg; args[0] == "-run" && (args[1] != "^"+name+"$" || args[2] != path) || len(a[test]) == 0 {
				continue
			}
			act := a[test][0]
			a[test] = a[test][1:]
			p := event{Package: module + pkg}
			t := event{Package: p.Package, Test: name}
			with := func(e event, action, output string) event { e.Action, e.Output = action, output; return e }
			say(with(p, "start", ""))
			how, said, _ := strings.Cut(act, ": ")
			say(with(t, "output", "    a_test.go:1: "+said+"\n"))
			switch how {
			case "hang":
				return false, errors.New("signal: killed")
			case "die":
				say(with(p, "fail", ""))
				passed = false
			case "fail":
				say(with(t, "fail", ""))
				say(with(p, "output", endsWhole))
				say(with(p, "fail", ""))
				passed = false
			default:
				say(with(t, how, ""))
				say(with(p, "pass", ""))
			}
		}
		return passed, nil
	}
}

func TestWhatFailedIsPlayedOnceMoreWhereThatCanExcuseIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		acts  acts
		again int // plays after the first
		held  string
		err   string
	}{
		{name: "all pass", acts: acts{"a TestOne": {"pass"}, "b TestTwo": {"skip"}}},
		{
			name: "one holds the second time",
			acts: acts{"a TestOne": {"fail: too late", "pass"}, "b TestTwo": {"pass"}}, again: 1,
			held: "1 test held only when played once more: a TestOne",
		},
		{
			name: "three hold the second time",
			acts: acts{"a TestOne": {"fail", "pass"}, "a/b TestTwo": {"fail", "pass"}, "c TestThree": {"fail", "pass"}}, again: 3,
			held: "3 tests held only when played once more: a TestOne, a/b TestTwo, c TestThree",
		},
		{
			name: "four are too many",
			acts: acts{"a TestOne": {"fail", "pass"}, "b TestTwo": {"fail", "pass"}, "c TestThree": {"fail", "pass"}, "d TestFour": {"fail", "pass"}},
			err:  "4 tests failed: a TestOne, b TestTwo, c TestThree, d TestFour: too many to be played once more",
		},
		{
			name: "one fails twice",
			acts: acts{"a TestOne": {"fail", "fail"}}, again: 1,
			err: "1 test failed: a TestOne, also when played once more",
		},
		{
			name: "of two one fails twice",
			acts: acts{"a TestOne": {"fail", "fail"}, "b TestTwo": {"fail", "pass"}}, again: 2,
			held: "1 test held only when played once more: b TestTwo",
			err:  "1 test failed: a TestOne, also when played once more",
		},
		{
			name: "what is skipped the second time has shown nothing",
			acts: acts{"a TestOne": {"fail", "skip"}}, again: 1,
			err: "1 test failed: a TestOne, also when played once more",
		},
		{
			name: "what is not there the second time has shown nothing",
			acts: acts{"a TestOne": {"fail"}}, again: 1,
			err: "1 test failed: a TestOne, also when played once more",
		},
		{
			name: "a process that dies the second time",
			acts: acts{"a TestOne": {"fail", "die"}}, again: 1,
			err: "1 test failed: a TestOne, also when played once more",
		},
		{
			name: "a process that dies the first time",
			acts: acts{"a TestOne": {"die", "pass"}, "b TestTwo": {"fail", "pass"}},
			err:  "2 tests failed: a, b TestTwo; none is played once more: a: it was not built, or ended inside its tests",
		},
		{
			name: "a data race",
			acts: acts{"a TestOne": {"fail: WARNING: DATA RACE", "pass"}},
			err:  "1 test failed: a TestOne; none is played once more: a TestOne: a process broke or raced",
		},
		{
			name: "a process that the test has started panics",
			acts: acts{"a TestOne": {"fail: panic: index out of range", "pass"}},
			err:  "1 test failed: a TestOne; none is played once more: a TestOne: a process broke or raced",
		},
		{
			name: "wrong data",
			acts: acts{"a TestOne": {"fail: 7 words are wrong", "pass"}},
			err:  "1 test failed: a TestOne; none is played once more: a TestOne: data was wrong",
		},
		{
			name: "a seed that the second play would not have",
			acts: acts{"a TestOne": {"fail: KVLEASE_SEED=7", "pass"}},
			err:  "1 test failed: a TestOne; none is played once more: a TestOne: it draws, and would draw something else",
		},
		{
			name: "go test is killed after a test that could be excused",
			acts: acts{"a TestOne": {"fail", "pass"}, "b TestTwo": {"hang"}},
			err:  "signal: killed",
		},
		{
			name: "go test is killed the second time",
			acts: acts{"a TestOne": {"fail", "hang"}}, again: 1,
			err: "signal: killed\n1 test failed: a TestOne, also when played once more",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var asked []string
			var log, out bytes.Buffer
			err := PlayTests(tc.acts.play(&asked), []string{"./..."}, &log, &out)
			if got := fmt.Sprint(err); err != nil && got != tc.err || err == nil && tc.err != "" {
				t.Errorf("error %q, want %q", got, tc.err)
			}
			if len(asked) != 1+tc.again || asked[0] != "./..." {
				t.Errorf("asked of go test: %q, want %d plays after the first", asked, tc.again)
			}
			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; tc.held != "" && last != tc.held || tc.held == "" && strings.Contains(out.String(), "held only") {
				t.Errorf("ends with %q, want %q", last, tc.held)
			}
		})
	}
}

// Both plays are in the log: ran counts the second, said tells the first.
func TestBothPlaysAreInTheLog(t *testing.T) {
	var asked []string
	var log bytes.Buffer
	a := acts{"a TestOne": {"fail: too late", "pass: in time"}, "a TestTwo": {"fail: never", "fail: never ever"}, "b TestThree": {"pass"}}
	if err := PlayTests(a.play(&asked), []string{"./..."}, &log, io.Discard); err == nil {
		t.Fatal("a test that failed twice passes")
	}
	o := Outcomes{}
	if err := o.ReadGo(bytes.NewReader(log.Bytes())); err != nil {
		t.Fatal(err)
	}
	for test, want := range map[string]Outcome{"TestOne": Passed, "TestTwo": Failed} {
		if got := o[Test{"a", test}]; got != want {
			t.Errorf("%s %s, want %s", test, got, want)
		}
	}
	failures, err := GoFailures(&log)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	Tell(&out, failures)
	const want = `
a TestOne failed, and held when it was played once more; lines 1 to 1 of 1:
      a_test.go:1: too late

a TestTwo failed; lines 1 to 1 of 1:
      a_test.go:1: never

a TestTwo failed; lines 1 to 1 of 1:
      a_test.go:1: never ever
`
	if got := out.String(); got != want {
		t.Errorf("told %s\nwant %s", got, want)
	}
}

func TestAGoTestThatSaysOtherThanItsLogIsAnError(t *testing.T) {
	for _, passed := range []bool{false, true} {
		name, log := "TestOne", map[bool]string{false: "pass", true: "fail"}[passed]
		play := func(out io.Writer, args ...string) (bool, error) {
			_, err := acts{"a " + name: {log}}.play(new([]string))(out, args...)
			return passed, err
		}
		if err := PlayTests(play, []string{"./..."}, io.Discard, io.Discard); err == nil {
			t.Errorf("go test says %v and its log %s, and that is no error", passed, log)
		}
	}
}
