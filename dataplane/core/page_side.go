package core

import (
	"runtime/metrics"
	"time"

	"github.com/kvlease/kvlease/dataplane/watch"
)

// sideEvery is how often the values beside the step are shown.
const sideEvery = 500 * time.Millisecond

// pageSide shows what is not the step's: the side channel's counters, and how its handshakes stand, lie behind locks that a step must not
// wait for, and no step tells that the context is poisoned, or that it has been told something and the step that would take it does not
// come.
//
// Threads: a goroutine of its own. It allocates only as engines come that are asked, more than ever before.
type pageSide struct {
	list  pageList
	of    *Core
	from  *sideChannel // nil: role rank
	state stateGauges
	stats sideStats
	asked askedShown
	run   goStats
	stop  chan struct{}
	done  chan struct{}
	out   []uint64
}

func newPageSide(c *Core) *pageSide {
	s := c.side
	p := &pageSide{of: c, from: s, stop: make(chan struct{}), done: make(chan struct{})}
	p.list.add("", &p.state, watch.Gauge)
	p.list.add("go_", &p.run.values, watch.Counter)
	if s == nil {
		return p
	}
	v := &p.stats
	p.list.add("side_", &v.own, watch.Counter)
	p.list.add("side_client_", &v.client, watch.Counter)
	if s.server != nil {
		p.list.add("side_server_", &v.server, watch.Counter)
		p.list.add("side_zmtp_", &v.wire, watch.Counter)
	}
	if s.readers != nil {
		p.list.add("side_readers_", &v.readers, watch.Counter)
	}
	if s.owners != nil {
		p.list.add("side_owners_", &v.owners, watch.Counter)
	}
	return p
}

func (p *pageSide) start(out *watch.Writer) {
	p.out = make([]uint64, len(p.list.words))
	p.show(out)
	go func() {
		defer close(p.done)
		tick := time.NewTicker(sideEvery)
		defer tick.Stop()
		for {
			select {
			case <-p.stop:
				p.show(out)
				return
			case <-tick.C:
				p.show(out)
			}
		}
	}()
}

// halt shows them once more and ends the goroutine.
func (p *pageSide) halt() {
	close(p.stop)
	<-p.done
}

func (p *pageSide) show(out *watch.Writer) {
	p.state.read(p.of)
	p.run.read()
	if p.from != nil {
		p.stats.read(p.from)
	}
	for i, w := range p.list.words {
		p.out[i] = w.load()
	}
	out.PutSide(p.out)
	if p.from != nil {
		out.PutAsked(p.asked.read(p.from))
	}
}

// goStats are what the Go runtime of the core does; all contexts of a process share it.
type goStats struct {
	values  GoValues
	samples [2]metrics.Sample
}

// GoValues are counters and gauges of the Go runtime.
type GoValues struct {
	Collections uint64 // of garbage, so far
	HeapBytes   int    // live and dead objects
}

func (g *goStats) read() {
	g.samples[0].Name, g.samples[1].Name = "/gc/cycles/total:gc-cycles", "/memory/classes/heap/objects:bytes"
	metrics.Read(g.samples[:])
	g.values = GoValues{Collections: g.samples[0].Value.Uint64(), HeapBytes: int(g.samples[1].Value.Uint64())}
}
