package heartbeat

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
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

// A probe that fails for a reason of this side, as one that finds no room, shows nothing of its owner, who may stand still meanwhile.
func TestAProbeThatFailedHereIsNoSignThatAStockOwnerWasThere(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stops bool
		fails bool
		want  string
	}{
		{"its owner is there, and they end", false, false, "done"},
		{"its owner is there", false, true, "failed(2)"}, // nothing says so
		{"its owner stands still", true, true, "failed(2)"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s *stale
			r := newRigOf(t, nil, nil, 1, func(tr transport.Transport) transport.Transport {
				s = &stale{Transport: tr, kind: hereRows, with: transport.ErrInvalid, bad: map[transport.Peer]bool{}}
				return s
			})
			o := r.owner("P", true)
			e := r.connect(o)
			h := r.trackStock(e, "x")
			r.run(sec(6), 100*time.Millisecond)
			for p := range s.bad {
				s.bad[p] = tc.fails
			}
			if tc.stops {
				r.hub.Stop("P")
			}
			r.run(sec(19), 100*time.Millisecond) // two or three probes; four have the connection made anew
			if tc.stops {
				r.hub.Resume("P")
			}
			for p := range s.bad {
				s.bad[p] = false
			}
			r.run(sec(22), 100*time.Millisecond)
			if n := r.k.Counters().MadeAnew; n != 0 {
				t.Fatalf("the connection was made anew %d times: that alone breaks the chain", n)
			}
			r.read(h, record.Run{N: 1})
			r.run(sec(23), 100*time.Millisecond)
			r.wantSaid(h, tc.want)
		})
	}
}

// What was due when nothing was tracked any more says nothing of what is tracked later.
func TestAProbeThatWasDueBeforeAnEngineWasLeftAloneHoldsUpNobody(t *testing.T) {
	var s *stale
	r := newRigOf(t, nil, nil, 1, func(tr transport.Transport) transport.Transport {
		s = &stale{Transport: tr, kind: hereRows, with: transport.ErrInvalid, bad: map[transport.Peer]bool{}}
		return s
	})
	o := r.owner("P", true)
	e := r.connect(o)
	h := r.trackStock(e, "x")
	r.run(sec(6), 100*time.Millisecond)
	for p := range s.bad {
		s.bad[p] = true
	}
	r.run(sec(12), 100*time.Millisecond)
	r.k.Untrack(h, r.now)
	for p := range s.bad {
		s.bad[p] = false
	}
	r.run(sec(60), 100*time.Millisecond)
	h = r.trackStock(e, "y")
	r.run(sec(70), 100*time.Millisecond)
	r.read(h, record.Run{N: 1})
	r.run(sec(71), 100*time.Millisecond)
	r.wantSaid(h, "done")
}
