package due

import (
	"math/rand/v2"
	"testing"

	"github.com/kvlease/kvlease/dataplane/clock"
)

func TestTheHeapGivesTheEarliestEntry(t *testing.T) {
	const seed = 5
	rnd := rand.New(rand.NewPCG(seed, 1))
	h := New(50)
	want := map[uint32]clock.Instant{}
	for step := range 50000 {
		i := uint32(rnd.IntN(50))
		at := clock.Instant(rnd.IntN(40))
		if rnd.IntN(4) == 0 {
			at = clock.Never
			delete(want, i)
		} else {
			want[i] = at
		}
		h.Set(i, at)
		if got := h.At(i); got != at {
			t.Fatalf("seed %d step %d: %d at %d, want %d", seed, step, i, got, at)
		}
		best, first := clock.Never, ^uint32(0)
		for k, v := range want {
			if v < best || v == best && k < first {
				best, first = v, k
			}
		}
		if i, at := h.First(); at != best || best != clock.Never && i != first {
			t.Fatalf("seed %d step %d: first %d at %d, want %d at %d", seed, step, i, at, first, best)
		}
	}
}
