package tracing

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/dataplane/watch"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/internal/require"
)

// snapshot has every stage between two engines, one of them with two processes, and one unknown engine.
func snapshot() (*probe.Snapshot, *names) {
	n := newNames("")
	d1, d2, p := probe.Context{PID: 10, Number: 1}, probe.Context{PID: 11, Number: 1}, probe.Context{PID: 20, Number: 2}
	n.contexts[d1], n.contexts[d2], n.contexts[p] = "D", "D", "P <1>"
	hashD, hashP := wire.EngineHash([]byte("D")), wire.EngineHash([]byte("P <1>"))
	n.engines.Add(hashD, "D")
	n.engines.Add(hashP, "P <1>")
	n.aliases[77] = p // P's agent, by which stock readers know it
	at := func(c probe.Context) uint64 { return uint64(c.PID)<<32 | uint64(c.Number) }
	spans := func(list ...time.Duration) (h probe.Histogram) {
		for _, d := range list {
			h.Count++
			h.Sum += uint64(d)
			h.Max = max(h.Max, uint64(d))
			h.Counts[probe.Bucket(uint64(d))]++
		}
		return h
	}
	s := &probe.Snapshot{Counters: probe.Counters{Hits: 1234, SeenNoPost: 3, OutliersLost: 2, ReadNoPost: 1}}
	add := func(stage probe.Stage, c probe.Context, from, to uint64, list ...time.Duration) {
		s.Series = append(s.Series, probe.Series{Stage: stage, Context: c, From: from, To: to, Histogram: spans(list...)})
	}
	for i, stage := range []probe.Stage{probe.Posted, probe.Seen, probe.Extended, probe.Renewed} {
		var list []time.Duration
		for k := range 200 {
			list = append(list, time.Duration(1+k*k)*time.Duration(i+1)*time.Microsecond)
		}
		add(stage, probe.Context{}, hashD, hashP, list...)
	}
	add(probe.Slack, probe.Context{}, hashD, hashP, 1200*time.Millisecond, 1500*time.Millisecond, 1900*time.Millisecond, 20*time.Millisecond)
	for _, stage := range []probe.Stage{probe.Arrived, probe.Fenced, probe.Reported, probe.Read} {
		add(stage, d1, at(d1), hashP, time.Millisecond, 2*time.Millisecond)
		add(stage, d2, at(d2), hashP, 3*time.Millisecond)
	}
	add(probe.ReadFailed, d2, at(d2), hashP, 3*time.Second)
	add(probe.Step, p, at(p), 0, 0, 1, 2, 3*time.Microsecond, 4*time.Microsecond, 900*time.Microsecond)
	add(probe.Drained, d1, at(d1), 0, 40*time.Microsecond)
	add(probe.Stall, d1, at(d1), 0, 700*time.Millisecond)
	add(probe.Seen, probe.Context{}, 0xfeed, 77, time.Millisecond)
	add(probe.Step, probe.Context{}, 0, 0, time.Millisecond)
	return s, n
}

func sample(engines ...string) *Report {
	s, n := snapshot()
	r := &Report{Seconds: 12.34, Processes: 3, Files: []string{"/a.so", "/b.so"}, Counters: s.Counters, Engines: engines, OutliersFrom: 5 * time.Millisecond,
		OutliersSeen: 9, Notes: []string{"process 11 has ended"}}
	r.fill(s, n)
	o := outliers{}
	for i := range 3 {
		o.add(probe.Outlier{Stage: probe.Seen, From: wire.EngineHash([]byte("D")), To: 77, Took: 40 * time.Millisecond, What: 7<<32 | 5, PID: 20 + uint32(i), Thread: 21},
			time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC))
	}
	o.add(probe.Outlier{Stage: probe.Step, Context: probe.Context{PID: 20, Number: 2}, From: 20<<32 | 2, Took: 9 * time.Millisecond, What: 3, PID: 20, Thread: 21},
		time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC))
	r.Outliers, r.OutliersSeen = o.take(n, engines)
	return r
}

func TestTheTableIsInTheOrderOfTheWayAndFitsATerminal(t *testing.T) {
	var b bytes.Buffer
	if err := sample().writeText(&b); err != nil {
		t.Fatal(err)
	}
	const want = `kvlease trace: 12.3 s, 1234 hits in 3 processes, 2 files

                                 n       p50       p90       p99       max
D → P <1>
  drained → posted             200   9.94 ms   32.1 ms   39.0 ms   39.6 ms
  posted → seen by P           200   19.9 ms   64.2 ms   77.9 ms   79.2 ms
  seen → extended              200   29.5 ms   96.7 ms    117 ms    119 ms
  posted → extended            200   39.8 ms    128 ms    156 ms    158 ms
  slack left ↓                   4    1.34 s   27.2 ms   19.1 ms   16.8 ms
  read posted → arrived          3   1.97 ms   2.96 ms   3.00 ms   3.00 ms
`
	got := strings.Split(b.String(), "\n")
	begin := func(line string) string { return string([]rune(line)[:min(34, utf8.RuneCountInString(line))]) } // name and count
	for i, line := range strings.Split(strings.TrimSpace(want), "\n") {
		if i >= len(got) || begin(got[i]) != begin(line) {
			t.Fatalf("line %d, wanted the like of %q, got\n%s", i, line, b.String())
		}
	}
	for line := range strings.Lines(b.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 && strings.Contains(line, "us ") && !strings.Contains(line, ":") {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	for _, s := range []string{
		"read, in all                   3", "engine 000000000000feed → P <1>", "all others", "outliers from 5.00 ms: 4, lost 2",
		"3 messages seen whose post was not", "1 point of reads", "note: process 11 has ended", "message 7 of 5 requests", "slack left ↓: p50, p10, p1, least",
		"03:04:06.000  9.00 ms  step  P <1>  process 20, 3 things done",
	} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("%q is not in\n%s", s, b.String())
		}
	}
}

func TestAFilterShowsWhatHasTheEngineAtAnEnd(t *testing.T) {
	for _, tc := range []struct {
		engines []string
		want    []string
	}{
		{[]string{"D"}, []string{"D → P <1>", "D"}},
		{[]string{"P*"}, []string{"D → P <1>", "engine 000000000000feed → P <1>", "P <1>"}},
		{[]string{"P <1>"}, []string{"D → P <1>", "engine 000000000000feed → P <1>", "P <1>"}},
		{[]string{"nobody", "engine *feed"}, []string{"engine 000000000000feed → P <1>"}},
		{[]string{"nobody"}, nil},
	} {
		r := sample(tc.engines...)
		var got []string
		for i := range r.Groups {
			got = append(got, r.Groups[i].name())
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tc.engines, diff)
		}
		for _, o := range r.Outliers {
			if !matches(tc.engines, o.From, o.To) {
				t.Errorf("%q: %+v", tc.engines, o)
			}
		}
	}
	var b bytes.Buffer
	if err := sample("nobody").writeText(&b); err != nil || !strings.Contains(b.String(), "nothing has happened at the engines asked for") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestAScreenIsNeverScrolled(t *testing.T) {
	for _, rows := range []int{2, 6, 12, 20, 24, 60} {
		for _, tc := range []struct {
			name string
			edit func(r *Report)
		}{
			{"as it is", func(*Report) {}},
			{"without outliers and notes", func(r *Report) { r.Outliers, r.Notes = nil, nil }},
			{"long names and notes", func(r *Report) {
				r.Groups[0].From, r.Groups[0].To = strings.Repeat("d", 50), strings.Repeat("漢", 50)
				for range 9 {
					r.Notes = append(r.Notes, strings.Repeat("a long note ", 20))
				}
			}},
		} {
			const cols = 80
			var b bytes.Buffer
			r := sample()
			tc.edit(r)
			if err := r.writeScreen(&b, rows, cols); err != nil {
				t.Fatal(err)
			}
			taken := 0
			for line := range strings.Lines(b.String()) {
				taken += max(1, (ansi.StringWidth(line)+cols-1)/cols)
			}
			if taken > rows { // the last is where the cursor stands
				t.Errorf("%s: %d lines on %d rows", tc.name, taken, rows)
			}
			if rows >= 12 && rows < 30 && len(r.Notes)+len(r.Outliers) == 0 && !strings.Contains(b.String(), "more lines: --engine shows fewer") {
				t.Errorf("%d rows: what is left out is not said", rows)
			}
		}
	}
}

func TestNamesFromOutsideDoNothingToATerminal(t *testing.T) {
	g := Group{From: "a\x1b[2Jb", To: strings.Repeat("x", 300)}
	if s := g.name(); strings.Contains(s, "\x1b") || utf8.RuneCountInString(s) > 140 {
		t.Errorf("%q", s)
	}
}

func TestDurationsHaveThreeDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ns", 7: "7 ns", 999: "999 ns", 1000: "1.00 us", 9994: "9.99 us", 9996: "10.0 us", 99949: "99.9 us", 99960: "100 us", 999499: "999 us",
		999600: "1.00 ms", 1500 * time.Millisecond: "1.50 s", 90 * time.Minute: "5400 s",
	} {
		if got := duration(d); got != want {
			t.Errorf("%d ns: %q, wanted %q", d, got, want)
		}
	}
}

func TestThePictureIsWellFormedAndEscapesNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "t.svg")
	if path := os.Getenv("KVLEASE_SAMPLE_SVG"); path != "" { // to look at it
		file = path
	}
	for _, r := range []*Report{{}, sample()} {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.WriteSVG(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
		wellFormed(t, file)
	}
	text, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(text, []byte("P &lt;1&gt;")) || bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
		t.Errorf("%v\n%.2000s", err, text)
	}
}

func TestOutliersBeyondWhatIsKeptLeaveTheLatest(t *testing.T) {
	var o outliers
	n := newNames("")
	for i := range outliersKept + 10 {
		o.add(probe.Outlier{Stage: probe.Stall, What: uint64(i), Context: probe.Context{PID: 1}}, time.Unix(int64(i), 0))
	}
	list, seen := o.take(n, nil)
	if seen != outliersKept+10 || len(list) != outliersKept || list[0].At.Unix() != 10 || list[outliersKept-1].At.Unix() != outliersKept+9 {
		t.Errorf("%d seen, %d kept, from %v", seen, len(list), list[0].At)
	}
	if !slices.IsSortedFunc(list, func(a, b Outlier) int { return a.At.Compare(b.At) }) {
		t.Error("not in order")
	}
}

func TestAnEngineIsNamedByWhatItsContextGoesBy(t *testing.T) {
	n := newNames(t.TempDir())
	c := probe.Context{PID: 1 << 30, Number: 1}
	n.engines.Add(5, "E")
	n.learn(nil, []probe.Alias{{Context: c, Hash: 5}, {Context: c, Hash: 6}})
	if n.context(c) != "E" || n.hash(6) != "E" || n.hash(7) != "engine 0000000000000007" {
		t.Errorf("%s, %s, %s", n.context(c), n.hash(6), n.hash(7))
	}
}

func TestTheDocumentNamesEveryStageAndCounter(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "trace.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{}
	for s := range probe.Stages {
		want = append(want, "`"+s.Key()+"`", s.String())
	}
	for c := range reflect.TypeFor[countersJSON]().Fields() {
		if key := c.Tag.Get("json"); key != "hits" && key != "outliers" {
			want = append(want, "`"+key+"`")
		}
	}
	for _, w := range want {
		if !bytes.Contains(text, []byte(w)) {
			t.Errorf("docs/trace.md says nothing of %s", w)
		}
	}
}

func TestAProcessThatIsNotToBeFoundHereIsNamedByTheHashesOfAllPages(t *testing.T) {
	dir := require.Shm(t)
	w, why, err := watch.New(&watch.Spec{Dir: dir, Head: watch.Head{PID: os.Getpid(), Context: 1, Engine: "E", Hash: wire.EngineHash([]byte("E"))}})
	if err != nil || why != nil {
		t.Fatal(why, err)
	}
	defer w.Close()
	n := newNames(dir)
	c := probe.Context{PID: 1<<31 - 1, Number: 3}
	n.learn([]uint32{c.PID}, []probe.Alias{{Context: c, Hash: wire.EngineHash([]byte("E"))}})
	if got := n.context(c); got != "E" {
		t.Errorf("it is called %q", got)
	}
}

func TestAReportOfNothingHasItsLists(t *testing.T) {
	var b bytes.Buffer
	if err := (&Report{}).writeJSON(&b); err != nil {
		t.Fatal(err)
	}
	for _, list := range []string{"files", "series", "outliers", "notes"} {
		if !strings.Contains(b.String(), `"`+list+`":[]`) {
			t.Errorf("%s is no list in %s", list, b.String())
		}
	}
}
