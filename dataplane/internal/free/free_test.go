package free

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestAPlaceIsInOneHandUntilItIsGivenBack(t *testing.T) {
	const seed, n = 7, 12
	r := rand.New(rand.NewPCG(seed, 1))
	f := New(n)
	var taken, back []uint32 // back: the last is given out first
	fresh := uint32(0)
	for step := range 5000 {
		if r.IntN(2) == 0 {
			want := None
			switch {
			case len(back) > 0:
				want, back = back[len(back)-1], back[:len(back)-1]
			case fresh < n:
				want = fresh
				fresh++
			}
			got := f.Take()
			if got != want {
				t.Fatalf("step %d of seed %d: place %d, want %d", step, seed, got, want)
			}
			if got != None {
				taken = append(taken, got)
			}
		} else if len(taken) > 0 {
			at := r.IntN(len(taken))
			f.Give(taken[at])
			back = append(back, taken[at])
			taken = slices.Delete(taken, at, at+1)
		}
		if f.Used() != len(taken) || f.Left() != n-len(taken) {
			t.Fatalf("step %d of seed %d: %d used, %d left, want %d and %d", step, seed, f.Used(), f.Left(), len(taken), n-len(taken))
		}
	}
}

func TestATableWithoutPlacesGivesNone(t *testing.T) {
	f := New(0)
	if got := f.Take(); got != None || f.Left() != 0 || f.Used() != 0 {
		t.Errorf("place %d, %d left, %d used", got, f.Left(), f.Used())
	}
}

func TestTakingAndGivingAllocatesNothing(t *testing.T) {
	const n = 1000
	f := New(n)
	allocs := testing.AllocsPerRun(100, func() {
		for range n {
			f.Take()
		}
		for i := range uint32(n) {
			f.Give(i)
		}
	})
	if allocs != 0 || f.Left() != n {
		t.Errorf("%v allocations, %d places left", allocs, f.Left())
	}
}
