package sim

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const wellFormed = `name: x
span: 60s
engines: [{id: P}, {id: D, known: [P]}]
actions:
  - {at: 0s, engine: P, do: grant, req: a, blocks: 1}
  - {at: 1s, engine: D, do: track, req: a, peer: P}
expect:
  - {at: 2s, held: a}
`

func TestAMistakeInACaseFileNamesFileLineAndRemedy(t *testing.T) {
	if _, err := ParseCase("x.yaml", []byte(wellFormed)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, old, with, want string }{
		{"an unknown key", "span: 60s", "spam: 60s", `x.yaml:2: a case file has no key "spam"; is it span?`},
		{"a key that is like no other", "name: x", "qqqqqqqq: x", `x.yaml:1: a case file has no key "qqqqqqqq"; there are text, covers`},
		{"an unknown key of an action", "req: a, blocks", "rec: a, blocks", `x.yaml:5: an action has no key "rec"; is it req?`},
		{"an unknown key of an engine", "known: [P]", "knows: [P]", `x.yaml:3: an engine has no key "knows"; is it known?`},
		{"a time without a unit", "span: 60s", "span: 60", `x.yaml:2: span is 60, which has no unit: write 60s`},
		{"a time that is none", "at: 1s", "at: soon", `x.yaml:6: at of an action is "soon", want a time like 5s`},
		{"a key twice", "span: 60s", "span: 60s\nspan: 70s", `x.yaml:3: a case file has span twice`},
		{"a key without a value", "span: 60s", "span:", `x.yaml:2: span has no value`},
		{"a list where one value is wanted", "span: 60s", "span: [60s]", `x.yaml:2: span is a list`},
		{"a value where a list is wanted", "engines: [{id: P}, {id: D, known: [P]}]", "engines: P", `x.yaml:3: engines is "P", want a list`},
		{"a word where a number is wanted", "blocks: 1", "blocks: one", `x.yaml:5: blocks of an action is "one", want a whole number`},
		{"a negative number of blocks", "blocks: 1", "blocks: -1", `x.yaml:5: blocks of an action is "-1", want a whole number from 0`},
		{"an action that there is not", "do: grant", "do: grand", `x.yaml:5: do is "grand", which is no action; is it grant?`},
		{"an engine that there is not", "engine: D", "engine: E", `x.yaml:6: track at engine "E", which is none; there are P, D`},
		{"a peer that there is not", "peer: P}", "peer: Q}", `x.yaml:6: track with peer "Q", which is no engine`},
		{"a peer that is missing", ", peer: P}", "}", `x.yaml:6: track with whom? say peer`},
		{"a request that nobody granted", "do: track, req: a", "do: track, req: b", `x.yaml:6: track of "b", which nobody has granted or expected before`},
		{"an action behind the span", "at: 1s", "at: 61s", `x.yaml:6: track at 1m1s: actions happen from 0s to the span, 1m0s`},
		{"a range that is none", "req: a, blocks", "req: r9..r1, blocks", `x.yaml:5: req of an action: "r9..r1" is no range`},
		{"an expectation about nothing", "{at: 2s, held: a}", "{at: 2s}", `x.yaml:8: an expectation is about one thing, this one is about 0`},
		{"an expectation about two things", "held: a}", "held: a, freed: a}", `x.yaml:8: an expectation is about one thing, this one is about 2`},
		{"an expectation at no time", "{at: 2s, held: a}", "{held: a}", `x.yaml:8: held holds at one kind of time, this one has 0`},
		{"an expectation at two times", "{at: 2s, ", "{at: 2s, by: 3s, ", `x.yaml:8: held holds at one kind of time, this one has 2`},
		{"an expectation about what is never granted", "held: a}", "held: c}", `x.yaml:8: nobody grants "c"`},
		{"an expectation about what is not tracked", "held: a}", "tracked: a, engine: P}", `x.yaml:8: engine P tracks no "a"`},
		{"an expectation behind the span", "{at: 2s, ", "{at: 2h, ", `x.yaml:8: 2h0m0s is behind the span`},
		{"a read without an outcome", "held: a}", "read: a, engine: D}", `x.yaml:8: with which outcome? say one of ok, stale`},
		{"an outcome that there is not", "held: a}", "read: a, engine: D, outcome: okay}", `x.yaml:8: no read has the outcome "okay"; is it ok?`},
		{"a reason that there is not", "held: a}", "freed: a, reason: expred}", `x.yaml:8: nothing is freed for the reason "expred"; is it expired?`},
		{"a counter that there is not", "held: a}", "engine: P, counter: lease_grant, is: 1}", `x.yaml:8: there is no counter "lease_grant"; is it lease_grants?`},
		{"a count that is not said", "held: a}", "engine: P, event: freed}", `x.yaml:8: event how often?`},
		{"no span", "span: 60s\n", "", `x.yaml:1: there is no span`},
		{"more actions than anybody wants", "at: 0s, engine: P, do: grant, req: a,", "at: 0s, every: 1ns, until: 60s, engine: P, do: grant, req: a,", `x.yaml:5: more than 200000 actions`},
		{"times without end", "at: 0s, engine: P, do: grant, req: a,", "at: 0s, every: 1ns, until: 2562047h, engine: P, do: grant, req: a,", `x.yaml:5: times are from 0s to 10000h0m0s`},
		{"a negative time", "at: 0s", "at: -1s", `x.yaml:5: times are from 0s to 10000h0m0s`},
		{"no engines", "engines: [{id: P}, {id: D, known: [P]}]", "engines: []", `x.yaml:1: there are no engines`},
		{"two engines with one id", "{id: D, known: [P]}", "{id: P}", `x.yaml:3: an engine with id "P": each needs its own`},
		{"a negative span", "span: 60s", "span: -60s", `x.yaml:2: the span is -1m0s`},
		{"a cache that no machine holds", "{id: P}", "{id: P, blocks: 100000000}", `x.yaml:3: engine "P": blocks is 100000000, at most 65536`},
		{"a lease that no engine takes", "{id: P}", "{id: P, lease: 1ns}", `x.yaml:3: engine "P": lease is 1ns, allowed: 1s to 48h0m0s`},
		{"a negative time-out", "{id: P}", "{id: P, read_timeout: -1s}", `x.yaml:3: engine "P": read_timeout is -1s`},
		{"more ranks than there may be", "{id: P}", "{id: P, host: true, tp: 4294967295, pp: 4294967295}", `x.yaml:3: engine "P" has 4294967295 x 4294967295 ranks, at most 64`},
		{"a clock that runs backwards", "{id: P}", "{id: P, drift: -2000000}", `x.yaml:3: engine "P": drift is -2000000`},
		{"a clock before its time", "{id: P}", "{id: P, offset: -9000h}", `x.yaml:3: engine "P": offset is -9000h0m0s`},
		{"a share of a carrier above 1", "{id: P}", "{id: P, host: true, carrier: delta, carrier_loss: 7}", `x.yaml:3: engine "P": carrier_loss is 7, a share is from 0 to 1`},
		{"a share above 1", "span: 60s", "span: 60s\nlink: {loss: 50}", `x.yaml:3: loss of a link is 50, a share is from 0 to 1`},
		{"a negative delay", "do: track,", "do: track, link: {delay: -1s},", `x.yaml:6: delay of a link is -1s, allowed: 0s to 10000h0m0s`},
		{"a negative rate", "span: 60s", "span: 60s\nlink: {rate: -1}", `x.yaml:3: rate of a link is -1`},
		{"a counter of a host that there is not", "held: a}", "engine: P, counter: host_steps, is: 0}", `x.yaml:8: engine P has no host`},
		{"a message that there is not", "held: a}", "engine: D, sent: renw, is: 1}", `x.yaml:8: no message is called "renw"; is it renew?`},
		{"ranks that the heads cannot be shared out to", "{id: P}, ", "{id: P, host: true, tp: 3}, ", `x.yaml:3: engine "P": tp is 3, which the model's 4 KV heads cannot be shared out to`},
		{"more stages than layers", "{id: P}, ", "{id: P, host: true, pp: 64}, ", `x.yaml:3: engine "P": pp is 64, and the model has 2 layers: want 1 or 2`},
		{"runs without end", "span: 60s", "span: 60s\nseeds: 999999999999", `x.yaml:3: seeds is 999999999999, want how many runs, 1 to 1000000`},
		{"copies without end", "do: grant, req: a, blocks: 1", "do: bytes, peer: D, data: x, n: 4000000000", `x.yaml:5: n is 4000000000, allowed: 0 to 10000`},
		{"a negative length", "do: grant, req: a, blocks: 1", "do: stop, for: -1s", `x.yaml:5: for is -1s, allowed: 0s to 10000h0m0s`},
		{"a way to answer that there is not", "do: grant, req: a, blocks: 1", "do: handshake, how: refuse", `x.yaml:5: how is "refuse", allowed: refused, never, slow, other; is it refused?`},
		{"a list that stands for another", "engines: [{id: P}, {id: D, known: [P]}]\nactions:\n  - {at: 0s, engine: P, do: grant, req: a, blocks: 1}\n  - {at: 1s, engine: D, do: track, req: a, peer: P}", "engines: &e [{id: P}]\nactions: *e", `x.yaml:3: an action without do`},
		{"what is no YAML", "span: 60s", "span: [60s", `x.yaml: `},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !strings.Contains(wellFormed, tc.old) {
				t.Fatalf("the file has no %q", tc.old)
			}
			_, err := ParseCase("x.yaml", []byte(strings.Replace(wellFormed, tc.old, tc.with, 1)))
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("error %v\nwant %s", err, tc.want)
			}
		})
	}
	stock := strings.NewReplacer("{id: P}", "{id: P, stock: true}", "held: a}", "engine: P, counter: lease_grants, is: 0}").Replace(wellFormed)
	if _, err := ParseCase("x.yaml", []byte(stock)); err == nil || err.Error() != "x.yaml:8: engine P is a stock one, which has no counter but free_blocks" {
		t.Errorf("a counter of a stock engine: error %v", err)
	}
	for name, text := range map[string]string{"nothing": "", "two documents": wellFormed + "---\n" + wellFormed, "a list": "- a\n"} {
		if _, err := ParseCase("x.yaml", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), "x.yaml:") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestAnEntryMayStandForManyActions(t *testing.T) {
	for _, tc := range []struct {
		entry string
		want  []string
	}{
		{"{at: 1s, engine: P, do: grant, req: a..c}", []string{"1s grant a", "1s grant b", "1s grant c"}},
		{"{at: 1s, engine: P, do: grant, req: [r8..r10, x]}", []string{"1s grant r8", "1s grant r9", "1s grant r10", "1s grant x"}},
		{"{at: 1s, every: 2s, engine: P, do: grant, req: a..c}", []string{"1s grant a", "3s grant b", "5s grant c"}},
		{"{at: 1s, every: 2s, until: 5s, engine: P, do: pressure}", []string{"1s pressure ", "3s pressure ", "5s pressure "}},
	} {
		c, err := ParseCase("x.yaml", []byte("span: 60s\nengines: [{id: P}]\nactions:\n  - "+tc.entry+"\n"))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range c.Actions {
			got = append(got, fmt.Sprint(a.At, " ", a.Do, " ", a.Req))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.entry, diff)
		}
	}
}

// What is printed is read back as the same: a schedule that was found by chance can be kept as a file.
func TestAPrintedCaseIsTheSameCase(t *testing.T) {
	same := func(name string, c *Case) {
		text := c.Print()
		back, err := ParseCase(name, text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		again := back.Print()
		if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(string(again), "\n")); diff != "" {
			t.Errorf("%s (-printed +printed again):\n%s", name, diff)
		}
		if !reflect.DeepEqual(bare(c), bare(back)) {
			t.Errorf("%s: another case was read from\n%s", name, text)
		}
	}
	for _, file := range caseFiles(t) {
		c, err := LoadCase(file)
		if err != nil {
			t.Fatal(err)
		}
		same(filepath.Base(file), c)
	}
	for seed := range uint64(30) {
		same(fmt.Sprint("seed ", seed), &Case{Schedule: Random(seed, nil)})
	}
	same("bytes", &Case{Schedule: Schedule{Name: "a: b # c", Span: 1, Engines: []Engine{{ID: "1"}}, Actions: []Action{
		{Engine: "1", Do: Bytes, Peer: "1", Data: "\xff\x00\xfe"}, {Engine: "1", Do: Bytes, Peer: "1", Data: "plain \"text\" {}"},
		{Engine: "1", Do: Kill, Rank: AllRanks}, {Engine: "1", Do: Stop, Rank: HostOnly, For: 1},
		{Engine: "1", Do: Grant, Req: "yes", ID: "0x1", Blocks: 1}, {Engine: "1", Do: SetLink, Peer: "1", Link: &Link{Loss: 0.125}},
	}}, Text: "two\nlines\n"})
}

// bare is a case without what its file decides.
func bare(c *Case) Case {
	p := *c
	p.File = ""
	p.Expect = nil
	for _, x := range c.Expect {
		x.line = 0
		p.Expect = append(p.Expect, x)
	}
	p.Actions = nil
	for _, a := range c.Actions {
		if len(a.Reqs) == 0 {
			a.Reqs = nil
		}
		p.Actions = append(p.Actions, a)
	}
	return p
}

func caseFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no case files: %v", err)
	}
	return files
}

func TestCasesAreBuiltInUnderTheNameOfTheirFile(t *testing.T) {
	names := BuiltIn()
	if len(names) != len(caseFiles(t)) {
		t.Errorf("%d cases are built in, there are %d files", len(names), len(caseFiles(t)))
	}
	for _, name := range names {
		if c, err := LoadCase(name); err != nil || len(c.Expect) == 0 || c.Name == "" || len(c.Covers) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := LoadCase("C00"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a case that there is not: %v", err)
	}
}

// Every verb of the list in schedule.go can stand in a case file.
func TestEveryVerbIsKnown(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "schedule.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		v, ok := node.(*ast.ValueSpec)
		if !ok || v.Type == nil || fmt.Sprint(v.Type) != "Verb" {
			return true
		}
		n++
		word, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if _, ok := verbs[Verb(word)]; !ok || err != nil {
			t.Errorf("%s: there is no verb %s", v.Names[0], word)
		}
		return true
	})
	if n != len(verbs) {
		t.Errorf("%d verbs in schedule.go, %d in the list", n, len(verbs))
	}
}

// Every key of a case file stands in its description.
func TestTheDescriptionOfCaseFilesNamesEveryKey(t *testing.T) {
	text, err := os.ReadFile("../../docs/case-files.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{fileCase{}, fileAction{}, Expectation{}, Engine{}, Link{}} {
		for _, f := range keysOf(reflect.TypeOf(v)) {
			if !strings.Contains(string(text), "`"+f.key+"`") {
				t.Errorf("%T: %s is not described", v, f.key)
			}
		}
	}
	for _, verb := range verbNames() {
		if !strings.Contains(string(text), "`"+verb+"`") {
			t.Errorf("the action %s is not described", verb)
		}
	}
}

func FuzzParseCase(f *testing.F) {
	f.Add([]byte(wellFormed))
	f.Add([]byte("span: 1s\nengines: [{id: P}]\nactions:\n  - {at: 0s, engine: P, do: grant, req: r1..r3, every: 1ms}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("span: 1s\nengines: &e [{id: P}]\nactions: *e\n"))
	f.Add([]byte("span: 1s\nengines: [{id: P}]\nactions:\n  - {at: 0s, engine: P, do: pressure, every: 1ns, until: 2562047h, req: [a, b]}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseCase("x.yaml", data)
		if err != nil {
			return
		}
		back, err := ParseCase("x.yaml", c.Print())
		if err != nil {
			t.Fatalf("%v\n%s", err, c.Print())
		}
		if !reflect.DeepEqual(c.Actions, back.Actions) {
			t.Errorf("actions %+v, printed and read %+v", c.Actions, back.Actions)
		}
	})
}
