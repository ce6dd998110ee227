package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// The cases of docs/faults.yaml that the transfer machine shows alone, and that no other test of it is about.

// Two groups of a cache lie in memory of two kinds, so each is a READ of its own. One that fails is the failure of both.
func TestAFailureOfOneGroupHoldsTheBlocksOfAll(t *testing.T) {
	for bad := range 2 {
		local := layoutAt(0x4000_0000, 2, 64, 4096)
		local.Regions[0].Group, local.Regions[1].Group = 0, 1
		local.Regions[1].Mem = transport.VRAM
		f := &fake{t: t, remote: map[uint64]uint64{}}
		b := newBenchOver(t, Config{}, f, f, local)
		s := b.source(3, 0, 2)
		s.Remote.Regions[0].Group, s.Remote.Regions[1].Group = 0, 1
		s.Remote.Regions[1].Mem = transport.VRAM
		j, st := b.m.Begin(1, b.now)
		b.ok(st)
		b.ok(add(b.m, j, s))
		b.ok(b.m.AddRuns(j, []record.Run{{Group: 0, Local: 1, Remote: 1, N: 3}, {Group: 1, Local: 7, Remote: 7, N: 2}}))
		b.ok(b.m.Commit(j, b.now))
		b.step(0)
		if b.posts() != 2 {
			t.Fatalf("%d posts, want one for each group", b.posts())
		}
		f.posted[bad].status = transport.Failed
		b.step(time.Second)
		b.wantNone()
		f.land(f.posted[1-bad])
		b.step(time.Second)
		b.wantOutcome(1, record.ReadFailed, true) // shows C31.2
		b.step(errorWait - 2*time.Second)
		b.wantNone() // shows C31.1: the group that came whole is held with the other
		b.step(time.Second)
		b.wantBack(1)
		b.wantIdle()
	}
}

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
