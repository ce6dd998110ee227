package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The cases of docs/faults.yaml that the transfer machine shows alone, and that no other test of it is about.

func TestBlocksOfACancelledReadComeBackWhenItsLastTransferHasEnded(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}, {0, -1, 1}} { // -1: both in one step
		b := newBench(t, Config{}, 2)
		j := b.commit(1, 4, b.source(1, 0, 1), b.source(2, 1, 1))
		b.step(0)
		b.ok(b.m.Cancel(j, b.now))
		b.wantOutcome(1, record.ReadCancelled, true)
		for i, k := range order {
			if k < 0 {
				continue
			}
			b.f.land(b.f.posted[k])
			if i+1 < len(order) && order[i+1] < 0 {
				continue
			}
			if i < len(order)-1 {
				b.step(time.Second)
				b.wantNone() // shows C17.1
			}
		}
		b.step(time.Second)
		b.wantBack(1)
		b.wantNone() // shows C17.2, C17.3
		b.wantIdle()
	}
}

func TestASourceThatNeverEndsFailsTheReadAtItsTimeout(t *testing.T) {
	b := newBench(t, Config{}, 4)
	b.commit(1, 4, b.source(1, 0, 1), b.source(2, 1, 1), b.source(3, 2, 1), b.source(4, 3, 1))
	b.step(0)
	for _, k := range []int{0, 1, 3} {
		b.f.land(b.f.posted[k])
	}
	b.step(readTimeout - 1)
	b.wantNone()
	b.step(1)
	b.wantOutcome(1, record.ReadTimeout, true) // shows C22.2
	b.f.land(b.f.posted[2])
	b.step(0)
	b.wantBack(1)
}

func TestEveryStepLooksAtWhatIsInFlight(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	for n := range 20 {
		before := b.f.polls
		b.step(time.Second)
		if b.f.polls == before { // shows F1.1
			t.Fatalf("step %d did not look", n)
		}
	}
}
