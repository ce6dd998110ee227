package weakmem

import (
	"strings"
	"testing"
)

const limit = 1_000_000

// allowed runs a program and tells whether an execution exists whose notes are as wanted.
func allowed(t *testing.T, p Program, want map[string]uint64) bool {
	t.Helper()
	found := false
	r := ExploreAll(p, limit, func(f *Final) {
		for name, v := range want {
			got, noted := f.Notes[name]
			if word, ok := f.Words[name]; !noted && ok {
				got = word
			} else if !noted {
				t.Fatalf("nothing is called %q", name)
			}
			if got != v {
				return
			}
		}
		found = true
	})
	if r.Bad != nil {
		t.Fatal(r.Bad)
	}
	if r.Executions == 0 {
		t.Fatal("no execution came to its end")
	}
	return found
}

type body = func(*T)

func threads(bodies ...body) (all []Thread) {
	for i, b := range bodies {
		all = append(all, Thread{Name: string(rune('A' + i)), Body: b})
	}
	return all
}

func load(word, name string, o Order) body {
	return func(t *T) { t.Note(name, t.Load(word, o)) }
}

func store(word string, v uint64, o Order) body {
	return func(t *T) { t.Store(word, v, o) }
}

func fence(o Order) body { return func(t *T) { t.Fence(o) } }

func seq(bodies ...body) body {
	return func(t *T) {
		for _, b := range bodies {
			b(t)
		}
	}
}

type want = map[string]uint64

func TestKnownLitmusTestsComeOutAsTheModelSays(t *testing.T) {
	sb := func(s, l Order, between ...body) []Thread {
		return threads(
			seq(store("x", 1, s), seq(between...), load("y", "a", l)),
			seq(store("y", 1, s), seq(between...), load("x", "b", l)))
	}
	mp := func(s, l Order) []Thread {
		return threads(seq(store("x", 1, Relaxed), store("y", 1, s)), seq(load("y", "a", l), load("x", "b", Relaxed)))
	}
	iriw := func(s, l Order, between ...body) []Thread {
		return threads(store("x", 1, s), store("y", 1, s),
			seq(load("x", "a", l), seq(between...), load("y", "b", l)),
			seq(load("y", "c", l), seq(between...), load("x", "d", l)))
	}
	w22 := func(s Order, between ...body) []Thread {
		return threads(seq(store("x", 1, s), seq(between...), store("y", 2, s)),
			seq(store("y", 1, s), seq(between...), store("x", 2, s)))
	}
	wrc := func(s, l Order) []Thread {
		return threads(store("x", 1, Relaxed),
			seq(load("x", "a", Relaxed), store("y", 1, s)),
			seq(load("y", "b", l), load("x", "c", Relaxed)))
	}
	for _, tc := range []struct {
		name    string
		threads []Thread
		want    want
		ok      bool
	}{
		{"store buffering, relaxed", sb(Relaxed, Relaxed), want{"a": 0, "b": 0}, true},
		{"store buffering, release and acquire", sb(Release, Acquire), want{"a": 0, "b": 0}, true},
		{"store buffering, acq_rel fences", sb(Relaxed, Relaxed, fence(AcqRel)), want{"a": 0, "b": 0}, true},
		{"store buffering, seq_cst", sb(SeqCst, SeqCst), want{"a": 0, "b": 0}, false},
		{"store buffering, seq_cst fences", sb(Relaxed, Relaxed, fence(SeqCst)), want{"a": 0, "b": 0}, false},
		{"store buffering, seq_cst stores alone", sb(SeqCst, Acquire), want{"a": 0, "b": 0}, true},
		{"store buffering, seq_cst loads alone", sb(Release, SeqCst), want{"a": 0, "b": 0}, true},
		{"message passing, relaxed", mp(Relaxed, Relaxed), want{"a": 1, "b": 0}, true},
		{"message passing, release alone", mp(Release, Relaxed), want{"a": 1, "b": 0}, true},
		{"message passing, acquire alone", mp(Relaxed, Acquire), want{"a": 1, "b": 0}, true},
		{"message passing", mp(Release, Acquire), want{"a": 1, "b": 0}, false},
		{"message passing by fences", threads(
			seq(store("x", 1, Relaxed), fence(Release), store("y", 1, Relaxed)),
			seq(load("y", "a", Relaxed), fence(Acquire), load("x", "b", Relaxed))), want{"a": 1, "b": 0}, false},
		{"message passing, the release fence in the wrong place", threads(
			seq(fence(Release), store("x", 1, Relaxed), store("y", 1, Relaxed)),
			seq(load("y", "a", Relaxed), fence(Acquire), load("x", "b", Relaxed))), want{"a": 1, "b": 0}, true},
		{"an update goes on with a release sequence", threads(
			seq(store("x", 1, Relaxed), store("y", 1, Release)),
			func(t *T) { t.Note("u", t.Add("y", 1, Relaxed)) },
			seq(load("y", "a", Acquire), load("x", "b", Relaxed))), want{"u": 1, "a": 2, "b": 0}, false},
		{"a later relaxed store does not", threads(
			seq(store("x", 1, Relaxed), store("y", 1, Release), store("y", 2, Relaxed)),
			seq(load("y", "a", Acquire), load("x", "b", Relaxed))), want{"a": 2, "b": 0}, true},
		{"load buffering is left out", threads(
			seq(load("x", "a", Relaxed), store("y", 1, Relaxed)),
			seq(load("y", "b", Relaxed), store("x", 1, Relaxed))), want{"a": 1, "b": 1}, false},
		{"two readers, two orders of two words", iriw(Release, Acquire), want{"a": 1, "b": 0, "c": 1, "d": 0}, true},
		{"the same, seq_cst", iriw(SeqCst, SeqCst), want{"a": 1, "b": 0, "c": 1, "d": 0}, false},
		{"the same, seq_cst fences between relaxed loads", iriw(Relaxed, Relaxed, fence(SeqCst)),
			want{"a": 1, "b": 0, "c": 1, "d": 0}, false},
		{"one word has one order", threads(store("x", 1, Relaxed), store("x", 2, Relaxed),
			seq(load("x", "a", Relaxed), load("x", "b", Relaxed)),
			seq(load("x", "c", Relaxed), load("x", "d", Relaxed))), want{"a": 1, "b": 2, "c": 2, "d": 1}, false},
		{"a thread does not read backwards", threads(store("x", 1, Relaxed),
			seq(load("x", "a", Relaxed), load("x", "b", Relaxed))), want{"a": 1, "b": 0}, false},
		{"a thread reads what it wrote or newer", threads(
			seq(store("x", 1, Relaxed), load("x", "a", Relaxed)), store("x", 2, Relaxed)), want{"a": 0}, false},
		{"two writers of two words, release", w22(Release), want{"x": 1, "y": 1}, true},
		{"two writers of two words, seq_cst", w22(SeqCst), want{"x": 1, "y": 1}, false},
		{"two writers of two words, seq_cst fences", w22(Relaxed, fence(SeqCst)), want{"x": 1, "y": 1}, false},
		{"what a third thread has read is not older for who follows it", wrc(Release, Acquire), want{"a": 1, "b": 1, "c": 0}, false},
		{"it is if nothing orders the two", wrc(Relaxed, Acquire), want{"a": 1, "b": 1, "c": 0}, true},
		{"the same, and the middle acquires", threads(store("x", 1, Release),
			seq(load("x", "a", Acquire), store("y", 1, Release)),
			seq(load("y", "b", Acquire), load("x", "c", Relaxed))), want{"a": 1, "b": 1, "c": 0}, false},
		{"seq_cst is not carried through a release sequence (Z6.U)", threads(
			seq(store("x", 1, SeqCst), store("y", 1, Release)),
			seq(func(t *T) { t.Note("b", t.Add("y", 1, SeqCst)) }, load("y", "c", Relaxed)),
			seq(store("y", 3, SeqCst), load("x", "a", SeqCst))), want{"b": 1, "c": 3, "a": 0}, true},
		{"seq_cst is not carried through an acquire load", threads(store("x", 1, SeqCst),
			seq(load("x", "a", Acquire), load("y", "b", SeqCst)),
			seq(store("y", 1, SeqCst), load("x", "c", SeqCst))), want{"a": 1, "b": 0, "c": 0}, true},
		{"it is through a seq_cst load", threads(store("x", 1, SeqCst),
			seq(load("x", "a", SeqCst), load("y", "b", SeqCst)),
			seq(store("y", 1, SeqCst), load("x", "c", SeqCst))), want{"a": 1, "b": 0, "c": 0}, false},
		{"a fence restores it (RWC+syncs)", threads(store("x", 1, Relaxed),
			seq(load("x", "a", Relaxed), fence(SeqCst), load("y", "b", Relaxed)),
			seq(store("y", 1, Relaxed), fence(SeqCst), load("x", "c", Relaxed))), want{"a": 1, "b": 0, "c": 0}, false},
		{"two updates both count", threads(
			func(t *T) { t.Add("x", 1, Relaxed) }, func(t *T) { t.Add("x", 1, Relaxed) }), want{"x": 1}, false},
		{"one of two compare-and-swaps wins", threads(
			func(t *T) { _, ok := t.CompareAndSwap("x", 0, 1, Relaxed, Relaxed); t.Note("a", b2u(ok)) },
			func(t *T) { _, ok := t.CompareAndSwap("x", 0, 2, Relaxed, Relaxed); t.Note("b", b2u(ok)) }), want{"a": 1, "b": 1}, false},
		{"and not none", threads(
			func(t *T) { _, ok := t.CompareAndSwap("x", 0, 1, Relaxed, Relaxed); t.Note("a", b2u(ok)) },
			func(t *T) { _, ok := t.CompareAndSwap("x", 0, 2, Relaxed, Relaxed); t.Note("b", b2u(ok)) }), want{"a": 0, "b": 0}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := allowed(t, Program{Name: tc.name, Threads: tc.threads}, tc.want); got != tc.ok {
				t.Errorf("%v is allowed: %v, want %v", tc.want, got, tc.ok)
			}
		})
	}
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func TestAPlainWordThatIsNotOrderedIsARace(t *testing.T) {
	mp := func(s, l Order) Program {
		return Program{Name: "mp", Threads: threads(
			func(t *T) { t.Write("data", 1); t.Store("flag", 1, s) },
			func(t *T) {
				if t.Load("flag", l) == 1 {
					t.Assert(t.Read("data") == 1, "old data")
				}
			})}
	}
	if r := Explore(mp(Release, Acquire), limit); r.Bad != nil || r.Executions != 2 {
		t.Errorf("%d executions, bad: %v", r.Executions, r.Bad)
	}
	for _, p := range []Program{mp(Relaxed, Acquire), mp(Release, Relaxed), mp(Relaxed, SeqCst)} {
		if r := Explore(p, limit); r.Bad == nil || !strings.Contains(r.Bad.Why, "race on data") {
			t.Errorf("%v", r.Bad)
		}
	}
}

func TestAThreadThatNobodyWakesIsBadAndOneThatWaitsInVainIsLeftOut(t *testing.T) {
	awake := func(v uint64) bool { return v != 0 }
	sleeper := func(writer body) Result {
		return Explore(Program{Name: "sleep", Threads: threads(writer, func(t *T) { t.Sleep("fd", Acquire, awake, "a wake") })}, limit)
	}
	if r := sleeper(store("fd", 1, Release)); r.Bad != nil || r.Executions != 1 {
		t.Errorf("woken: %d executions, %v", r.Executions, r.Bad)
	}
	if r := sleeper(store("other", 1, Release)); r.Bad == nil || !strings.Contains(r.Bad.Why, "B sleeps for ever: a wake") {
		t.Errorf("not woken: %v", r.Bad)
	}
	r := Explore(Program{Name: "await", Threads: threads(func(t *T) { t.Await("x", Acquire, awake) })}, limit)
	if r.Bad != nil || r.LeftOut != 1 || r.Executions != 0 {
		t.Errorf("%d left out, %d executions, %v", r.LeftOut, r.Executions, r.Bad)
	}
}

func TestDekkersLockNeedsSequentialConsistency(t *testing.T) {
	lock := func(s, l Order) Program {
		enter := func(mine, other string) body {
			return func(t *T) {
				t.Store(mine, 1, s)
				if t.Load(other, l) == 0 {
					t.Write("inside", 1)
				}
			}
		}
		return Program{Name: "dekker", Threads: threads(enter("x", "y"), enter("y", "x"))}
	}
	if r := Explore(lock(SeqCst, SeqCst), limit); r.Bad != nil {
		t.Error(r.Bad)
	}
	if r := Explore(lock(Release, Acquire), limit); r.Bad == nil {
		t.Error("nothing found with release and acquire")
	}
}
