package watch

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
)

func TestWhatTheDeadLeaveIsShownForTenMinutes(t *testing.T) {
	at := clock.Instant(100 * time.Hour)
	r := NewRemains()
	r.now = func() clock.Instant { return at }
	idle := &Snapshot{Head: Head{Alive: true, Stepped: at.Add(-time.Hour)}} // had nothing to do
	found := &Snapshot{Head: Head{Stepped: at.Add(-time.Minute)}}           // dead when we came
	old := &Snapshot{Head: Head{Stepped: at.Add(-deadKept - 1)}}
	look := func(what string, idleShown, foundShown, oldShown bool) {
		t.Helper()
		r.Begin()
		for _, c := range []struct {
			name string
			s    *Snapshot
			want bool
		}{{"idle", idle, idleShown}, {"found", found, foundShown}, {"old", old, oldShown}} {
			if got := r.Shown(c.name, c.s); got != c.want {
				t.Errorf("%s: %s is shown: %v, want %v", what, c.name, got, c.want)
			}
		}
	}
	look("at first", true, true, false)
	idle.Alive = false
	look("the idle one dies an hour after its last step", true, true, false)
	at = at.Add(deadKept - time.Minute)
	look("ten minutes after the last step of the one that was dead", true, true, false)
	at = at.Add(1)
	look("a moment later", true, false, false)
	at = at.Add(time.Minute)
	look("ten minutes after the idle one was seen dead", false, false, false)
	next := &Snapshot{Head: Head{Opened: 1, Stepped: at}}
	if !r.Shown("idle", next) {
		t.Error("another context under the same name is taken for the one before")
	}
	r.Begin()
	r.Begin()
	if len(r.died) != 0 {
		t.Errorf("%d pages that are gone are remembered", len(r.died))
	}
}
