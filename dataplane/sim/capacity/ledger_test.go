package capacity

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The checks have teeth: each thing that may never happen is made to happen once, and voids the run.
func TestABrokenRunIsVoidAndSaysWhatBroke(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(*world) // 60 s after the start: the second request waits at D
		want  string
	}{
		{"a lease ends twice", func(w *world) {
			h := w.ps[0].tenures[0].handle
			if !w.ps[0].tenures[0].alive {
				h = w.ps[0].tenures[1].handle
			}
			w.ps[0].freed(h, record.FreedExpired)
			w.ps[0].freed(h, record.FreedExpired)
		}, "p0: a lease that is not held ended"},
		{"an end of no grant", func(w *world) { w.ps[0].freed(record.NewHandle(5, 9), record.FreedExpired) }, "every granted block is freed exactly once"},
		{"an end past the table", func(w *world) { w.ps[0].freed(record.NewHandle(1<<20, 0), record.FreedExpired) }, "every granted block is freed exactly once"},
		{"a block vanishes", func(w *world) { w.ps[0].free-- }, "every block is free at the end"},
		{"a block is there twice", func(w *world) { w.ps[0].free++ }, "no more blocks are free than there are"},
		{"a request vanishes", func(w *world) { w.arrived++ }, "every request ends in exactly one way"},
		{"a request ends twice", func(w *world) {
			i := int32(w.ds[0].queue.Head)
			w.finish(i, finished)
			w.finish(i, finished)
		}, "every request ends once"},
		{"a grant vanishes", func(w *world) { w.grants++ }, "every grant ends once"},
		{"a read is accepted whose lease had ended", func(w *world) {
			for s := range w.ps[0].tenures {
				if q := &w.ps[0].tenures[s]; q.alive {
					q.alive, q.freed = false, w.now
				}
			}
		}, "no read is accepted whose lease had ended before it began"},
		{"a slot is granted while it is held", func(w *world) {
			w.ps[0].lease(0, record.NewHandle(w.reqs[w.ds[0].queue.Head].lease.Slot(), 7))
		}, "a slot is granted again only when its lease has ended"},
		{"a read that nobody asked for", func(w *world) {
			w.ds[0].event(&record.Event{Kind: record.EvReadDone, User: 1 << 40})
		}, "every read ends once"},
		{"a read that nobody asked for fails", func(w *world) {
			w.ds[0].event(&record.Event{Kind: record.EvReadFailed, User: 1 << 40})
		}, "every read ends once"},
		{"an event that an owner never has", func(w *world) { w.ps[0].event(&record.Event{Kind: record.EvReadDone}) }, "an owner hears of ends only"},
		{"an event that a reader never has", func(w *world) { w.ds[0].event(&record.Event{Kind: record.EvFreed}) }, "a reader hears of"},
		{"blocks that come back and were not aside", func(w *world) { w.ds[0].event(&record.Event{Kind: record.EvBlocksBack}) }, "blocks come back that were aside"},
		{"a request that nobody works on", func(w *world) {
			i := int32(w.ds[0].queue.Head)
			w.removeQ(&w.ds[0].queue, i)
		}, "everything comes to its end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := play(t, small(), leased(30*second), twoRequests()...)
			w.until(t, 60*second)
			tc.spoil(w)
			err := w.broken
			if err == nil {
				err = w.run(t.Context())
			}
			if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "seed 1") {
				t.Errorf("%v, want one that says %q and the seed", err, tc.want)
			}
		})
	}
}
