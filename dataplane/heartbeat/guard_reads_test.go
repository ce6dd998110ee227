package heartbeat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

// Reads that are posted in every round are no sign that a stock owner takes heartbeats in: while it stands still, or the network swallows
// what is sent, they end as little as these arrive, and when they do its leases are over.
func TestReadsOfAStockOwnerThatStoodStillAreRefusedHoweverManyThereAre(t *testing.T) {
	r := newRig(t, nil)
	o := r.owner("P", true)
	e := r.connect(o)
	var reads []record.Handle
	n := 0
	next := func() { // a request comes each second, and is read two seconds later
		n++
		reads = append(reads, r.trackStock(e, fmt.Sprint("r", n)))
		if n > 2 {
			r.read(reads[n-3], record.Run{N: 1})
		}
		r.run(r.now.Add(time.Second), 100*time.Millisecond)
	}
	for range 12 {
		next()
	}
	well := 0
	for _, h := range reads[:8] {
		if r.said(h) == "done" {
			well++
		}
	}
	if well != 8 {
		t.Fatalf("%d of 8 reads are done before", well)
	}
	r.hub.Stop("P")
	next()
	first := len(reads) - 2 // posted in the next pass, with nobody there
	for range 40 {
		next()
	}
	r.hub.Resume("P")
	r.run(r.now.Add(5*time.Second), 100*time.Millisecond)
	for i, h := range reads[first : len(reads)-10] { // the last ones stand in their first term, which needs no heartbeat
		if got := r.said(h); strings.Contains(got, "done") {
			t.Errorf("read %d, posted to an owner that stood still: %q", i, got)
		}
	}
}
