package lease

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// The host grants expectations at the moment at which they lapse: one of both wins, never both, never neither.
func TestHostAndSweepRaceForAnExpectation(t *testing.T) {
	const rounds = 2000
	r := newRig(t, 1, func(c *Config) { c.ExpectMax = time.Second })
	granted, lapsed := 0, 0
	for i := range rounds {
		h := r.expect("a")
		r.now = r.now.Add(2 * time.Second)
		var won atomic.Bool
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			won.Store(atomic.CompareAndSwapUint64(&r.mem.Slots[h.Slot()].State,
				record.State(h.Use(), record.Expected), record.State(h.Use(), record.Granted)))
		}()
		if i%2 == 0 {
			wg.Wait()
		}
		r.t.Sweep(r.now, 0, 0, 0)
		wg.Wait()
		e, ended := r.t.NextEnd()
		if ended == won.Load() || ended && !e.Lapsed {
			t.Fatalf("round %d: granted=%v, end %+v (%v)", i, won.Load(), e, ended)
		}
		if won.Load() {
			granted++
			r.say(h, "a")
			r.wantHeld(h)
			r.t.Cancel(h, r.now)
		} else {
			lapsed++
		}
		r.drain()
		r.ends = r.ends[:0]
		r.wantEmpty()
	}
	t.Logf("granted %d, lapsed %d", granted, lapsed)
	if granted < rounds/2 || lapsed == 0 {
		t.Errorf("granted %d, lapsed %d: the race has one side only", granted, lapsed)
	}
}
