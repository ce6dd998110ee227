package timeheap

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestTheSoonestComesFirst(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 8))
	var h Heap[int64, int]
	in := map[uint64]Item[int64, int]{}
	for n := range 20000 {
		if r.IntN(5) < 2 || h.Len() == 0 {
			at := r.Int64N(1000)
			seq := h.Push(at, n)
			if _, ok := in[seq]; ok {
				t.Fatalf("number %d was given twice", seq)
			}
			in[seq] = Item[int64, int]{at, seq, n}
			continue
		}
		top := *h.Top()
		got := h.Pop()
		if got != top || got != in[got.Seq] {
			t.Fatalf("%+v was first and %+v put in, %+v came", top, in[got.Seq], got)
		}
		delete(in, got.Seq)
		if h.Len() != len(in) {
			t.Fatalf("%d counted, %d are in", h.Len(), len(in))
		}
		if h.Len() > 0 && h.Top().before(&got) {
			t.Fatalf("%+v came before %+v", got, *h.Top())
		}
	}
}
