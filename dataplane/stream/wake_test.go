package stream

import (
	"sync"
	"testing"
	"time"
)

// sleepUntil sleeps as a pump does, without a period: only the descriptor ends it.
func sleepUntil(t *testing.T, c Carrier, fd int) bool {
	for range 1000 {
		c.Sleeping(true)
		if c.Pending() {
			c.Sleeping(false)
			return true
		}
		ok := woken(fd, 60*time.Second)
		c.Sleeping(false)
		if !ok {
			t.Errorf("nobody woke the sleeper, pending %v", c.Pending())
			return false
		}
	}
	t.Error("woken 1,000 times for nothing")
	return false
}

// The two ends throw a record back and forth, each asleep until it has it: one lost wake stops them for ever.
func TestASleeperIsWokenForEveryRecord(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		rounds := uint64(20_000)
		if kind == KindDelta { // each is four messages
			rounds = 4000
		}
		g := attached(t, kind)
		carried := make(chan struct{}, 2)
		over := make(chan struct{})
		var done sync.WaitGroup
		if kind == KindDelta {
			done.Go(func() { // the engine's step message
				for {
					select {
					case <-carried:
						g.carry()
					case <-over:
						return
					}
				}
			})
		}
		player := func(c Carrier, fd int, serves bool) {
			for i := range rounds {
				if i > 0 || !serves {
					if !sleepUntil(t, c, fd) {
						return
					}
					if _, rec, ok := c.Next(); !ok || checkNumbered(rec, i) != nil && checkNumbered(rec, i-1) != nil {
						t.Errorf("round %d: %d bytes, %v", i, len(rec), ok)
						return
					}
					c.Release()
				}
				rec := c.Reserve(7, 16)
				if rec == nil {
					t.Errorf("round %d: no room", i)
					return
				}
				putNumbered(rec, i)
				c.Publish()
				if kind == KindDelta {
					carried <- struct{}{}
				}
			}
		}
		var players sync.WaitGroup
		players.Go(func() { player(g.h, g.hostFd, true) })
		players.Go(func() { player(g.r, g.rankFd, false) })
		players.Wait()
		close(over)
		done.Wait()
	})
}

func TestAnEndThatIsAwakeIsNotWrittenTo(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := attached(t, kind)
		for woken(g.rankFd, 0) { // the attach
		}
		for range 100 {
			g.h.Reserve(7, 8)
			g.h.Publish()
			g.r.Next()
			g.r.Release()
		}
		if woken(g.rankFd, 0) || g.h.Counters().Wakes != 0 {
			t.Errorf("woken, %d writes, although it never slept", g.h.Counters().Wakes)
		}
		g.r.Sleeping(true)
		for range 100 {
			g.h.Reserve(7, 8)
			g.h.Publish()
		}
		g.h.Publish()
		if !woken(g.rankFd, 0) || g.h.Counters().Wakes != 1 {
			t.Errorf("%d writes for one sleep, want 1", g.h.Counters().Wakes)
		}
	})
}

func TestAnAttachWakesBothEnds(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := newRig(t, kind)
		g.h.Sleeping(true)
		g.r.Sleeping(true)
		g.carry()
		if !woken(g.hostFd, 10*time.Second) || !woken(g.rankFd, 10*time.Second) {
			t.Fatal("an end slept through its attach")
		}
		if !g.h.Pending() || !g.r.Pending() {
			t.Error("the attach is not pending")
		}
		if g.h.State() != Attached || g.r.State() != Attached {
			t.Errorf("host %v, rank %v", g.h.State(), g.r.State())
		}
		if g.h.Pending() || g.r.Pending() {
			t.Error("still pending after State has told it")
		}
	})
}
