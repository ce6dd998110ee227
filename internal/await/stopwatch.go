package await

import (
	"sync"
	"testing"
	"time"
)

const (
	lookEvery  = time.Millisecond
	gapCounted = 20 * time.Millisecond
)

// Stopwatch starts to measure for how long this process was let run: where a bound on the real clock is what a test is about, it must not
// count what a busy machine, or one that was put to sleep, took from the process. What the code itself waits for counts in full.
func Stopwatch(t testing.TB) (ran func() time.Duration) {
	var mu sync.Mutex
	w := watch{last: time.Now()}
	look := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return w.look(time.Now())
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(lookEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-stop:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
	return look
}

// watch adds up the gaps between looks, of each at most gapCounted.
type watch struct {
	last time.Time
	ran  time.Duration
}

func (w *watch) look(now time.Time) time.Duration {
	w.ran += min(now.Sub(w.last), gapCounted)
	w.last = now
	return w.ran
}
