package core

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

// Collector collects the Go heap off the step. The core runs with collection by growth switched off, since a step makes
// no garbage; what the calls off the step leave behind (handshakes, statistics) is taken away here.
type Collector struct {
	stop chan struct{}
	now  chan struct{}
	once sync.Once
}

const (
	collectEvery  = 5 * time.Second
	collectGrowth = 32 << 20 // bytes of heap more than after the last collection
)

// StartCollector looks at the heap every few seconds. One serves all contexts of a process.
func StartCollector() *Collector {
	k := &Collector{stop: make(chan struct{}), now: make(chan struct{}, 1)}
	go k.run()
	return k
}

// Collect gives the system back what a closed context leaves behind, tens of megabytes in a few large pieces, at once
// and on the collector's own goroutine.
func (k *Collector) Collect() {
	select {
	case k.now <- struct{}{}:
	default: // it is about to
	}
}

// Stop ends it.
func (k *Collector) Stop() { k.once.Do(func() { close(k.stop) }) }

func (k *Collector) run() {
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	read := func() uint64 {
		metrics.Read(heap)
		return heap[0].Value.Uint64()
	}
	last := read()
	tick := time.NewTicker(collectEvery)
	defer tick.Stop()
	for {
		select {
		case <-k.stop:
			return
		case <-k.now:
			debug.FreeOSMemory()
			last = read()
		case <-tick.C:
			if now := read(); now > last+collectGrowth {
				runtime.GC()
				last = read()
			}
		}
	}
}
