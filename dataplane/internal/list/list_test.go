package list

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type entry struct{ a, b Links }

func (e *entry) ofA() *Links { return &e.a }
func (e *entry) ofB() *Links { return &e.b }

func walk(l *List, all []entry, of func(*entry) *Links) (got []uint32) {
	for i := l.Head; i != None; i = of(&all[i]).Next {
		got = append(got, i)
	}
	return got
}

func TestListsKeepTheOrderInWhichEntriesCame(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 1))
	all := make([]entry, 8)
	lists := [2]List{New(), New()}
	ways := [2]func(*entry) *Links{(*entry).ofA, (*entry).ofB}
	var want [2][]uint32
	for step := range 5000 {
		k, i := r.IntN(2), uint32(r.IntN(len(all)))
		at := slices.Index(want[k], i)
		if r.IntN(2) == 0 { // what is in stays where it is
			if Push(&lists[k], all, i, ways[k]); at < 0 {
				want[k] = append(want[k], i)
			}
		} else if Drop(&lists[k], all, i, ways[k]); at >= 0 { // what is not in is none of its business
			want[k] = slices.Delete(want[k], at, at+1)
		}
		for k := range lists {
			if got := walk(&lists[k], all, ways[k]); !slices.Equal(got, want[k]) || lists[k].N != len(want[k]) {
				t.Fatalf("step %d of seed %d: list %d is %v and counts %d, want %v", step, seed, k, got, lists[k].N, want[k])
			}
		}
	}
}
