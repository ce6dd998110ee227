package log

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
)

func newLog(least Level) *Log {
	return New(Config{Least: least, Context: 3, Self: "p-\x1b\"0", Wall: func(at clock.Instant) time.Time { return time.Unix(0, int64(at)) }})
}

// lines takes everything.
func lines(t *testing.T, l *Log) (all []Line) {
	t.Helper()
	text, need := l.Take(1 << 20)
	if need != 0 {
		t.Fatalf("a line of %d bytes", need)
	}
	for one := range strings.Lines(string(text)) {
		var n Line
		if err := json.Unmarshal([]byte(one), &n); err != nil {
			t.Fatalf("%q: %v", one, err)
		}
		all = append(all, n)
	}
	return all
}

func TestALineNamesEngineRequestWhatHappenedAndWhatToDo(t *testing.T) {
	l := newLog(Warning)
	l.Step.Put(LeaseExpired, clock.Instant(1500*time.Millisecond), Entry{Engine: "d-1", Request: []byte("req-7"), A: uint64(41 * time.Second), B: uint64(21300 * time.Millisecond)})
	want := []Line{{
		Time: "1970-01-01T00:00:01.500Z", Level: "warning", Kind: "lease_expired", Context: 3, Self: `p-\x1b"0`, Engine: "d-1", Request: "req-7",
		What: "the lease expired after 41s; its reader was heard last 21.3s ago", Remedy: Defs[LeaseExpired].Remedy,
		Values: map[string]uint64{"held_ns": 41e9, "silent_ns": 21300e6},
	}}
	if diff := cmp.Diff(want, lines(t, l)); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	l.Step.Put(SendFailed, 0, Entry{Agent: []byte("vllm \"x\""), A: 17})
	text, _ := l.TakeText(1 << 10)
	if want := `kvlease time=1970-01-01T00:00:00.000Z level=warning kind=send_failed context=3 self="p-\x1b\"0" engine="vllm \"x\"" what="the transport refused a message of 17 bytes to it" remedy="` +
		Defs[SendFailed].Remedy + "\"\n"; string(text) != want {
		t.Errorf("text:\n%s\nwant:\n%s", text, want)
	}
}

func TestAKindOfOneEngineIsToldFiveTimesAndThenOnceInTenSecondsWithWhatWasLeftOut(t *testing.T) {
	l := newLog(Warning)
	now := clock.Instant(time.Hour)
	for range 1000 {
		l.Step.Put(ReadStale, now, Entry{Engine: "p"})
	}
	for range 3 {
		l.Step.Put(ReadLost, now, Entry{Engine: "p"}) // another kind has its own rate
	}
	l.Step.Put(ReadStale, now, Entry{Engine: "q", Hash: 2}) // and so has another engine, unless they fall on one place
	if n := len(lines(t, l)); n != 9 {
		t.Errorf("%d lines, want 9", n)
	}
	l.Step.Put(ReadStale, now.Add(every-1), Entry{Engine: "p"})
	if n := len(lines(t, l)); n != 0 {
		t.Errorf("%d lines within ten seconds", n)
	}
	l.Step.Put(ReadStale, now.Add(every), Entry{Engine: "p"})
	if all := lines(t, l); len(all) != 1 || all[0].LeftOut != 996 {
		t.Errorf("after ten seconds: %+v, want one with 996 left out", all)
	}
	l.Step.Put(ReadStale, now.Add(time.Hour), Entry{Engine: "p"})
	if all := lines(t, l); len(all) != 1 || all[0].LeftOut != 0 {
		t.Errorf("an hour later: %+v, want one with nothing left out", all)
	}
	if got := l.LeftOut(); got != 996 {
		t.Errorf("%d counted as left out, want 996", got)
	}
}

func TestHoweverManyNamesAPeerHasTheRateOfAllHoldsAndErrorsHaveTheirOwn(t *testing.T) {
	l, count := newLog(Info), 0
	now := clock.Instant(time.Hour)
	for i := range 10_000 {
		if k := Kind(1 + i%int(kinds-1)); k != Poisoned { // whose own rate would be used up, in the class that is asked below
			l.Step.Put(k, now, Entry{Hash: uint64(i), Engine: "x"})
		}
		if i == 5000 {
			now = now.Add(7 * allEvery)
		}
		if i%100 == 0 { // somebody reads
			for _, n := range lines(t, l) {
				if n.Level != "error" {
					count++
				}
			}
		}
	}
	if count != allBurst+7 {
		t.Errorf("%d warnings in seven seconds, want %d", count, allBurst+7)
	}
	l.Step.Put(Poisoned, now.Add(-1), Entry{Engine: "of its own"})
	if all := lines(t, l); len(all) == 0 || all[len(all)-1].Kind != "poisoned" {
		t.Error("an error is crowded out by warnings")
	}
}

func TestRecordsWithoutAPlaceAreLostAndALineInTheirPlaceSaysHowMany(t *testing.T) {
	const room = ringLen - errorLen
	l := newLog(Info)
	now := clock.Instant(0)
	say := func(k Kind, n int) {
		for i := range n {
			now = now.Add(time.Hour)
			l.Step.Put(k, now, Entry{Engine: fmt.Sprint("e", i)})
		}
	}
	say(EngineUp, room+40)
	lastLost := now
	say(Poisoned, 3) // errors find a place
	if text, need := l.Take(1 << 10); len(text) == 0 || need != 0 {
		t.Fatal(text, need)
	}
	say(EngineUp, 1)
	all := lines(t, l)
	if n := len(all); n < 5 || all[n-5].Kind != "records_lost" || all[n-5].Values["records"] != 40 || all[n-5].Time != l.line(&record{kind: RecordsLost, at: lastLost}).Time ||
		all[n-6].Engine != fmt.Sprint("e", room-1) || all[n-4].Kind != "poisoned" || all[n-1].Kind != "engine_up" {
		t.Errorf("the last lines are %+v", all[max(0, n-6):])
	}
	if l.Lost() != 40 || !l.Empty() {
		t.Errorf("lost %d, empty %v", l.Lost(), l.Empty())
	}
	say(Poisoned, ringLen+1)
	if l.Lost() != 41 {
		t.Errorf("%d are lost", l.Lost())
	}
	all = lines(t, l)
	if n := len(all); n != ringLen+1 || all[n-1].Kind != "records_lost" {
		t.Errorf("%d lines, the last %+v", n, all[n-1])
	}
}

func TestLinesOfStepAndSideComeInTheOrderOfTheirTimes(t *testing.T) {
	l := newLog(Warning)
	l.Step.Put(Stall, 20, Entry{})
	l.Side.Put(ClockJumped, 10, Entry{})
	l.Side.Put(ClockJumped, 30, Entry{})
	var got []string
	for _, n := range lines(t, l) {
		got = append(got, n.Time[len(n.Time)-5:]+n.Kind)
	}
	if want := []string{".000Z" + "clock_jumped", ".000Z" + "stall", ".000Z" + "clock_jumped"}; !cmp.Equal(want, got) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func TestOnlyWhatIsBadEnoughIsTaken(t *testing.T) {
	for _, tc := range []struct {
		least Level
		want  int
	}{{Error, 1}, {Warning, 2}, {Info, 3}} {
		l := newLog(tc.least)
		l.Step.Put(Poisoned, 0, Entry{})
		l.Step.Put(Stall, 0, Entry{})
		l.Step.Put(EngineUp, 0, Entry{})
		if n := len(lines(t, l)); n != tc.want {
			t.Errorf("level %v: %d lines, want %d", tc.least, n, tc.want)
		}
	}
	var none *Writer
	none.Put(Poisoned, 0, Entry{}) // nobody listens
}

func TestTakeGivesWholeLinesAndKeepsOneThatDoesNotFit(t *testing.T) {
	l := newLog(Warning)
	for range 3 {
		l.Step.Put(Stall, 0, Entry{A: 1e9, B: 1e6})
	}
	none, need := l.Take(10)
	if len(none) != 0 || need < 100 {
		t.Fatalf("into 10 bytes: %d bytes, %d needed", len(none), need)
	}
	var sum []byte
	for _, room := range []int{2*need + need/2, need} { // two lines, then the third
		text, more := l.Take(room)
		if more != 0 || len(text)%need != 0 {
			t.Fatalf("into %d bytes: %d bytes, %d needed", room, len(text), more)
		}
		sum = append(sum, text...)
	}
	if strings.Count(string(sum), "\n") != 3 || len(sum) != 3*need || !l.Empty() {
		t.Errorf("taken in pieces: %q", sum)
	}
}

func TestWhatPeersNameCannotBreakALine(t *testing.T) {
	l := newLog(Warning)
	for _, tc := range []struct{ name, id, want string }{
		{"a newline and an escape", "a\nb\x1b[31m", `a\nb\x1b[31m`},
		{"bytes that are no UTF-8", "x\xff\xfey", `x\xff\xfey`},
		{"a character that turns the writing", "a\u202eb", `a\u202eb`},
		{"a backslash", `a\nb`, `a\\nb`},
		{"too long", strings.Repeat("ä", 40), strings.Repeat("ä", 32) + "..."},
		{"too long, cut within a character", "a" + strings.Repeat("ä", 40), "a" + strings.Repeat("ä", 31) + "..."},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l.Side.Put(EngineTwice, 0, Entry{Engine: tc.id, Request: []byte(tc.id), Text: tc.id})
			all := lines(t, l)
			if len(all) != 1 || all[0].Engine != tc.want || all[0].Request != tc.want {
				t.Errorf("line: %+v, want %q", all, tc.want)
			}
		})
	}
}

func FuzzTextOfPeersIsPrintable(f *testing.F) {
	f.Add([]byte("a\nb\xffc\\"), true)
	f.Add([]byte("ä\u202e\u2028"), false)
	f.Fuzz(func(t *testing.T, id []byte, cut bool) {
		out := clean(id, cut)
		if !utf8.ValidString(out) || strings.ContainsFunc(out, func(r rune) bool { return r != ' ' && !unicode.IsGraphic(r) }) {
			t.Errorf("%q became %q", id, out)
		}
	})
}

// A hash alone is shown as the id that the context knows for it.
func TestAnEngineOfWhichOnlyTheHashIsKnownIsNamedIfTheContextKnowsIt(t *testing.T) {
	l := New(Config{Least: Warning, Name: func(hash uint64) string {
		if hash == 7 {
			return "d-7"
		}
		return ""
	}})
	l.Step.Put(ReaderDead, 0, Entry{Hash: 7})
	l.Step.Put(ReaderDead, 0, Entry{Hash: 8})
	if all := lines(t, l); len(all) != 2 || all[0].Engine != "d-7" || all[1].Engine != "#0000000000000008" {
		t.Errorf("lines: %+v", all)
	}
}

func TestPutAllocatesNothing(t *testing.T) {
	l := newLog(Warning)
	now := clock.Instant(0)
	id, agent := []byte("request-1"), []byte("agent-0123456789-0123456789-0123456789-0123456789")
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(every)
		l.Step.Put(ReadStale, now, Entry{Engine: "p", Request: id, A: 1, B: 2})
		l.Side.Put(HandshakeFailing, now, Entry{Engine: "p", Text: "no answer", A: 1})
		l.Step.Put(MessageMalformed, now, Entry{Agent: agent, A: 2})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestAReaderAndManyWritersAgree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	l := newLog(Warning)
	var writers sync.WaitGroup
	const each = 3000
	for w := range 4 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			at := clock.Instant(0)
			for i := range each {
				at = at.Add(every)
				e := Entry{Engine: "e", Request: fmt.Appendf(nil, "%d-%d", w, i), A: uint64(w)<<32 | uint64(i)}
				if w == 0 {
					l.Step.Put(LeaseAtRisk, at, e)
				} else {
					l.Side.Put(Kind(1+rng.IntN(int(kinds)-1)), at.Add(clockOf(rng)), e)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	taken, lost := 0, uint64(0)
	for over := false; !over || !l.Empty(); {
		select {
		case <-done:
			over = true
		default:
		}
		for _, n := range lines(t, l) {
			if n.Kind == "records_lost" {
				lost += n.Values["records"]
				continue
			}
			if taken++; n.Engine != "e" || n.Request == "" {
				t.Fatalf("torn: %+v", n)
			}
		}
	}
	if lost != l.Lost() || taken == 0 || uint64(taken)+lost+l.LeftOut() > 4*each {
		t.Errorf("%d taken, %d lost (%d said), %d left out of %d", taken, l.Lost(), lost, l.LeftOut(), 4*each)
	}
}

func clockOf(rng *rand.Rand) time.Duration { return time.Duration(rng.IntN(int(time.Hour))) }

func BenchmarkPutThatIsLeftOut(b *testing.B) {
	l := newLog(Warning)
	b.ReportAllocs()
	for b.Loop() {
		l.Step.Put(ReadStale, 0, Entry{Engine: "p"})
	}
}
