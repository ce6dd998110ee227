package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/heartbeat"
)

// One state of the stats page of a context with so many engines and leases, as a step writes it ten times a second.
func BenchmarkShow(b *testing.B) {
	for _, engines := range []int{1, 100} {
		b.Run(fmt.Sprintf("engines=%d", engines), func(b *testing.B) {
			l := newLab(b, `{"engines_max":4096}`)
			c := l.p.core
			for i := range engines {
				if _, err := c.AddEngine(heartbeat.EngineDesc{ID: fmt.Sprint("engine-", i)}); err != nil {
					b.Fatal(err)
				}
			}
			for i := range 100 {
				_, remote := l.grant(fmt.Sprint("r", i), uint64(i), blocks(0, 8))
				l.track(remote, "d", uint64(i))
			}
			l.run(time.Second, 30*time.Millisecond)
			c.mu.Lock()
			defer c.mu.Unlock()
			b.ReportAllocs()
			for b.Loop() {
				c.show(c.now)
			}
		})
	}
}

// What measuring a step costs it: the second look at the clock.
func BenchmarkStepEnded(b *testing.B) {
	l := newLab(b, `{}`)
	c := l.p.core
	c.ownClock = true
	for b.Loop() {
		c.page.step.Observe(c.page.ended(c).Sub(c.now))
	}
}
