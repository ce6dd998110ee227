package weakmem

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
)

var (
	programs = flag.Int("programs", 60, "how many random programs to compare with the definition")
	seed     = flag.Uint64("seed", 20, "of these programs")
)

// line is one operation of a random straight program.
type line struct {
	what  byte // r, w, u, f
	word  string
	order Order
	value uint64
}

func randomLines(rng *rand.Rand) (all [][]line) {
	v := uint64(0)
	for range 2 + rng.IntN(2) {
		var ls []line
		for range 1 + rng.IntN(4) {
			l := line{what: "rrwwuf"[rng.IntN(6)], word: []string{"x", "y"}[rng.IntN(2)]}
			switch l.what {
			case 'r':
				l.order = []Order{Relaxed, Acquire, SeqCst}[rng.IntN(3)]
			case 'w':
				l.order = []Order{Relaxed, Release, SeqCst}[rng.IntN(3)]
			case 'u':
				l.order = []Order{Relaxed, Acquire, Release, AcqRel, SeqCst}[rng.IntN(5)]
			case 'f':
				l.order = []Order{Acquire, Release, AcqRel, SeqCst, SeqCst}[rng.IntN(5)]
			}
			v++
			l.value = v
			ls = append(ls, l)
		}
		all = append(all, ls)
	}
	return all
}

func events(all [][]line) (n int) {
	for _, ls := range all {
		n += len(ls)
	}
	return n
}

// searched is every outcome that Explore finds: what each read saw, and the last value of each word.
func searched(t *testing.T, all [][]line) []string {
	p := Program{Name: "random"}
	for ti, ls := range all {
		p.Threads = append(p.Threads, Thread{Name: fmt.Sprint(ti), Body: func(t *T) {
			for i, l := range ls {
				switch l.what {
				case 'r':
					t.Note(fmt.Sprintf("%d.%d", ti, i), t.Load(l.word, l.order))
				case 'w':
					t.Store(l.word, l.value, l.order)
				case 'u':
					t.Note(fmt.Sprintf("%d.%d", ti, i), t.Swap(l.word, l.value, l.order))
				case 'f':
					t.Fence(l.order)
				}
			}
		}})
	}
	found := map[string]bool{}
	if r := ExploreAll(p, limit, func(f *Final) { found[outcome(f.Notes, f.Words)] = true }); r.Bad != nil {
		t.Fatal(r.Bad)
	}
	return keys(found)
}

func outcome(notes, words map[string]uint64) string {
	var parts []string
	for k, v := range notes {
		parts = append(parts, fmt.Sprintf("%s=%d", k, v))
	}
	for k, v := range words {
		if v != 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", k, v))
		}
	}
	sort.Strings(parts)
	return strings.Join(parts, " ")
}

func keys(m map[string]bool) (all []string) {
	for k := range m {
		all = append(all, k)
	}
	sort.Strings(all)
	return all
}

// matrix is a relation, the plain way.
type matrix [][]bool

func newMatrix(n int) matrix {
	m := make(matrix, n)
	for i := range m {
		m[i] = make([]bool, n)
	}
	return m
}

func (m matrix) then(o matrix) matrix {
	r := newMatrix(len(m))
	for a := range m {
		for b := range m {
			for c := range m {
				r[a][c] = r[a][c] || m[a][b] && o[b][c]
			}
		}
	}
	return r
}

func (m matrix) or(others ...matrix) matrix {
	r := newMatrix(len(m))
	for a := range m {
		for b := range m {
			r[a][b] = m[a][b]
			for _, o := range others {
				r[a][b] = r[a][b] || o[a][b]
			}
		}
	}
	return r
}

func (m matrix) closed() matrix {
	r := m.or()
	for b := range m {
		for a := range m {
			for c := range m {
				r[a][c] = r[a][c] || r[a][b] && r[b][c]
			}
		}
	}
	return r
}

func (m matrix) maybe() matrix {
	r := m.or()
	for a := range m {
		r[a][a] = true
	}
	return r
}

func (m matrix) filter(f func(a, b int) bool) matrix {
	r := newMatrix(len(m))
	for a := range m {
		for b := range m {
			r[a][b] = m[a][b] && f(a, b)
		}
	}
	return r
}

func (m matrix) irreflexive() bool {
	for a := range m {
		if m[a][a] {
			return false
		}
	}
	return true
}

// candidate is one execution: events 0 and 1 are what was there at the start.
type candidate struct {
	lines   []line
	threads []int // -1: the start
	rf      []int
	mo      [][]int // of x and y, the start first
}

// consistent is the definition of RC11, by matrices.
func (c *candidate) consistent() bool {
	n := len(c.lines)
	is := func(f func(l line) bool) matrix { // identity on some events
		m := newMatrix(n)
		for a := range n {
			m[a][a] = f(c.lines[a])
		}
		return m
	}
	reads := func(l line) bool { return l.what == 'r' || l.what == 'u' }
	writes := func(l line) bool { return l.what == 'w' || l.what == 'u' }
	isFence := func(l line) bool { return l.what == 'f' }
	same := func(a, b int) bool {
		return !isFence(c.lines[a]) && !isFence(c.lines[b]) && c.lines[a].word == c.lines[b].word
	}
	sb, rf, mo := newMatrix(n), newMatrix(n), newMatrix(n)
	for b := range n {
		for a := range b {
			sb[a][b] = c.threads[a] < 0 && c.threads[b] >= 0 || c.threads[a] >= 0 && c.threads[a] == c.threads[b]
		}
		if reads(c.lines[b]) {
			rf[c.rf[b]][b] = true
		}
	}
	for _, o := range c.mo {
		for i := range o {
			for j := range i {
				mo[o[j]][o[i]] = true
			}
		}
	}
	back := newMatrix(n)
	for a := range n {
		for b := range n {
			back[b][a] = rf[a][b]
		}
	}
	fr := back.then(mo).filter(func(a, b int) bool { return a != b })
	toUpdate := rf.filter(func(_, b int) bool { return c.lines[b].what == 'u' })
	rs := is(writes).then(toUpdate.closed().maybe())
	fences := is(isFence)
	rel := is(func(l line) bool { return l.order.releases() })
	acq := is(func(l line) bool { return l.order.acquires() })
	sw := rel.then(fences.then(sb).or(is(writes))).then(is(writes)).then(rs).then(rf).
		then(is(reads)).then(sb.then(fences).or(is(reads))).then(acq)
	hb := sb.or(sw).closed()
	eco := rf.or(mo, fr).closed()
	if !hb.irreflexive() || !hb.then(eco).irreflexive() || !sb.or(rf).closed().irreflexive() || !eco.irreflexive() {
		return false
	}
	if between := fr.then(mo); true {
		for a := range n {
			if c.lines[a].what == 'u' && between[a][a] {
				return false
			}
		}
	}
	other := func(a, b int) bool { return !same(a, b) }
	sbOther := sb.filter(other)
	scb := sb.or(sbOther.then(hb).then(sbOther), hb.filter(same), mo, fr)
	sc := is(func(l line) bool { return l.order == SeqCst && l.what != 'i' })
	fsc := is(func(l line) bool { return l.order == SeqCst && isFence(l) })
	psc := sc.or(fsc.then(hb.maybe())).then(scb).then(sc.or(hb.maybe().then(fsc)))
	pscF := fsc.then(hb.or(hb.then(eco).then(hb))).then(fsc)
	return psc.or(pscF).closed().irreflexive()
}

// defined is every outcome that the definition allows, by trying every source of every read and every order of every word.
func defined(all [][]line) []string {
	c := &candidate{lines: []line{{what: 'w', word: "x"}, {what: 'w', word: "y"}}, threads: []int{-1, -1}}
	names := []string{"", ""}
	for ti, ls := range all {
		for i, l := range ls {
			c.lines = append(c.lines, l)
			c.threads = append(c.threads, ti)
			names = append(names, fmt.Sprintf("%d.%d", ti, i))
		}
	}
	writers := map[string][]int{}
	for a, l := range c.lines {
		if l.what == 'w' || l.what == 'u' {
			writers[l.word] = append(writers[l.word], a)
		}
	}
	found := map[string]bool{}
	c.rf = make([]int, len(c.lines))
	var sources func(at int)
	check := func() {
		if !c.consistent() {
			return
		}
		notes, words := map[string]uint64{}, map[string]uint64{}
		for a, l := range c.lines {
			if l.what == 'r' || l.what == 'u' {
				notes[names[a]] = c.lines[c.rf[a]].value
			}
		}
		for i, word := range []string{"x", "y"} {
			words[word] = c.lines[c.mo[i][len(c.mo[i])-1]].value
		}
		found[outcome(notes, words)] = true
	}
	sources = func(at int) {
		if at == len(c.lines) {
			check()
			return
		}
		if l := c.lines[at]; l.what != 'r' && l.what != 'u' {
			sources(at + 1)
			return
		}
		for _, w := range writers[c.lines[at].word] {
			if w != at {
				c.rf[at] = w
				sources(at + 1)
			}
		}
	}
	permute(writers["x"][1:], func(x []int) {
		permute(writers["y"][1:], func(y []int) {
			c.mo = [][]int{append([]int{0}, x...), append([]int{1}, y...)}
			sources(2)
		})
	})
	return keys(found)
}

func permute(s []int, f func([]int)) {
	var rec func(done, rest []int)
	rec = func(done, rest []int) {
		if len(rest) == 0 {
			f(done)
		}
		for i := range rest {
			rec(append(slices.Clone(done), rest[i]), slices.Delete(slices.Clone(rest), i, i+1))
		}
	}
	rec(nil, s)
}

func TestTheSearchFindsWhatTheDefinitionAllowsAndNothingElse(t *testing.T) {
	t.Logf("seed %d, %d programs", *seed, *programs)
	rng := rand.New(rand.NewPCG(*seed, 1))
	outcomes := 0
	for i := 0; i < *programs; {
		all := randomLines(rng)
		if events(all) > 8 {
			continue
		}
		i++
		got, want := searched(t, all), defined(all)
		if !slices.Equal(got, want) {
			t.Fatalf("program %d: %+v\nsearched: %q\ndefined:  %q", i, all, got, want)
		}
		outcomes += len(got)
	}
	if outcomes < 2**programs {
		t.Errorf("%d outcomes of %d programs: they show little", outcomes, *programs)
	}
}
