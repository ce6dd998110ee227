package await

import (
	"testing"
	"time"
)

func TestAGapInWhichTheProcessDidNotRunIsCountedInPart(t *testing.T) {
	w := watch{last: time.Unix(0, 0)}
	now := w.last
	for i, tc := range []struct{ gap, ran time.Duration }{
		{lookEvery, lookEvery},
		{gapCounted, lookEvery + gapCounted},
		{0, lookEvery + gapCounted},
		{time.Hour, lookEvery + 2*gapCounted},
		{lookEvery, 2*lookEvery + 2*gapCounted},
	} {
		now = now.Add(tc.gap)
		if got := w.look(now); got != tc.ran {
			t.Errorf("look %d: ran %v, want %v", i+1, got, tc.ran)
		}
	}
}

func TestAStopwatchRunsWhileItsTestWaits(t *testing.T) {
	ran := Stopwatch(t)
	True(t, "a wait of more than one gap is counted", func() bool { return ran() > 5*gapCounted })
}
