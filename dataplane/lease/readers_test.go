package lease

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestL5CompletionNeedsAllReadersOfOneEngine(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	e := r.entry(a)
	r.want(r.t.Complete(e, engineD.at(0), 2, r.now), Applied)
	r.want(r.t.Complete(e, engineE.at(0), 3, r.now), Applied) // side by side, never added
	r.want(r.t.Complete(e, engineE.at(1), 3, r.now), Applied)
	r.want(r.t.Complete(e, engineD.at(0), 2, r.now), Repeated)
	r.want(r.t.Complete(e, Reader{Engine: 0xD, Epoch: 2, Rank: 1}, 2, r.now), Applied) // another boot of D
	r.wantHeld(a)                                                                      // shows S08.1
	r.want(r.t.Complete(e, engineD.at(1), 2, r.now), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.wantEmpty()
}

func TestL5StockReadersAreDistinctAgentsUpToTheLargestSuffix(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 3), Applied)
	r.want(r.done("a", "D.0", 3), Repeated)
	r.want(r.done("a", "D.1", 2), Applied) // 3 was seen
	r.wantHeld(a)
	r.want(r.done("a", "D.2", 2), Ended)
	r.wantEnded(record.FreedCompleted, a)
	r.wantEmpty()
}

func TestL5ALargerCountSeenLaterCounts(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 2), Applied)
	r.want(r.done("a", "D.0", 3), Repeated)
	r.want(r.done("a", "D.1", 2), Applied)
	r.wantHeld(a)
}

func TestL5NoReadersIsNoCompletion(t *testing.T) {
	r := newRig(t, 8)
	a := r.grant("a")
	r.want(r.done("a", "D.0", 0), Malformed)
	r.want(r.t.Complete(r.entry(a), engineD, 0, r.now), Malformed)
	r.wantHeld(a)
	r.wantCount("malformed", r.c.Malformed, 2)
}

func TestL5AFullPoolHoldsTheLease(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.Readers = 2 })
	a, b := r.grant("a"), r.grant("b")
	r.want(r.done("a", "D.0", 4), Applied)
	r.want(r.done("a", "D.1", 4), Applied)
	r.want(r.done("a", "D.2", 4), Full)
	r.want(r.done("b", "D.0", 2), Full)
	r.want(r.done("b", "D.1", 2), Full) // not remembered, so not added
	r.wantHeld(a, b)
	r.wantCount("readers not remembered", r.c.ReadersFull, 3)
	r.run(at(31))
	r.wantEnded(record.FreedExpired, a, b)
	r.wantCount("readers that had reported", r.c.ReadersCut, 2)
	r.wantEmpty()
	c := r.grant("c") // the pool's places came back
	r.done("c", "D.0", 2)
	r.want(r.done("c", "D.1", 2), Ended)
	r.wantEnded(record.FreedCompleted, c)
}

func TestL5OneLeaseCannotTakeTheWholePool(t *testing.T) {
	r := newRig(t, 8, func(c *Config) { c.Readers = 10 * chainMax })
	a := r.grant("a")
	for i := range 4 * chainMax {
		r.t.Complete(r.entry(a), engineD.at(uint32(i)), 65535, r.now)
	}
	r.wantHeld(a)
	if got := r.t.readers.free.Used(); got > chainMax+1 {
		t.Errorf("%d readers remembered for one lease, want at most %d", got, chainMax+1)
	}
}
