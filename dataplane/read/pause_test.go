package read

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The process stood still past all time-outs, and the bytes came meanwhile: nothing was late but ourselves.
func TestWhatHasLandedDuringAPauseCountsAsInTime(t *testing.T) {
	b := newBench(t, Config{}, 1)
	b.commit(1, 4, b.source(3, 0, 1))
	b.step(0)
	b.ok(b.m.ReadRow(7, 3, rowAddr(3, 0), 0, 0, record.RowLen, b.now))
	for _, x := range b.f.posted {
		b.f.land(x)
	}
	b.f.onPost = b.f.land // the fence, too, is answered at once
	b.step(10 * readTimeout)
	b.wantOutcome(1, record.ReadOK, false)
	if row, ok := b.m.NextRow(); !ok || !row.OK || row.Token != 7 {
		t.Errorf("row %+v, %v; want the one that was asked for", row, ok)
	}
	if c := b.m.Counters; c.RowTimeouts+c.Outcomes[record.ReadTimeout] != 0 {
		t.Errorf("counters %+v, want no time-out", c)
	}
	b.wantIdle()
}
