package stream

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

func TestAfterCloseEveryCallDoesNothing(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := attached(t, kind)
		g.r.Reserve(7, 8)
		g.h.Reserve(7, 8)
		g.host.Close()
		g.r.Close()
		for i, c := range []Carrier{g.h, g.r} {
			for range 2 {
				_, began := c.Begin()
				_, _, next := c.Next()
				if c.Reserve(7, 8) != nil || c.Fits(8) || began || next || c.Gap() || c.Pending() || c.Untaken() != 0 {
					t.Errorf("end %d still does something", i)
				}
				c.Publish()
				c.Release()
				c.Sleeping(true)
				c.State()
				c.Counters()
				if c.Err() == nil {
					t.Errorf("end %d has no reason", i)
				}
				if d, ok := c.(Delta); ok {
					var b [MessageBytesMax]byte
					if _, err := d.Take(b[:]); !errors.Is(err, ErrClosed) {
						t.Errorf("end %d takes: %v", i, err)
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

// Each end's step runs at full speed while the other end goes away.
func TestOneEndMayCloseWhileTheOtherIsInsideItsStep(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		for _, hostCloses := range []bool{true, false} {
			for range 20 {
				g := attached(t, kind)
				stays, goes := g.h, g.r
				if hostCloses {
					stays, goes = g.r, g.h
				}
				var stop atomic.Bool
				var turns atomic.Uint64
				var done sync.WaitGroup
				done.Go(func() {
					for !stop.Load() {
						stays.Reserve(7, 100)
						stays.Publish()
						stays.Next()
						stays.Release()
						stays.Sleeping(true)
						stays.Pending()
						stays.State()
						turns.Add(1)
					}
				})
				for i := 0; i < 100 || turns.Load() < 100; i++ {
					goes.Reserve(7, 100)
					goes.Publish()
					goes.Next()
					goes.Release()
					runtime.Gosched()
				}
				if hostCloses {
					g.host.Close()
				} else {
					goes.Close()
				}
				for at := turns.Load(); turns.Load() < at+100; {
					runtime.Gosched()
				}
				stop.Store(true)
				done.Wait()
				g.host.Close()
				g.r.Close()
			}
		}
	})
}
