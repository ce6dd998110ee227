package figures

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/internal/require"
)

// of is a summary of 7 rounds.
func of(low, middle, high float64) Summary { return Summary{middle, low, high, high, 7} }

func peer(project string, s Summary) Peer { return Peer{Project: project, Summary: s} }

// row is a row in ns.
func row(what string, ours Summary, peers ...Peer) Row {
	return Row{Section: "s", What: what, Unit: "ns", Ours: ours, Peers: peers}
}

func file(rows ...Row) *File {
	return &File{Date: "d", Commit: "c", Machine: map[string]any{"cpu": "x", "cores": 2.0, "go": "go1"}, Rows: rows}
}

// still is a peer that stays where it is.
var still = peer("vLLM", of(90, 100, 110))

func TestTheRuleTellsAChangeFromNoiseAndFromTheMachine(t *testing.T) {
	many := func(median, p99 float64) Summary { return Summary{median, 1000, 90000, p99, 64} }
	bytes := func(v float64) Row { return Row{Section: "s", What: "r", Unit: "B", Ours: Summary{v, v, v, v, 1}} }
	rate := func(s Summary) Row {
		return Row{Section: "s", What: "r", Unit: "/s", Better: "more", Ours: s, Peers: []Peer{still}}
	}
	for _, tc := range []struct {
		name       string
		was, is    Row
		also, then []Row // further rows of the same section
		want       Verdict
	}{
		{name: "rounds that overlap are noise, however far the medians lie apart", was: row("r", of(9, 10, 20), still), is: row("r", of(19, 30, 40), still), want: Same},
		{name: "rounds that lie apart are none", was: row("r", of(9, 10, 11), still), is: row("r", of(11.5, 12, 13), still), want: Slower},
		{name: "and the other way round", was: row("r", of(11.5, 12, 13), still), is: row("r", of(9, 10, 11), still), want: Faster},
		{name: "less than a twentieth is none", was: row("r", of(9.9, 10, 10.1), still), is: row("r", of(10.2, 10.4, 10.5), still), want: Same},
		{name: "nor is it the other way round", was: row("r", of(10.2, 10.4, 10.5), still), is: row("r", of(9.9, 10, 10.1), still), want: Same},
		{
			name: "a row whose peer moved by the same factor is the machine",
			was:  row("r", of(9, 10, 11), still), is: row("r", of(11.5, 12, 13), peer("vLLM", of(100, 119, 130))), want: Machine,
		},
		{
			name: "a row that moved further than its peer is ours",
			was:  row("r", of(9, 10, 11), still), is: row("r", of(15, 16, 17), peer("vLLM", of(100, 119, 130))), want: Slower,
		},
		{
			name: "a peer that got faster does not make us slower",
			was:  row("r", of(9.9, 10, 10.1), still), is: row("r", of(9.9, 10, 10.1), peer("vLLM", of(70, 85, 90))), want: Same,
		},
		{
			name: "a peer that runs our own code excuses nothing",
			was:  row("r", of(9, 10, 11), still, peer("kvlease inline", of(9, 10, 11))),
			is:   row("r", of(11.5, 12, 13), still, peer("kvlease inline", of(11.5, 12, 13))), want: Slower,
		},
		{
			name: "a peer at the floor of a difference excuses nothing",
			was:  row("r", of(9, 10, 11), still, peer("NIXL", of(1, 1, 5))), is: row("r", of(11.5, 12, 13), still, peer("NIXL", of(1, 4, 5))), want: Slower,
		},
		{
			name: "a peer of another project is not the same peer",
			was:  row("r", of(9, 10, 11), still, peer("NIXL", of(9, 10, 11))), is: row("r", of(11.5, 12, 13), still, peer("etcd", of(90, 100, 110))), want: Slower,
		},
		{
			name: "a row without a peer moves with those of its section",
			was:  row("r", of(9, 10, 11)), is: row("r", of(11.5, 12, 13)),
			also: []Row{row("other", of(9, 10, 11), still)}, then: []Row{row("other", of(9, 10, 11), peer("vLLM", of(100, 119, 130)))}, want: Machine,
		},
		{
			name: "where half of the peers moved by more than a fifth nothing is said",
			was:  row("r", of(9, 10, 11), still), is: row("r", of(29, 30, 31), peer("vLLM", of(100, 130, 140))), want: Unjudged,
		},
		{
			name: "three rounds say nothing",
			was:  row("r", Summary{10, 9, 11, 11, 3}, still), is: row("r", Summary{20, 19, 21, 21, 3}, still), want: Unjudged,
		},
		{name: "of many events the median counts, though the ranges overlap", was: row("r", many(5000, 9000), still), is: row("r", many(9000, 12000), still), want: Slower},
		{name: "within three standard errors it is noise", was: row("r", many(5000, 9000), still), is: row("r", many(7000, 12000), still), want: Same},
		{name: "where more is better, less is slower", was: rate(of(900, 1000, 1100)), is: rate(of(600, 700, 800)), want: Slower},
		{name: "where more is better, more is faster", was: rate(of(600, 700, 800)), is: rate(of(900, 1000, 1100)), want: Faster},
		{
			name: "where more is better, a peer that does less is the machine, too",
			was:  rate(of(900, 1000, 1100)), is: Row{Section: "s", What: "r", Unit: "/s", Better: "more", Ours: of(800, 850, 880), Peers: []Peer{peer("vLLM", of(70, 84, 90))}}, want: Machine,
		},
		{name: "bytes need no rounds", was: bytes(247), is: bytes(256), want: Slower},
		{name: "a hundredth of the bytes is none", was: bytes(247), is: bytes(249), want: Same},
		{name: "a difference below nothing is not judged", was: row("r", of(-5, -1, 3), still), is: row("r", of(9, 10, 11), still), want: Unjudged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := Compare(file(append(tc.also, tc.was)...), file(append(tc.then, tc.is)...))
			if got := c.Rows[len(c.Rows)-1]; got.Verdict != tc.want {
				t.Errorf("%s %s, want %s: %s", got.Verdict, got.Why, tc.want, got.line())
			}
		})
	}
}

func TestOnAnotherMachineOnlyWhatIsBesideAPeerCompares(t *testing.T) {
	half := peer("vLLM", of(45, 50, 55))
	before := file(row("alone", of(9, 10, 11)), row("the same beside its peer", of(9, 10, 11), still), row("behind its peer", of(9, 10, 11), still))
	after := file(row("alone", of(19, 20, 21)), row("the same beside its peer", of(4.5, 5, 5.5), half), row("behind its peer", of(9, 10, 11), half))
	after.Machine["cpu"] = "y"
	after.Machine["go"] = "go2"
	c := Compare(before, after)
	var got []Verdict
	for _, r := range c.Rows {
		got = append(got, r.Verdict)
	}
	if diff := cmp.Diff([]Verdict{Unjudged, Same, Slower}, got); diff != "" {
		t.Errorf("verdicts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"cpu: x, now y", "go: go1, now go2"}, []string(c.Different)); diff != "" || !c.Other {
		t.Errorf("what is different (-want +got):\n%s", diff)
	}
	before.Machine["cpu"] = "y"
	if c = Compare(before, after); c.Other || len(c.Different) != 1 {
		t.Errorf("with another compiler the machine is another one: %v", c.Different)
	}
}

func TestRowsThatAreGoneAndNewAreNamed(t *testing.T) {
	r := func(section, what, unit string) Row {
		return Row{section, what, "", unit, "", nil, nil, false, "", 0, of(1, 2, 3), nil, nil}
	}
	c := Compare(file(r("a", "stays", "ns"), r("a", "goes", "ns"), r("a", "becomes bytes", "ns"), r("b", "not run", "ns")),
		file(r("a", "stays", "ns"), r("a", "comes", "ns"), r("a", "becomes bytes", "B"), r("c", "first run", "ns")))
	want := [][]string{{"a: goes", "a: becomes bytes, in ns"}, {"a: becomes bytes, in B", "a: comes"}, {"b", "c"}}
	got := [][]string{c.Gone, c.Added, c.LeftOut}
	for _, list := range append(want, got...) {
		slices.Sort(list)
	}
	if diff := cmp.Diff(want, got); diff != "" || len(c.Rows) != 1 {
		t.Errorf("%d rows compared; gone, new, sections (-want +got):\n%s", len(c.Rows), diff)
	}
}

// Rounds with the long tail of a busy machine, 7 of them on each side.
func TestTheRuleSeldomErrsAndSeesAThird(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rounds := func(middle float64) Summary {
		var v []float64
		for range 7 {
			v = append(v, middle*math.Exp(math.Abs(rng.NormFloat64())*0.1))
		}
		slices.Sort(v)
		return of(v[0], v[3], v[6])
	}
	const pairs = 5000
	wrong, seen := 0, 0
	for range pairs {
		was := row("r", rounds(100), still)
		if v := Compare(file(was), file(row("r", rounds(100), still))).Rows[0].Verdict; v != Same {
			wrong++
		}
		if v := Compare(file(was), file(row("r", rounds(140), still))).Rows[0].Verdict; v == Slower {
			seen++
		}
	}
	if wrong > pairs/500 {
		t.Errorf("%d of %d rows that did not change are named", wrong, pairs)
	}
	if seen < pairs*8/10 {
		t.Errorf("of %d rows that take 1.4 times as long %d are named", pairs, seen)
	}
}

func TestTheResultsHereAreReadAndLikeThemselves(t *testing.T) {
	paths, err := filepath.Glob("../../bench/results/*.json")
	if err != nil || len(paths) < 5 {
		t.Fatal("the results are not there", err)
	}
	read := 0
	for _, path := range paths {
		f, err := Load(path)
		if strings.Contains(path, "soak") {
			if !errors.Is(err, ErrFile) {
				t.Errorf("%s of another program: %v", path, err)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		read++
		for _, r := range Compare(f, f).Rows {
			if r.Verdict != Same && r.Verdict != Unjudged {
				t.Errorf("%s: %s against itself is %s", path, r.Row, r.Verdict)
			}
		}
	}
	if read == 0 {
		t.Error("no file was read")
	}
}

// A project that rows.py gets one day must be found a place: whether it runs our code decides what it excuses.
func TestEachPeerOfTheRowsIsKnownAsOursOrNot(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		require.Skip(t, "python3", err.Error())
	}
	cmd := exec.Command(python, "-B", "-c", "import json, rows; print(json.dumps(sorted({p[0] for r in rows.rows() for p in r.peers})))")
	cmd.Dir = "../../bench"
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	others := []string{"NIXL", "by hand", "etcd", "kernel", "libzmq", "memcpy", "no connector", "no library", "rigtorp", "vLLM", "vLLM 0.32", "vLLM as it ships"}
	for _, project := range got {
		if slices.Contains(ownProjects, project) == slices.Contains(others, project) {
			t.Errorf("the peer %q stands in one of the lists, ownProjects or the one here", project)
		}
	}
	for _, project := range append(others, ownProjects...) {
		if !slices.Contains(got, project) {
			t.Errorf("no row has a peer %q", project)
		}
	}
}

func TestFilesThatAreNoResultsAreRefusedWithTheReason(t *testing.T) {
	const good = `{"date":"d","commit":"c","machine":{"cpu":"x"},"rows":[{"section":"s","what":"w","unit":"ns","ours":{"median":2,"min":1,"max":3,"p99":3,"n":5}}]}`
	load := func(t *testing.T, text string) error {
		path := filepath.Join(t.TempDir(), "f.json")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Load(path)
		return err
	}
	if err := load(t, good); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, old, new, says string }{
		{"no JSON", good, "{", "unexpected end"},
		{"no number", `"median":2`, `"median":NaN`, "invalid character"},
		{"another shape", `"rows":[`, `"runs":[`, "no rows"},
		{"no commit", `"commit":"c"`, `"commit":""`, "lacks commit"},
		{"a row without a name", `"what":"w"`, `"what":""`, "no name"},
		{"an unknown unit", `"ns"`, `"miles"`, "miles"},
		{"an unknown direction", `"unit":"ns"`, `"unit":"ns","better":"up"`, `better "up"`},
		{"figures out of order", `"max":3`, `"max":1`, "not in order"},
		{"no rounds", `"n":5`, `"n":0`, "n is 0"},
		{"a row twice", `"rows":[`, `"rows":[{"section":"s","what":"w","unit":"ns","ours":{"median":2,"min":1,"max":3,"p99":3,"n":5}},`, "twice"},
		{"a peer without a name", `"what":"w",`, `"what":"w","peers":[{"median":2,"min":1,"max":3,"p99":3,"n":5}],`, "no project"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := load(t, strings.Replace(good, tc.old, tc.new, 1))
			if !errors.Is(err, ErrFile) || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "f.json") {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

func TestFiguresAreWrittenAsInTheTable(t *testing.T) {
	for _, tc := range []struct {
		v    float64
		unit string
		want string
	}{
		{9.863, "ns", "9.86 ns"}, {418e3, "ns", "418 µs"}, {2.08e9, "ns", "2.08 s"}, {247, "B", "247 B"}, {530747, "B", "530,747 B"}, {12249100, "/s", "12,249,100 /s"},
		{3.99, "%", "3.99 %"}, {-1234, "B", "-1,234 B"}, {-123, "B", "-123 B"},
	} {
		if got := Show(tc.v, tc.unit); got != tc.want {
			t.Errorf("%v %s is %q, want %q", tc.v, tc.unit, got, tc.want)
		}
	}
}
