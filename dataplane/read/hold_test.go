package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// C44 and C67: a late DONE frees the blocks and is never a success.
func TestALateDoneGivesTheBlocksBackAndNothingElse(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.step(readTimeout)
	b.wantOutcome(1, record.ReadTimeout, true)
	b.step(1000 * errorWait) // neither error nor DONE: held, however long
	b.wantNone()
	if g := b.m.Gauges(); g.Held != 1 || g.BlocksHeld != 1 || b.m.Open() != 1 || b.m.NeedsStep() { // shows C41.3, C67.3
		t.Errorf("gauges %+v, open %d", g, b.m.Open())
	}
	if b.f.posted[0].released {
		t.Error("the handle of a transfer in flight was released")
	}
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantBack(1)
	b.wantNone()
	if b.posts() != 1 {
		t.Error("a fence was read for a read that had failed")
	}
	if b.m.Counters.LateEnds != 1 || b.m.Counters.Outcomes[record.ReadOK] != 0 { // shows C44.2
		t.Errorf("counters %+v", b.m.Counters)
	}
	b.wantIdle()
}

func TestAFailedTransferIsKeptAsideForTheErrorWait(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(time.Second)
	if o := b.wantOutcome(1, record.ReadFailed, true); o.Peer != 3 {
		t.Errorf("bad peer %d", o.Peer)
	}
	if p, a := b.m.InFlight(3); p != 0 || a != 1 {
		t.Errorf("in flight %d, aside %d", p, a)
	}
	if due := b.m.NextDue(); due != b.now.Add(errorWait) {
		t.Errorf("next due %d", due)
	}
	b.step(errorWait - 1)
	b.wantNone()
	if b.f.posted[0].released {
		t.Error("released in quarantine")
	}
	b.step(1)
	b.wantBack(1) // shows C34.1, C43.2
	if !b.f.posted[0].released {
		t.Error("the handle is to be released at the end of the quarantine")
	}
	b.wantIdle()
}

func TestTheHoldEndsAfterTheOutcomeWasTaken(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(0)
	b.step(errorWait) // both events are there, nobody has taken the first
	if _, ok := b.m.NextBack(); ok {
		t.Fatal("the blocks came back before the failure was told")
	}
	b.wantOutcome(1, record.ReadFailed, true)
	b.wantBack(1)
	b.wantIdle()
}

// C41: an abort does not call a transfer back.
func TestACancelledReadKeepsItsBlocksUntilTheTransferHasEnded(t *testing.T) {
	b := newBench(t, Config{}, 1)
	j := b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.step(2500 * time.Millisecond)
	b.ok(b.m.Cancel(j, b.now))
	b.wantOutcome(1, record.ReadCancelled, true)
	if b.m.Cancel(j, b.now) != Stale {
		t.Error("cancelled twice")
	}
	b.step(3 * time.Second)
	b.wantNone() // shows C41.1
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantBack(1) // shows C41.2
	b.wantIdle()
}

func TestEndGivesTheCallersReason(t *testing.T) {
	b := newBench(t, Config{}, 1)
	j := b.commit(1, 4, b.source(3, 0, 1))
	if b.m.End(j, record.ReadOK, b.now) != Invalid || b.m.End(j, 99, b.now) != Invalid {
		t.Error("a verdict that is none was taken")
	}
	b.ok(b.m.End(j, record.ReadLost, b.now)) // nothing was posted: nothing is held
	b.wantOutcome(1, record.ReadLost, false)
	b.step(0)
	if b.posts() != 0 {
		t.Error("posted after its end")
	}
	b.wantIdle()
}

// C42: the first failing part does not speak for those that still write.
func TestAFailingSourceWaitsForTheOthers(t *testing.T) {
	b := newBench(t, Config{}, 4)
	b.commit(1, 4, b.source(1, 0, 1), b.source(2, 1, 1), b.source(3, 2, 1), b.source(4, 3, 1))
	b.step(0)
	if b.posts() != 4 {
		t.Fatalf("%d posts, want one for each source", b.posts())
	}
	b.f.posted[2].status = transport.Failed
	b.step(time.Second)
	b.wantNone()
	b.f.land(b.f.posted[0])
	b.f.land(b.f.posted[1])
	b.step(time.Second)
	b.wantNone() // shows C42.2
	if b.posts() != 4 {
		t.Error("fences are read although the request is bad")
	}
	b.f.land(b.f.posted[3])
	b.step(time.Second)
	if o := b.wantOutcome(1, record.ReadFailed, true); o.Peer != 3 || o.Bytes != 3*4*4096 { // shows C42.1, C33.1
		t.Errorf("outcome %+v", o)
	}
	b.wantNone()
	b.step(errorWait - 3*time.Second)
	b.wantNone()
	b.step(time.Second)
	b.wantBack(1)
	b.wantIdle()
}

func TestAFailingSourceWaitsForTheTimeoutOfTheOthersAtMost(t *testing.T) {
	b := newBench(t, Config{}, 2)
	b.commit(1, 4, b.source(1, 0, 1), b.source(2, 1, 1))
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(readTimeout - 1)
	b.wantNone()
	b.step(1)
	b.wantOutcome(1, record.ReadFailed, true) // the first verdict stands
	b.step(10 * errorWait)
	b.wantNone() // one part is still open
	b.f.land(b.f.posted[1])
	b.step(0)
	b.wantBack(1)
	b.wantIdle()
}

func TestOneBadRankMakesTheRequestBad(t *testing.T) {
	for _, tc := range []struct {
		name string
		bad  func(b *bench, fence *fakeXfer)
		want uint8
	}{
		{"stale", func(b *bench, x *fakeXfer) { b.f.remote[rowAddr(2, 0)]++; b.f.land(x) }, record.ReadStale},
		{"unproven", func(b *bench, x *fakeXfer) { x.status = transport.Failed }, record.ReadUnproven},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, Config{}, 2)
			b.commit(1, 4, b.source(1, 0, 1), b.source(2, 1, 1))
			b.step(0)
			b.f.land(b.f.posted[1])
			b.step(0) // the fence of source 2 does not wait for the data of source 1
			if b.posts() != 3 || b.f.posted[2].spec.Peer != 2 {
				t.Fatalf("%d posts", b.posts())
			}
			tc.bad(b, b.f.posted[2])
			b.step(time.Second)
			b.wantNone() // source 1 still writes
			b.f.land(b.f.posted[0])
			b.step(time.Second)
			if o := b.wantOutcome(1, tc.want, false); o.Peer != 2 || o.Proven {
				t.Errorf("outcome %+v", o)
			}
			b.step(errorWait)
			b.wantIdle()
		})
	}
}

func TestNativeAndStockSourcesTogetherAreNotProven(t *testing.T) {
	b := newBench(t, Config{}, 2)
	stock := b.source(2, 1, 1)
	stock.Fence = Fence{}
	b.f.onPost = b.f.land
	b.commit(1, 4, b.source(1, 0, 1), stock)
	b.step(0)
	if o := b.wantOutcome(1, record.ReadOK, false); o.Proven {
		t.Error("proven although one source cannot prove anything")
	}
}

func TestARefusedPostFailsTheReadAtOnce(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.f.postErr = transport.ErrPeer
	b.step(0)
	if o := b.wantOutcome(1, record.ReadFailed, false); o.Peer != 3 {
		t.Errorf("bad peer %d", o.Peer)
	}
	b.wantIdle()
}

func TestARefusedPartWaitsForThePartsBefore(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 1}, 2)
	b.commit(1, 4, b.source(3, 0, 2))
	b.step(0)
	b.f.postErr = transport.ErrPeer
	b.step(0)
	b.wantNone()
	b.f.postErr = nil
	b.step(0)
	if b.posts() != 1 {
		t.Error("a read that is bad posted another part")
	}
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantOutcome(1, record.ReadFailed, false)
	b.wantIdle()
}

func TestAFailedReadPostsNothingMore(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 1}, 4)
	b.commit(1, 4, b.source(3, 0, 4))
	b.step(0)
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(0)
	b.step(0)
	if b.posts() != 2 {
		t.Errorf("%d parts posted, want the 2 from before the failure", b.posts())
	}
	b.f.land(b.f.posted[1])
	b.step(0)
	b.wantOutcome(1, record.ReadFailed, true)
}

func TestATransportThatTakesItsErrorBackKeepsTheBlocksAside(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(0)
	b.wantOutcome(1, record.ReadFailed, true)
	b.f.keep = transport.ErrInvalid // pending after all
	b.step(errorWait)
	b.wantNone()
	if b.m.Counters.ReleaseErrors != 1 || b.m.Open() != 1 {
		t.Errorf("%d release errors, %d open", b.m.Counters.ReleaseErrors, b.m.Open())
	}
	b.f.keep = nil
	b.step(errorWait)
	b.wantBack(1)
	b.wantIdle()
}

// An abandoned peer's reads are told at once; what they may still write stays aside until it has landed, however long that takes.
func TestAbandonTellsNowAndKeepsTheBlocksUntilTheirTransfersEnd(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.posted[0].status = transport.Failed
	b.step(0)
	b.wantOutcome(1, record.ReadFailed, true) // in quarantine, which goes on
	b.commit(2, 4, b.source(3, 0, 1))
	b.step(0)
	b.ok(b.m.ReadRow(9, 3, rowAddr(3, 1), 0, transport.DRAM, record.RowLen, b.now))
	b.commit(3, 4, b.source(4, 0, 1)) // another peer is not touched
	b.step(0)
	if n := b.m.Abandon(3, b.now); n != 2 {
		t.Errorf("%d transfers abandoned, want 2", n)
	}
	if o := b.wantOutcome(2, record.ReadFailed, true); o.Peer != 3 {
		t.Errorf("the bad peer is %d", o.Peer)
	}
	if r, ok := b.m.NextRow(); !ok || r.OK || r.Token != 9 {
		t.Errorf("row result %+v, %v", r, ok)
	}
	if b.m.Abandon(3, b.now) != 0 {
		t.Error("abandoned twice")
	}
	b.f.onPost = b.f.land
	b.f.land(b.f.posted[3])
	b.step(1000 * errorWait)
	b.wantOutcome(3, record.ReadOK, false)
	b.wantBack(1)
	b.wantNone()
	if g := b.m.Gauges(); g.Abandoned != 2 || g.Pending != 2 || g.Aside != 0 || g.Held != 2 || g.BlocksHeld != 1 || b.m.Open() != 2 || b.m.NeedsStep() {
		t.Errorf("gauges %+v, needs step %v", g, b.m.NeedsStep())
	}
	b.f.land(b.f.posted[2])
	b.f.posted[1].status = transport.Done
	b.step(0)
	b.wantBack(2)
	b.wantIdle()
}

func TestAnAbandonedTransferThatFailsWaitsOutItsQuarantine(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.m.Abandon(3, b.now)
	b.wantOutcome(1, record.ReadFailed, true)
	b.f.posted[0].status = transport.Failed
	b.step(1000 * errorWait)
	b.step(errorWait - 1)
	b.wantNone()
	b.step(1)
	b.wantBack(1)
	b.wantIdle()
}

func TestAbandonWhileOnlyTheProofIsMissingIsUnproven(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.land(b.f.posted[0])
	b.step(0)
	if b.posts() != 2 {
		t.Fatal("no fence read")
	}
	b.m.Abandon(3, b.now)
	b.wantOutcome(1, record.ReadUnproven, false)
	b.f.land(b.f.posted[1])
	b.step(0)
	b.wantIdle()
}

// Two sources, one peer abandoned: the outcome does not wait for the other, and the blocks wait for both.
func TestAbandonOfOneOfTwoSourcesHoldsTheBlocksForBoth(t *testing.T) {
	b := newBench(t, Config{}, 2)
	b.commit(1, 4, b.source(3, 0, 1), b.source(4, 1, 1))
	b.step(0)
	b.step(0)
	if n := b.m.Abandon(3, b.now); n != 1 {
		t.Fatalf("%d abandoned", n)
	}
	b.wantOutcome(1, record.ReadFailed, true)
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantNone()
	b.f.land(b.f.posted[1])
	b.step(0)
	b.wantBack(1)
	b.wantIdle()
}

func TestCloseCancelsAndReportsWhatIsOpen(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.commit(2, 4, b.source(3, 0, 1))
	if n := b.m.Close(b.now); n != 1 {
		t.Errorf("%d open, want 1", n)
	}
	b.wantOutcome(1, record.ReadCancelled, true)
	b.wantOutcome(2, record.ReadCancelled, false)
	if _, st := b.m.Begin(3, b.now); st != Closed {
		t.Errorf("Begin answers %v", st)
	}
	if st := b.m.ReadRow(3, 3, rowAddr(3, 0), 0, transport.DRAM, 32, b.now); st != Closed {
		t.Errorf("ReadRow answers %v", st)
	}
	b.f.land(b.f.posted[0])
	b.step(0)
	b.wantBack(1)
	if n := b.m.Close(b.now); n != 0 {
		t.Errorf("%d open, want none", n)
	}
	b.wantIdle()
}

// A request with two cache groups is one request: a part that fails in one of them spoils, and holds, the blocks of both.
func TestAFailureInOneGroupHoldsTheBlocksOfAll(t *testing.T) {
	for failing := range 2 {
		f := &fake{t: t, remote: map[uint64]uint64{}}
		local := layoutAt(0x4000_0000, 2, 64, 4096)
		local.Regions[0].Group, local.Regions[1].Group = 0, 1
		b := newBenchOver(t, Config{}, f, f, local)
		sources := []from{b.source(1, 0, 1), b.source(2, 1, 1)}
		sources[0].Remote.Regions[0].Group, sources[1].Remote.Regions[0].Group = 0, 1
		j, st := b.m.Begin(1, b.now)
		b.ok(st)
		b.ok(add(b.m, j, sources...))
		b.ok(b.m.AddRuns(j, []record.Run{{Group: 0, Local: 1, Remote: 1, N: 3}, {Group: 1, Local: 7, Remote: 7, N: 2}}))
		b.ok(b.m.Commit(j, b.now))
		b.step(0)
		if b.posts() != 2 {
			t.Fatalf("%d posts, want one for each group", b.posts())
		}
		b.f.posted[failing].status = transport.Failed
		b.f.land(b.f.posted[1-failing])
		b.step(time.Second)
		if o := b.wantOutcome(1, record.ReadFailed, true); o.Peer != transport.Peer(failing+1) { // shows C31.1, C31.2
			t.Errorf("group %d failed, and the outcome names peer %d", failing, o.Peer)
		}
		if b.posts() != 2 {
			t.Error("the good group's data is asked to be proven")
		}
		b.step(errorWait - 1)
		b.wantNone() // shows C31.1: neither group's blocks
		b.step(1)
		b.wantBack(1)
		b.wantNone() // shows C31.2: nothing more is told
		b.wantIdle()
	}
}
