package log

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
)

func TestTroubleThatGoesOnIsSaidAtGrowingDistances(t *testing.T) {
	for _, tc := range []struct {
		name  string
		every time.Duration
		until time.Duration
		quiet [2]time.Duration // there is nothing to say between these
		want  []int            // seconds
	}{
		{"each second", time.Second, 30 * time.Minute, [2]time.Duration{}, []int{0, 10, 30, 70, 150, 310, 630, 1230}},
		{"each half a minute, as peers ask an engine that sleeps", 30 * time.Second, 11 * time.Minute, [2]time.Duration{}, []int{0, 30, 60, 120, 210, 390}},
		{"after two minutes of quiet it is news", time.Second, 6 * time.Minute, [2]time.Duration{80 * time.Second, 202 * time.Second}, []int{0, 10, 30, 70, 202, 212, 232, 272, 352}},
		{"after less it goes on", time.Second, 6 * time.Minute, [2]time.Duration{80 * time.Second, 190 * time.Second}, []int{0, 10, 30, 70, 190, 350}},
		{"seldom", 5 * time.Minute, 16 * time.Minute, [2]time.Duration{}, []int{0, 300, 600, 900}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p Pace
			var got []int
			for at := time.Duration(0); at < tc.until; at += tc.every {
				if quiet := at >= tc.quiet[0] && at < tc.quiet[1]; !quiet && p.Due(clock.Instant(time.Hour+at)) {
					got = append(got, int(at.Seconds()))
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("said at so many seconds (-want +got):\n%s", diff)
			}
		})
	}
}

// What is kept is said when its distance is over, or the trouble is; that it waited so long is no trouble, so the next one is news.
func TestWhatIsKeptIsNoTrouble(t *testing.T) {
	var p Pace
	var came, kept []int
	pending := false
	for s := range 2200 {
		now := clock.Instant(time.Hour) + clock.Instant(s)*clock.Instant(time.Second)
		switch {
		case s < 700 || s == 1000 || s == 1001 || s == 2000: // a long trouble, two that come together, and one more
			if p.Due(now) {
				came, pending = append(came, s), false
			} else {
				pending = true
			}
		case pending && p.Kept(now):
			kept, pending = append(kept, s), false
		}
	}
	if diff := cmp.Diff([]int{0, 10, 30, 70, 150, 310, 630, 1000, 2000}, came); diff != "" {
		t.Errorf("said as they came (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int{699 + 121, 1010}, kept); diff != "" {
		t.Errorf("said of what was kept (-want +got):\n%s", diff)
	}
}
