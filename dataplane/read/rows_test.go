package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestARowIsReadAndGivenOnce(t *testing.T) {
	b := newBench(t, Config{}, 1)
	for i, v := range []uint64{5, 6, 7, 0} {
		b.f.remote[rowAddr(3, 1)+uint64(i)*8] = v
	}
	b.now = 77
	b.ok(b.m.ReadRow(9, 3, rowAddr(3, 1), 2, transport.VRAM, record.RowLen, b.now))
	x := b.f.posted[0]
	if x.spec.RemoteMem != transport.VRAM || x.spec.Descs[0].RemoteDevice != 2 || x.spec.Descs[0].Len != record.RowLen {
		t.Errorf("posted %+v", x.spec)
	}
	if _, ok := b.m.NextRow(); ok || !b.m.NeedsStep() {
		t.Error("a result before its end")
	}
	b.f.land(x)
	b.step(time.Millisecond)
	r, ok := b.m.NextRow()
	if want := (RowResult{Token: 9, Row: record.Row{Fence: 5, DeadlineUs: 6, GenBeats: 7}, Posted: 77, Peer: 3, OK: true}); !ok || r != want {
		t.Errorf("result %+v, want %+v", r, want)
	}
	if _, ok := b.m.NextRow(); ok {
		t.Error("two results")
	}
	b.wantIdle()
}

func TestAProbeBringsOneWord(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.f.remote[rowAddr(3, 1)], b.f.remote[rowAddr(3, 1)+8] = 5, 6
	b.ok(b.m.ReadRow(9, 3, rowAddr(3, 1), 0, transport.DRAM, ProbeBytes, b.now))
	b.f.land(b.f.posted[0])
	b.step(0)
	if r, _ := b.m.NextRow(); !r.OK || r.Row != (record.Row{Fence: 5}) {
		t.Errorf("result %+v", r)
	}
	for _, n := range []uint32{0, 4, 12, 40} {
		if st := b.m.ReadRow(9, 3, rowAddr(3, 1), 0, transport.DRAM, n, b.now); st != Invalid {
			t.Errorf("%d bytes: %v", n, st)
		}
	}
}

func TestALandingRowIsNotUsedAgainWhileItsReadMayWrite(t *testing.T) {
	b := newBench(t, Config{RowsMax: 2, RowTimeout: time.Second}, 1)
	b.ok(b.m.ReadRow(1, 3, rowAddr(3, 1), 0, transport.DRAM, 32, b.now)) // never ends
	b.ok(b.m.ReadRow(2, 4, rowAddr(4, 1), 0, transport.DRAM, 32, b.now)) // fails
	b.f.posted[1].status = transport.Failed
	b.step(0)
	if r, ok := b.m.NextRow(); !ok || r.OK || r.Token != 2 {
		t.Errorf("result %+v, %v", r, ok)
	}
	if due := b.m.NextDue(); due != b.now.Add(time.Second) {
		t.Errorf("next due %d", due)
	}
	b.step(time.Second)
	if r, ok := b.m.NextRow(); !ok || r.OK || r.Token != 1 {
		t.Errorf("result %+v, %v", r, ok)
	}
	if st := b.m.ReadRow(3, 5, rowAddr(5, 1), 0, transport.DRAM, 32, b.now); st != Full {
		t.Fatalf("both rows may be written, but a third read got %v", st)
	}
	b.step(errorWait) // the end of the quarantine frees one
	b.ok(b.m.ReadRow(3, 5, rowAddr(5, 1), 0, transport.DRAM, 32, b.now))
	if b.f.posted[2].spec.Descs[0].Local != b.f.posted[1].spec.Descs[0].Local {
		t.Error("the row that is still open was used again")
	}
	b.f.land(b.f.posted[2])
	b.f.land(b.f.posted[0]) // late: no second result
	b.step(0)
	if r, ok := b.m.NextRow(); !ok || !r.OK || r.Token != 3 {
		t.Errorf("result %+v, %v", r, ok)
	}
	if r, ok := b.m.NextRow(); ok {
		t.Errorf("a second result %+v", r)
	}
	b.wantIdle()
}

func TestRowReadsAreBoundedByStepAndPeer(t *testing.T) {
	b := newBench(t, Config{RowsMax: 16, RowsStepMax: 5, RowsPeer: 3, RowTimeout: time.Second}, 1)
	row := func(peer transport.Peer) Status {
		return b.m.ReadRow(1, peer, rowAddr(peer, 1), 0, transport.DRAM, 32, b.now)
	}
	for i, want := range []Status{OK, OK, OK, Full} { // one peer may not take all
		if st := row(1); st != want {
			t.Errorf("row %d of peer 1: %v, want %v", i, st, want)
		}
	}
	for i, want := range []Status{OK, OK, Full} { // five a step
		if st := row(2); st != want {
			t.Errorf("row %d of peer 2: %v, want %v", i, st, want)
		}
	}
	b.step(time.Second)
	for range 5 {
		if r, ok := b.m.NextRow(); !ok || r.OK {
			t.Fatalf("result %+v, %v", r, ok)
		}
	}
	if st := row(1); st != Busy {
		t.Errorf("a peer that does not answer its rows: %v, want busy", st)
	}
	b.ok(row(5))
	for _, x := range b.f.posted[:3] {
		b.f.land(x)
	}
	b.step(0)
	b.ok(row(1))
	b.f.postErr = transport.ErrPeer
	if st := row(5); st != Refused {
		t.Errorf("a post that is refused: %v", st)
	}
	b.f.postErr = transport.ErrFull
	if st := row(5); st != Full {
		t.Errorf("a post without room: %v", st)
	}
}

func TestPeersThatDoNotAnswerLeaveARowForEachThatDoes(t *testing.T) {
	b := newBench(t, Config{RowsMax: 64, RowsStepMax: 64, RowsPeer: 16}, 1)
	row := func(peer transport.Peer) Status {
		return b.m.ReadRow(1, peer, rowAddr(peer, 1), 0, transport.DRAM, 32, b.now)
	}
	for peer := transport.Peer(1); peer <= 4; peer++ {
		for range 16 {
			row(peer)
		}
	}
	for peer := transport.Peer(5); peer <= 8; peer++ {
		if st := row(peer); st != OK {
			t.Errorf("the first row of peer %d: %v, want ok", peer, st)
		}
		if st := row(peer); st != Full {
			t.Errorf("the second row of peer %d: %v, want full", peer, st)
		}
	}
}

func TestResultsNotTakenStopNewRows(t *testing.T) {
	b := newBench(t, Config{RowsMax: 2}, 1)
	b.f.onPost = b.f.land
	for range 2 {
		b.ok(b.m.ReadRow(1, 3, rowAddr(3, 1), 0, transport.DRAM, 32, b.now))
		b.step(0)
	}
	if st := b.m.ReadRow(1, 3, rowAddr(3, 1), 0, transport.DRAM, 32, b.now); st != Full {
		t.Errorf("no room for the result, but %v", st)
	}
	b.m.NextRow()
	b.ok(b.m.ReadRow(1, 3, rowAddr(3, 1), 0, transport.DRAM, 32, b.now))
}

func TestEveryStatusHasAName(t *testing.T) {
	seen := map[string]bool{"": true, "unknown": true}
	for st := range statuses {
		if name := st.String(); seen[name] {
			t.Errorf("status %d is called %q", st, name)
		} else {
			seen[name] = true
		}
	}
}
