package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestWhatReadsCostIsCountedOnce(t *testing.T) {
	b := newBench(t, Config{DescsStepMax: 2, RowsStepMax: 3, RowsPeer: 2, RowTimeout: time.Second}, 6)
	b.f.onPost = b.f.land
	b.commit(1, 1, b.source(3, 0, 6)) // three parts
	for range 4 {
		b.step(0)
	}
	b.wantOutcome(1, record.ReadOK, false)
	b.f.onPost = nil
	row := func(peer transport.Peer) Status {
		return b.m.ReadRow(1, peer, rowAddr(peer, 1), 0, transport.DRAM, record.RowLen, b.now)
	}
	for i, want := range []Status{OK, OK, Full} { // two for a peer
		if st := row(1); st != want {
			t.Errorf("row %d: %v, want %v", i, st, want)
		}
	}
	b.step(time.Second)
	if st := row(1); st != Busy {
		t.Errorf("row of a peer that does not answer: %v, want %v", st, Busy)
	}
	b.f.posted[len(b.f.posted)-1].status = transport.Failed
	b.step(0)
	b.f.postErr = transport.ErrPeer
	if st := row(2); st != Refused {
		t.Errorf("row of a peer that is lost: %v, want %v", st, Refused)
	}
	b.f.postErr = transport.ErrFull
	if st := row(2); st != Full {
		t.Errorf("row without room: %v, want %v", st, Full)
	}
	c := b.m.Counters
	for _, tc := range []struct {
		name      string
		got, want uint64
	}{
		{"reads", c.Reads, 1}, {"parts", c.DataPosts, 3}, {"descriptors", c.Descs, 6}, {"fences", c.FencePosts, 1}, {"bytes", c.Bytes, 6 * 4096},
		{"outcomes", c.Outcomes[record.ReadOK], 1}, {"rows", c.RowPosts, 2}, {"rows without room", c.RowsFull, 1}, {"rows of a silent peer", c.RowsBusy, 1},
		{"rows out of time", c.RowTimeouts, 2}, {"failed transfers", c.Failures, 1}, {"ends that came late", c.LateEnds, 1},
		{"refused posts", c.PostErrors, 1}, {"posts put off", c.TransportFull, 1},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, tc.got, tc.want)
		}
	}
}
