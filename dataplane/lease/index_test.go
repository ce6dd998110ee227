package lease

import (
	"math/rand/v2"
	"testing"
)

// check asks for every tag of want and walks the order.
func (x *index) check(t *testing.T, want map[uint64]uint64) {
	t.Helper()
	if x.used != len(want) {
		t.Fatalf("%d entries, want %d", x.used, len(want))
	}
	for tag, word := range want {
		i := x.find(tag)
		if i < 0 || x.entries[i].word != word {
			t.Fatalf("tag %#x found at %d, want word %d", tag, i, word)
		}
	}
	last, n := ^uint64(0), 0
	for i, e := range x.entries {
		if e.tag == 0 {
			continue
		}
		n++
		if (e.tag >= last && n > 1) || x.home(e.tag) > i {
			t.Fatalf("entry %d with tag %#x is out of order", i, e.tag)
		}
		last = e.tag
	}
	if n != len(want) {
		t.Fatalf("%d entries lie in the table, want %d", n, len(want))
	}
}

func TestIndexIsAMapThatLeavesNothingBehind(t *testing.T) {
	seed := uint64(20261129)
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for round := range 50 {
		x, want := newIndex(200), map[uint64]uint64{}
		var tags []uint64
		for range 3000 {
			if len(tags) > 0 && (rng.IntN(2) == 0 || len(tags) == 300) { // up to three quarters full: runs are long
				i := rng.IntN(len(tags))
				x.remove(x.find(tags[i]))
				delete(want, tags[i])
				tags[i] = tags[len(tags)-1]
				tags = tags[:len(tags)-1]
			} else {
				tag, word := rng.Uint64()|1, rng.Uint64()
				if round%2 == 1 {
					tag = tag>>3 | 1 // crowded into an eighth of the homes
				}
				if x.find(tag) >= 0 {
					continue
				}
				if !x.insert(tag, word) {
					t.Fatal("refused")
				}
				want[tag] = word
				tags = append(tags, tag)
			}
			if x.find(rng.Uint64()|1) >= 0 {
				t.Fatal("found what is not there")
			}
		}
		x.check(t, want)
		for _, tag := range tags {
			x.remove(x.find(tag))
		}
		x.check(t, nil)
	}
}

func TestIndexRefusesARunPastItsBoundAndKeepsTheRest(t *testing.T) {
	for _, high := range []bool{false, true} { // runs at the front and past the last home
		x, want := newIndex(10000), map[uint64]uint64{}
		refused := 0
		for i := range uint64(2 * probeMax) {
			tag := i + 1
			if high {
				tag = ^uint64(0) - i
			}
			if x.insert(tag, i) {
				want[tag] = i
			} else {
				refused++
			}
		}
		if len(want) < probeMax-1 || refused == 0 {
			t.Errorf("%d taken and %d refused, want the bound of %d", len(want), refused, probeMax)
		}
		x.check(t, want)
	}
}

func TestALeaseWithoutAnIndexEntryIsHeldAndKnownByKeyOnly(t *testing.T) {
	r := newRig(t, 4)
	tag := r.t.tag([]byte("a"))
	for i := uint64(1); r.t.index.insert(tag+i, 0); i++ { // as if that many ids had hashed to one place
	}
	used := r.t.index.used
	a := r.grant("a")
	r.wantCount("leases without an entry", r.c.IndexFull, 1)
	r.want(r.beat("a"), Unknown)
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Applied)
	r.wantHeld(a)
	r.run(at(30.2))
	r.wantEnded(4, a)
	if r.t.index.used != used {
		t.Errorf("%d entries, want the %d of before", r.t.index.used, used)
	}
}
