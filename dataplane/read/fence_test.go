package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func isFence(x *fakeXfer) bool { return x.spec.Descs[0].Remote >= boardBase }

func TestTheFenceIsReadAfterTheDataHasEnded(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(7, 4, b.source(3, 0, 1))
	b.step(0)
	if b.posts() != 1 || isFence(b.f.posted[0]) {
		t.Fatalf("%d posts after the first step, want the data alone", b.posts())
	}
	for range 5 { // the data is on its way: no fence
		b.step(time.Second)
	}
	if b.posts() != 1 { // shows C23.1
		t.Fatal("something was posted while the data was in flight")
	}
	b.f.land(b.f.posted[0])
	b.step(time.Second)
	if b.posts() != 2 || !isFence(b.f.posted[1]) || b.f.posted[1].spec.Peer != 3 || len(b.f.posted[1].spec.Descs) != 1 {
		t.Fatal("the fence read is to follow alone, to the same peer")
	}
	b.wantNone()
	b.f.land(b.f.posted[1])
	b.step(time.Millisecond)
	o := b.wantOutcome(7, record.ReadOK, false)
	if !o.Proven || o.Bytes != 4*4096 || o.Took != 6*time.Second+time.Millisecond {
		t.Errorf("outcome %+v", o)
	}
	b.wantNone()
	b.wantIdle()
}

func TestTheFenceDecides(t *testing.T) {
	for _, tc := range []struct {
		name string
		word uint64
		end  transport.Status
		want uint8
	}{
		{"an equal word is proof", want, transport.Done, record.ReadOK},
		{"the next use is stale", want + 1, transport.Done, record.ReadStale},
		{"an earlier use is stale", want - 1, transport.Done, record.ReadStale},
		{"a closed board is stale", record.FenceClosed, transport.Done, record.ReadStale},
		{"a failed fence read proves nothing", want, transport.Failed, record.ReadUnproven},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, Config{}, 1)
			b.commit(1, 4, b.source(3, 0, 1))
			b.step(0)
			b.f.land(b.f.posted[0])
			b.step(0)
			b.f.remote[rowAddr(3, 0)] = tc.word
			b.f.land(b.f.posted[1])
			b.f.posted[1].status = tc.end
			b.step(0)
			// shows C26.1
			b.wantOutcome(1, tc.want, false) // the data is DONE: the blocks are free whatever the fence says
			if tc.end == transport.Failed {
				if b.m.Gauges().Reads != 1 {
					t.Error("the landing row was given back while the fence read may still write it")
				}
				b.step(errorWait)
			}
			b.wantNone()
			b.wantIdle()
		})
	}
}

func TestADoneFenceThatBroughtNothingIsNoProof(t *testing.T) {
	b := newBench(t, Config{ReadsMax: 1}, 1)
	for token := range uint64(2) { // the second read gets the landing row in which the first one found want
		n := b.posts()
		b.commit(token, 4, b.source(3, 0, 1))
		b.step(0)
		b.f.land(b.f.posted[n])
		b.step(0)
		if token == 0 {
			b.f.land(b.f.posted[n+1])
		} else {
			b.f.posted[n+1].status = transport.Done
		}
		b.step(0)
		b.wantOutcome(token, []uint8{record.ReadOK, record.ReadStale}[token], false)
	}
}

func TestAFenceThatIsRefusedProvesNothing(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.land(b.f.posted[0])
	b.f.postErr = transport.ErrPeer
	b.step(0)
	if o := b.wantOutcome(1, record.ReadUnproven, false); o.Peer != 3 {
		t.Errorf("bad peer %d, want 3", o.Peer)
	}
	b.wantIdle()
}

// TestWhatFailsForAReasonOfThisSideSpeaksAgainstNobody: refused at once, or as the end of a transfer; of data, of a fence, of a row.
func TestWhatFailsForAReasonOfThisSideSpeaksAgainstNobody(t *testing.T) {
	row := func(b *bench) Status {
		return b.m.ReadRow(7, 3, rowAddr(3, 1), 0, transport.DRAM, record.RowLen, b.now)
	}
	for _, tc := range []struct {
		name string
		want uint8
		held bool
		do   func(b *bench)
	}{
		{"data that is refused", record.ReadFailed, false, func(b *bench) { b.f.postErr = transport.ErrInvalid; b.step(0) }},
		{"data whose transfer fails", record.ReadFailed, true, func(b *bench) { b.step(0); b.f.posted[0].status = transport.FailedHere; b.step(0) }},
		{"a fence that is refused", record.ReadUnproven, false, func(b *bench) {
			b.step(0)
			b.f.land(b.f.posted[0])
			b.f.postErr = transport.ErrUnavailable
			b.step(0)
		}},
		{"a fence whose transfer fails", record.ReadUnproven, false, func(b *bench) {
			b.step(0)
			b.f.land(b.f.posted[0])
			b.step(0)
			b.f.posted[1].status = transport.FailedHere
			b.step(0)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t, Config{}, 1)
			b.commit(1, 4, b.source(3, 0, 1))
			tc.do(b)
			if o := b.wantOutcome(1, tc.want, tc.held); o.Peer != 0 || !o.Here || b.m.Counters.FailedHere != 1 {
				t.Errorf("bad peer %d, here %v, counted %d times", o.Peer, o.Here, b.m.Counters.FailedHere)
			}
			b.f.postErr = nil
			b.commit(2, 4, b.source(3, 0, 1)) // the next one is the peer's
			b.f.postErr = transport.ErrPeer
			b.step(0)
			if o := b.wantOutcome(2, record.ReadFailed, false); o.Peer != 3 || o.Here {
				t.Errorf("the next: bad peer %d, here %v", o.Peer, o.Here)
			}
		})
	}
	b := newBench(t, Config{}, 1)
	b.f.postErr = transport.ErrRange // what the peer's map names and its metadata has not: its own fault, and none of the connection
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	if o := b.wantOutcome(1, record.ReadFailed, false); o.Peer != 0 || o.Here || b.m.Counters.FailedHere != 0 {
		t.Errorf("out of the peer's range: bad peer %d, here %v, counted %d times", o.Peer, o.Here, b.m.Counters.FailedHere)
	}
	if st := row(b); st != Refused {
		t.Errorf("a row out of the peer's range: %v, want %v", st, Refused)
	}
	b.f.postErr = transport.ErrInvalid
	if st := row(b); st != Unable {
		t.Errorf("a row that is refused: %v, want %v: it may be read later", st, Unable)
	}
	b.f.postErr = nil
	b.step(0)
	if st := row(b); st != OK {
		t.Fatalf("a row: %v", st)
	}
	b.f.posted[0].status = transport.FailedHere
	b.step(0)
	if r, ok := b.m.NextRow(); !ok || r.OK || !r.Here || r.Peer != 3 || b.m.Counters.FailedHere != 2 {
		t.Errorf("%+v %v, counted %d times", r, ok, b.m.Counters.FailedHere)
	}
}

// TestAReadThatItsCallerEndsIsCancelled: what had failed in it here is no news any more.
func TestAReadThatItsCallerEndsIsCancelled(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 1}, 2)
	b.commit(1, 4, b.source(3, 0, 2))
	b.step(0)
	b.f.postErr = transport.ErrInvalid
	b.step(0) // bad, and waits for the first part
	b.m.Close(b.now)
	if o := b.wantOutcome(1, record.ReadCancelled, true); o.Here || o.Peer != 0 {
		t.Errorf("bad peer %d, here %v", o.Peer, o.Here)
	}
}

func TestAFenceThatFindsNoRoomIsPostedLater(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.land(b.f.posted[0])
	b.f.postErr = transport.ErrFull
	b.step(time.Second)
	b.wantNone()
	b.f.postErr = nil
	b.f.onPost = b.f.land
	b.step(time.Second)
	b.wantOutcome(1, record.ReadOK, false)
}

// A fence read that is never answered: C67 for the proof.
func TestAFenceThatTimesOutProvesNothingAndKeepsItsRow(t *testing.T) {
	b := newBench(t, Config{ReadsMax: 1}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.land(b.f.posted[0])
	b.step(time.Second)
	b.step(readTimeout - time.Second - 1)
	b.wantNone()
	b.step(1)
	b.wantOutcome(1, record.ReadUnproven, false)
	if _, st := b.m.Begin(2, b.now); st != Full {
		t.Error("the read's place, and its landing row with it, was given out while the fence read is open")
	}
	b.f.land(b.f.posted[1])
	b.step(time.Hour)
	b.wantNone() // no success, no second event
	b.wantIdle()
}

func TestAStockSourceIsReportedUnprovenByTheMachine(t *testing.T) {
	b := newBench(t, Config{}, 1)
	s := b.source(3, 0, 1)
	s.Fence, s.Notif = Fence{}, []byte("req-1:1")
	j := b.commit(1, 4, s)
	copy(s.Notif, "XXXXXXX") // the machine has its own copy
	b.step(0)
	if got := string(b.f.posted[0].spec.Notif); got != "req-1:1" {
		t.Fatalf("notification %q", got)
	}
	b.f.land(b.f.posted[0])
	b.step(0)
	if o := b.wantOutcome(1, record.ReadOK, false); o.Proven {
		t.Error("a stock source is no proof")
	}
	if b.posts() != 1 {
		t.Error("a fence was read from a stock source")
	}
	if b.m.Cancel(j, b.now) != Stale {
		t.Error("a read was cancelled after its outcome")
	}
	b.wantIdle()
}

// C23: the completion that rides on the last part must not overtake the others.
func TestTheLastPartWithACompletionWaitsForTheOthers(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 4}, 3)
	s := b.source(3, 0, 3)
	s.Fence, s.Notif = Fence{}, []byte("req-1:1")
	for i := range s.Remote.Regions {
		s.Remote.Regions[i].BlockStride += 64 // not dense: one descriptor a block, 12 in all
	}
	b.commit(1, 4, s)
	for range 5 {
		b.step(time.Second)
	}
	if b.posts() != 2 {
		t.Fatalf("%d parts posted, want 2 and the third held back", b.posts())
	}
	b.f.land(b.f.posted[1])
	b.step(time.Second)
	if b.posts() != 2 {
		t.Fatal("the last part was posted while the first is in flight")
	}
	b.f.land(b.f.posted[0])
	b.step(time.Second)
	if b.posts() != 3 || len(b.f.posted[0].spec.Notif)+len(b.f.posted[1].spec.Notif) != 0 || len(b.f.posted[2].spec.Notif) == 0 {
		t.Fatal("the completion is to ride on the third part alone")
	}
	b.f.land(b.f.posted[2])
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	b.wantIdle()
}

// C24: a read that ends inside its post needs nothing else than one that goes on.
func TestAReadThatEndsInsideItsPostIsOverInOneStep(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.f.onPost = b.f.land
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
	if b.posts() != 2 {
		t.Errorf("%d posts, want data and fence", b.posts())
	}
	b.wantIdle()
}

// C06: the deadline starts at the post of the last part, not at the commit.
func TestTheTimeoutRunsFromThePostOfTheLastPart(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 2}, 2)
	s := b.source(3, 0, 2)
	for i := range s.Remote.Regions {
		s.Remote.Regions[i].BlockStride += 64 // two parts of two descriptors
	}
	b.f.postErr = transport.ErrFull
	b.commit(1, 2, s)
	b.step(0)
	b.step(readTimeout - 1) // waiting for room is covered by heartbeats alone
	b.wantNone()
	b.f.postErr = nil
	b.step(0)
	b.step(readTimeout - 1)
	if b.posts() != 2 {
		t.Fatalf("%d posts, want both parts", b.posts())
	}
	b.step(readTimeout - 1)
	b.wantNone()
	b.step(1)
	o := b.wantOutcome(1, record.ReadTimeout, true)
	if o.Bytes != 0 || o.Took != 2*readTimeout-1 { // shows C06.1
		t.Errorf("outcome %+v", o)
	}
}

// It does not wait for ever: of what was never posted nothing is aside.
func TestAReadThatNeverFindsRoomTimesOut(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.f.postErr = transport.ErrFull
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.step(readTimeout - 1)
	b.wantNone()
	b.step(1)
	b.wantOutcome(1, record.ReadTimeout, false)
	b.wantIdle()
}

func TestTheSpinIsBoundedAndOnlyForFences(t *testing.T) {
	for _, fast := range []bool{false, true} {
		f := &fake{t: t, remote: map[uint64]uint64{}, fast: fast}
		b := newBenchOver(t, Config{}, f, f, layoutAt(0x4000_0000, 1, 64, 4096))
		b.commit(1, 4, b.source(3, 0, 1))
		b.step(0)
		f.land(f.posted[0])
		sum := func() (n int64) {
			for _, s := range f.spins {
				n += s
			}
			f.spins = f.spins[:0]
			return n
		}
		if n := sum(); n != 0 {
			t.Errorf("fast %v: spun %d ns for data", fast, n)
		}
		b.step(0)
		want := int64(300_000)
		if fast {
			want = 50_000
		}
		if n := sum(); n != want {
			t.Errorf("fast %v: spun %d ns for a fence, want %d", fast, n, want)
		}
		b.step(0)
		if n := sum(); n != 0 {
			t.Errorf("fast %v: spun %d ns for a fence of an earlier step", fast, n)
		}
	}
}

func TestAFenceAnsweredWithinTheSpinEndsTheReadInItsStep(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.f.land(b.f.posted[0])
	spins := 0
	b.f.onPoll = func(spin int64) {
		if spin > 0 {
			if spins++; spins == fenceRounds {
				b.f.land(b.f.posted[1])
			}
		}
	}
	b.step(0)
	b.wantOutcome(1, record.ReadOK, false)
}
