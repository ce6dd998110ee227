package read

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Parts end in any order. The word is asked for when the last one has ended, whichever that is.
func TestTheFenceOfAReadInPartsIsReadAfterAllOfThemHaveEnded(t *testing.T) {
	orders := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}
	for _, order := range orders {
		b := newBench(t, Config{DescsStepMax: 2, PartsMax: 3}, 6) // six regions, so six descriptors in parts of two
		b.commit(1, 1, b.source(3, 0, 6))
		for range 6 {
			b.step(0)
		}
		if b.posts() != 3 {
			t.Fatalf("%d posts, want 3 parts", b.posts())
		}
		for n, k := range order {
			b.f.posted[k].status = transport.Done
			b.step(0)
			if want := 3 + n/2; b.posts() != want {
				t.Fatalf("order %v: %d posts after %d parts have ended, want %d", order, b.posts(), n+1, want)
			}
			if n < 2 {
				b.wantNone()
			}
		}
		if f := b.f.posted[3].spec; len(f.Descs) != 1 || f.Descs[0].Len != 8 || f.Descs[0].Remote != rowAddr(3, 0) {
			t.Errorf("the fence read is %+v, want the first word of the row alone", f.Descs)
		}
		b.f.land(b.f.posted[3])
		b.step(0)
		b.wantOutcome(1, record.ReadOK, false)
		b.wantIdle()
	}
}

// A read whose last part waits for the others has nothing to post. It takes no share of the step, and keeps nobody waiting.
func TestAReadThatWaitsForItsOwnPartsKeepsNoOtherFromBeingPosted(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 4, PostsStepMax: 8}, 5)
	stock := b.source(1, 0, 5)
	stock.Fence, stock.Notif = Fence{}, []byte("id:1")
	b.commit(1, 1, stock) // four descriptors now, the last one with the completion when they have ended
	b.step(0)
	if b.posts() != 1 {
		t.Fatalf("%d posts, want the first part", b.posts())
	}
	b.commit(2, 1, b.source(2, 0, 5))
	b.commit(3, 1, b.source(3, 0, 5))
	b.step(0)
	got := map[transport.Peer]int{}
	for _, x := range b.f.posted[1:] {
		got[x.spec.Peer] += len(x.spec.Descs)
	}
	if got[1] != 0 || got[2]+got[3] != 4 || got[2] == 0 {
		t.Errorf("descriptors posted to each peer %v, want four to the others", got)
	}
}
