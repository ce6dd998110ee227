// Package tracetest attaches to trace sites within a test, without machine code.
package tracetest

import (
	"sync"
	"sync/atomic"

	"github.com/kvlease/kvlease/dataplane/trace"
)

// Hit is one run through a site.
type Hit struct {
	Site trace.Site
	Args [4]uint64
}

// Recorder keeps what runs through sites of its own.
//
// Threads: any.
type Recorder struct {
	words trace.Words
	mu    sync.Mutex
	hits  []Hit
	fired [trace.Count]int
}

// Sites are the recorder's: attached to as Attach says, at first to none.
func (r *Recorder) Sites() *trace.Sites { return trace.New(&r.words, r.fire) }

// Attach turns these sites on and all others off.
func (r *Recorder) Attach(sites ...trace.Site) {
	for i := range r.words {
		atomic.StoreUint32(&r.words[i], 0)
	}
	for _, s := range sites {
		atomic.StoreUint32(&r.words[s], 1)
	}
}

// AttachAll turns every site on.
func (r *Recorder) AttachAll() {
	for s := range trace.Count {
		atomic.StoreUint32(&r.words[s], 1)
	}
}

// Room makes room for all that is ever kept, so that keeping allocates nothing from now on.
func (r *Recorder) Room() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hits = make([]Hit, 0, keepMax)
}

// fire keeps a hit; past keepMax the older half goes.
func (r *Recorder) fire(site trace.Site, a, b, c, d uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.hits); n == keepMax {
		r.hits = r.hits[:copy(r.hits, r.hits[n/2:])]
	}
	r.fired[site]++
	r.hits = append(r.hits, Hit{site, [4]uint64{a, b, c, d}})
}

// keepMax bounds a recorder in runs that are long.
const keepMax = 1 << 16

// Take gives the hits since the last Take, in order.
func (r *Recorder) Take() []Hit {
	r.mu.Lock()
	defer r.mu.Unlock()
	hits := append([]Hit(nil), r.hits...)
	r.hits = r.hits[:0]
	return hits
}

// Fired counts all that has run through a site.
func (r *Recorder) Fired(site trace.Site) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fired[site]
}

// Of are the arguments of the hits of one site among hits.
func Of(hits []Hit, site trace.Site) (args [][4]uint64) {
	for _, h := range hits {
		if h.Site == site {
			args = append(args, h.Args)
		}
	}
	return args
}
