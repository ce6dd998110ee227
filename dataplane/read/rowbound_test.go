package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestRowsThatTimeOutTogetherAreTakenByTheNextSteps(t *testing.T) {
	const n = 14
	b := newBench(t, Config{RowsMax: 32, RowTimeout: time.Second, EndsStepMax: 6}, 1)
	b.step(0)
	for i := range n {
		b.ok(b.m.ReadRow(uint64(i), transport.Peer(i+1), rowAddr(transport.Peer(i+1), 0), 0, 0, record.RowLen, b.now))
	}
	b.step(time.Second)
	for _, want := range []int{6, 6, 2, 0} {
		got := 0
		for r, ok := b.m.NextRow(); ok; r, ok = b.m.NextRow() {
			if r.OK {
				t.Errorf("row %d is OK", r.Token)
			}
			got++
		}
		if got != want {
			t.Fatalf("%d time-outs in one step, want %d", got, want)
		}
		b.step(0)
	}
	if c := b.m.Counters; c.RowTimeouts != n || c.EndsCut != 2 {
		t.Errorf("%d time-outs and %d cuts, want %d and 2", c.RowTimeouts, c.EndsCut, n)
	}
	for _, x := range b.f.posted {
		b.f.land(x)
	}
	for range 3 {
		b.step(0)
	}
	b.wantIdle()
}
