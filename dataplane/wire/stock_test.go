package wire

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// told is a Stock as text, so that a table can hold it.
func told(m Stock, st Status) string {
	if st != OK {
		return st.String()
	}
	kind := map[StockKind]string{Heartbeat: "heartbeat", Completion: "completion", PushReg: "push_reg"}[m.Kind]
	out := kind
	if m.Kind != Completion {
		out += fmt.Sprintf(" %q", m.Body)
	}
	if len(m.ID) > 0 {
		out += fmt.Sprintf(" %q by %d", m.ID, m.N)
	}
	return out
}

func TestStockMessagesAreWhatVllmMeansOrHaveAName(t *testing.T) {
	long := strings.Repeat("x", IDMax)
	for _, tc := range []struct{ name, msg, want string }{
		{"S01: bytes that are not UTF-8", "\xff\xfe", "bad_utf8"},
		{"S02: no colon", "hello", "bad_colon"},
		{"S03: a count that is no number", "r1:x", "bad_count"},
		{"S04: a comma in the id", "HB:chatcmpl-a,b-0a1b2c3d", `heartbeat "chatcmpl-a,b-0a1b2c3d"`},
		{"S05: the completion of an id that starts with HB:", "HB:job-1:1", `heartbeat "job-1:1" "HB:job-1" by 1`},

		{"nothing", "", "empty"},
		{"a heartbeat of two ids", "HB:a,b", `heartbeat "a,b"`},
		{"a completion for two readers", "r1:2", `completion "r1" by 2`},
		{"a heartbeat of nothing", "HB:", "empty"},
		{"a heartbeat that is also the completion of HB", "HB:1", `heartbeat "1" "HB" by 1`},
		{"a prefix of another case is an id", "hb:a", "bad_count"},
		{"an id with colons is split at the last one", "a:b:c:3", `completion "a:b:c" by 3`},
		{"an id of a letter beyond ASCII", "é:1", `completion "é" by 1`},
		{"overlong UTF-8", "a\xc0\x80:1", "bad_utf8"},
		{"half of a surrogate pair in UTF-8", "a\xed\xa0\x80:1", "bad_utf8"},
		{"a heartbeat that is not UTF-8", "HB:a,\xff", "bad_utf8"},
		{"the largest count", "r:65535", `completion "r" by 65535`},
		{"a count too large", "r:65536", "bad_count"},
		{"a count that wraps 32 bits", "r:4294967297", "bad_count"},
		{"no count", "r:", "bad_count"},
		{"no reader", "r:0", "bad_count"},
		{"a count with a leading zero", "r:01", "bad_count"},
		{"a count with a sign", "r:+1", "bad_count"},
		{"a count below zero", "r:-1", "bad_count"},
		{"a count with a space", "r: 1", "bad_count"},
		{"a count with a space after it", "r:1 ", "bad_count"},
		{"a count in other digits", "r:١", "bad_count"},
		{"no id", ":1", "bad_id"},
		{"the longest id", long + ":1", `completion "` + long + `" by 1`},
		{"an id too long", long + "x:1", "bad_id"},
		{"a registration", "PUSH_REG:\x8aabc", `push_reg "\x8aabc"`},
		{"a completion of an id like a registration", "PUSH_REG:x:1", `completion "PUSH_REG:x" by 1`},
		{"a message too long", strings.Repeat("x", ParseMax+1), "too_long"},
		{"the longest message", "HB:" + strings.Repeat("x", ParseMax-3), `heartbeat "` + strings.Repeat("x", ParseMax-3) + `"`},
	} {
		if got := told(ParseStock([]byte(tc.msg))); got != tc.want { // shows S01.1, S02.1, S03.1, S05.1
			t.Errorf("%s: %.200s, want %.200s", tc.name, got, tc.want)
		}
	}
}

// walk collects what an iterator gives; runs are in brackets.
func walk(body string, runMax int) []string {
	out := []string{}
	for ids := NewIDs([]byte(body), runMax); ; {
		id, alone, ok := ids.Next()
		switch {
		case !ok:
			return out
		case alone:
			out = append(out, string(id))
		default:
			out = append(out, "["+string(id)+"]")
		}
	}
}

func TestEveryElementAndRunOfThreeIsTried(t *testing.T) {
	long := strings.Repeat("x", IDMax)
	for _, tc := range []struct {
		name, body string
		runMax     int
		want       []string
	}{
		{"one id", "a", 3, []string{"a"}},
		{"two ids", "a,b", 3, []string{"a", "[a,b]", "b"}},
		{"four ids", "a,b,c,d", 3, []string{"a", "[a,b]", "[a,b,c]", "b", "[b,c]", "[b,c,d]", "c", "[c,d]", "d"}},
		{"elements only", "a,b,c,d", 1, []string{"a", "b", "c", "d"}},
		{"runs of two", "a,b,c", 2, []string{"a", "[a,b]", "b", "[b,c]", "c"}},
		{"a run length out of range counts as the nearest", "a,b", 0, []string{"a", "b"}},
		{"nothing", "", 3, []string{}},
		{"an empty element in the middle", "a,,b", 3, []string{"a", "[a,]", "[a,,b]", "[,b]", "b"}},
		{"commas only", ",", 3, []string{"[,]"}},
		{"an id too long is passed over, its neighbours are not", long + "x,a," + long, 3, []string{"a", long}},
		{"a run that would be too long", long + ",a", 3, []string{long, "a"}},
	} {
		if diff := cmp.Diff(tc.want, walk(tc.body, tc.runMax)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
}

// fill collects the elements in batches of n.
func fill(body string, n int) []string {
	all, out := []string{}, make([][]byte, n)
	for ids := NewIDs([]byte(body), 1); ; {
		got, more := ids.Fill(out)
		for _, id := range out[:got] {
			all = append(all, string(id))
		}
		if !more {
			return all
		}
	}
}

// slowWalk is the definition of what an iterator gives.
func slowWalk(body string, runMax int) []string {
	out := []string{}
	parts := strings.Split(body, ",")
	for i := range parts {
		for k := 1; k <= runMax && i+k <= len(parts); k++ {
			id := strings.Join(parts[i:i+k], ",")
			switch {
			case len(id) == 0 || len(id) > IDMax:
			case k == 1:
				out = append(out, id)
			default:
				out = append(out, "["+id+"]")
			}
		}
	}
	return out
}

func TestTheWalkGivesWhatSplittingWouldGive(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 5000 {
		body := make([]byte, r.IntN(40))
		for i := range body {
			body[i] = ",ab"[r.IntN(3)]
		}
		runMax := 1 + r.IntN(RunMax)
		if diff := cmp.Diff(slowWalk(string(body), runMax), walk(string(body), runMax)); diff != "" {
			t.Fatalf("%q, runs of %d (-split +walk):\n%s", body, runMax, diff)
		}
		if diff := cmp.Diff(walk(string(body), 1), fill(string(body), 1+r.IntN(4))); diff != "" {
			t.Fatalf("%q (-walk +fill):\n%s", body, diff)
		}
	}
}

func TestABatchLooksAtNoMoreElementsThanItHolds(t *testing.T) {
	out := make([][]byte, 3)
	ids := NewIDs([]byte(",,,,a,,"), 1)
	for i, want := range []struct {
		n    int
		more bool
	}{{0, true}, {1, true}, {0, false}} {
		if n, more := ids.Fill(out); n != want.n || more != want.more {
			t.Errorf("batch %d: %d ids, more %v, want %d, %v", i, n, more, want.n, want.more)
		}
	}
}

func TestACopyOfTheWalkGoesOnLater(t *testing.T) {
	ids := NewIDs([]byte("a,b,c"), 1)
	ids.Next()
	kept := ids
	ids.Next()
	if id, _, _ := kept.Next(); string(id) != "b" {
		t.Errorf("the copy went on at %q", id)
	}
}

func TestHeartbeatsAreSplitAtTheLimit(t *testing.T) {
	var msgs []string
	var msg []byte
	for _, id := range []string{"aa", "bb", "cc", "dd"} {
		out, st := AppendHeartbeatID(msg, len("HB:aa,bb"), []byte(id))
		if st == Full {
			msgs = append(msgs, string(msg))
			out, st = AppendHeartbeatID(out[:0], len("HB:aa,bb"), []byte(id))
		}
		if st != OK {
			t.Fatal(st)
		}
		msg = out
	}
	if diff := cmp.Diff([]string{"HB:aa,bb", "HB:cc,dd"}, append(msgs, string(msg))); diff != "" {
		t.Errorf("messages (-want +got):\n%s", diff)
	}
	if out, st := AppendHeartbeatID(nil, 4, []byte("abcdef")); st != OK || string(out) != "HB:abcdef" {
		t.Errorf("the first id did not go in: %s %q", st, out)
	}
}

func TestIdsThatStockPeersCannotReadAreNotSent(t *testing.T) {
	for _, tc := range []struct {
		name, id          string
		beat, done        Status
		readers           uint16
		wantBeat, wantEnd string
	}{
		{"an ordinary id", "r1", OK, OK, 2, "HB:r1", "r1:2"},
		{"an id with colons", "a:b", OK, OK, 1, "HB:a:b", "a:b:1"},
		{"an id with a comma", "a,b", Unsendable, OK, 1, "", "a,b:1"},
		{"an id that starts with HB:", "HB:a", OK, Unsendable, 1, "HB:HB:a", ""},
		{"the id HB", "HB", OK, Unsendable, 1, "HB:HB", ""},
		{"an id that starts with PUSH_REG:", "PUSH_REG:a", OK, Unsendable, 1, "HB:PUSH_REG:a", ""},
		{"the empty id", "", Unsendable, Unsendable, 1, "", ""},
		{"an id that is not UTF-8", "a\xff", Unsendable, Unsendable, 1, "", ""},
		{"an id too long", strings.Repeat("x", IDMax+1), Unsendable, Unsendable, 1, "", ""},
		{"no readers", "r", OK, Unsendable, 0, "HB:r", ""},
	} {
		beat, st := AppendHeartbeatID(nil, 1<<20, []byte(tc.id))
		if st != tc.beat || string(beat) != tc.wantBeat {
			t.Errorf("heartbeat of %s: %s %q", tc.name, st, beat)
		}
		done, st := AppendCompletion([]byte("before "), []byte(tc.id), tc.readers)
		if st != tc.done || string(done) != "before "+tc.wantEnd {
			t.Errorf("completion of %s: %s %q", tc.name, st, done)
		}
	}
}

func TestStockMessagesAreMadeAndReadWithoutAllocation(t *testing.T) {
	buf := make([]byte, 0, 16384)
	id := []byte("chatcmpl-0123456789abcdef0123456789abcdef-89abcdef")
	ids := 0
	n := testing.AllocsPerRun(100, func() {
		buf = buf[:0]
		for range 100 {
			buf, _ = AppendHeartbeatID(buf, cap(buf), id)
		}
		m, _ := ParseStock(buf)
		for walk := NewIDs(m.Body, RunMax); ; ids++ {
			if _, _, ok := walk.Next(); !ok {
				break
			}
		}
		var batch [64][]byte
		for walk, more := NewIDs(m.Body, 1), true; more; ids++ {
			_, more = walk.Fill(batch[:])
		}
		buf, _ = AppendCompletion(buf[:0], id, 3)
		ParseStock(buf)
		ParseStock([]byte("hello"))
	})
	if n != 0 || ids == 0 {
		t.Errorf("%v allocations, %d ids", n, ids)
	}
}

func BenchmarkHeartbeatOf10000Ids(b *testing.B) {
	var msg []byte
	for i := range 10000 {
		msg, _ = AppendHeartbeatID(msg, ParseMax, fmt.Appendf(nil, "chatcmpl-%032x-89abcdef", i))
	}
	b.Run("in batches of 64", func(b *testing.B) {
		var batch [64][]byte
		b.ReportAllocs()
		for b.Loop() {
			m, _ := ParseStock(msg)
			for ids, more := NewIDs(m.Body, 1), true; more; {
				_, more = ids.Fill(batch[:])
			}
		}
	})
	for _, runMax := range []int{1, RunMax} {
		b.Run(fmt.Sprintf("runs of %d", runMax), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, _ := ParseStock(msg)
				for ids := NewIDs(m.Body, runMax); ; {
					if _, _, ok := ids.Next(); !ok {
						break
					}
				}
			}
		})
	}
}

func FuzzStock(f *testing.F) {
	for _, s := range []string{"HB:a,b", "r1:2", "HB:job-1:1", "PUSH_REG:\x8aabc", "\xff\xfe", "hello", "r1:x", "HB:,,a,"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		m, st := ParseStock(msg)
		if st != OK {
			if diff := cmp.Diff(Stock{}, m); diff != "" {
				t.Fatalf("%s with content:\n%s", st, diff)
			}
			return
		}
		if m.ID != nil {
			out := fmt.Appendf(nil, "%s:%d", m.ID, m.N)
			if !bytes.Equal(out, msg) {
				t.Fatalf("read %q, is %q", msg, out)
			}
		}
		if m.Kind == Heartbeat {
			if diff := cmp.Diff(slowWalk(string(m.Body), RunMax), walk(string(m.Body), RunMax)); diff != "" {
				t.Fatalf("%q (-split +walk):\n%s", msg, diff)
			}
		}
	})
}
