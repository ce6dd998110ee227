package group_test

import (
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// fragile is a stream that is itself what broke the core.
type fragile struct {
	*wireEnd
	broken bool
}

func (f *fragile) Next() (uint32, []byte, bool) {
	if f.broken {
		panic("a bug of ours")
	}
	return f.wireEnd.Next()
}

// saysClosed is a rank's word that its rows are closed.
func saysClosed(w *wireEnd, flag uint32) {
	b := words(record.RankStateLen)
	record.PutRankState(b, record.RankState{Flags: flag})
	w.up = append(w.up, rec{record.TagState, b})
}

func TestABrokenHostSaysThatItsRowsAreClosedOneDurationAfterTheLastOfThem(t *testing.T) {
	for _, tc := range []struct {
		name   string
		broken bool // the second rank's stream
		last   func(second *wireEnd)
	}{
		{name: "the last rank says so", last: func(w *wireEnd) { saysClosed(w, record.RankPoisoned) }},
		{name: "the last rank closes", last: func(w *wireEnd) { saysClosed(w, record.RankClosed) }},
		{name: "the last rank's process ends", last: func(w *wireEnd) { w.lost = true }},
		{name: "the last rank's process ends, whose stream is what broke", broken: true, last: func(w *wireEnd) { w.lost = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mem := memory(t, 4, 1<<12)
			out, err := dataplane.NewEvents(mem.Events, nil)
			must(t, err)
			never := func() bool { return false }
			first, second := &wireEnd{room: 1 << 16, gap: true, lose: never}, &wireEnd{room: 1 << 16, gap: true, lose: never}
			weak := &fragile{wireEnd: second}
			g, err := group.New(group.Config{Self: two, Duration: duration, Engines: 2, MapMax: 64, RunsMax: 64, LongIDs: 2}, mem, []stream.Carrier{weak, first}, out)
			must(t, err)
			now := clock.Instant(time.Hour)
			g.Step(now)
			saysClosed(second, record.RankRegistered)
			g.Step(now)
			weak.broken = tc.broken
			mem.Control.Poisoned = 1
			for range 20 {
				now = now.Add(duration / 4)
				g.Poison(now)
			}
			if !slices.ContainsFunc(first.down, func(r rec) bool { return r.tag == record.TagPoison }) {
				t.Error("a rank was not told")
			}
			saysClosed(first, record.RankPoisoned)
			for range 20 {
				now = now.Add(duration / 4)
				g.Poison(now)
			}
			if mem.Control.RowsClosed != 0 || g.RowsClosed(now) {
				t.Error("said while the rows of a rank are open")
			}
			tc.last(second)
			g.Poison(now)
			now = now.Add(duration - 1)
			if g.Poison(now); mem.Control.RowsClosed != 0 {
				t.Error("said before readers that do not check rows had their time")
			}
			now++
			if g.Poison(now); mem.Control.RowsClosed != 1 {
				t.Error("not said")
			}
		})
	}
}
