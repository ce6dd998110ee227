package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// An abort at every stage of a request, on either side: each lease has one end, each tracked request is over, nothing is left.
func TestAnAbortAtEveryStageLeavesNothingBehind(t *testing.T) {
	type world struct {
		*lab
		expected, lease, track record.Handle
		remote                 *host.Remote
	}
	there, here := blocks(3, 8), blocks(40, 8)
	ok := func(w *world, err error) {
		w.t.Helper()
		if err != nil && !errors.Is(err, host.ErrStale) {
			w.t.Fatal(err)
		}
	}
	stages := []struct {
		name string
		on   string // the side that has something to abort
		act  func(w *world)
	}{
		{"expect", "P", func(w *world) {
			h, err := w.p.host.Expect([]byte("r1"))
			ok(w, err)
			w.expected, w.lease = h, h
			w.step(time.Millisecond)
		}},
		{"grant", "P", func(w *world) {
			h, err := w.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7, Expected: w.expected}, w.now)
			ok(w, err)
			w.p.fill(7, there)
			w.lease = h
			w.remote = &host.Remote{ID: []byte("r1"), Native: true, Epoch: w.p.core.mem.Epoch, Key: w.p.host.Key(h), Slot: h.Slot(), Generation: h.Use()}
			w.step(time.Millisecond)
		}},
		{"track", "both", func(w *world) { w.track = w.lab.track(w.remote, "d-r1", 70) }},
		{"heartbeat", "both", func(w *world) { w.run(time.Second, 30*time.Millisecond) }},
		{"wait for the read", "both", func(w *world) { agent(w.t, w.d).HoldReads(true) }},
		{"read", "both", func(w *world) { w.lab.read(w.track, here, there); w.step(time.Millisecond) }},
		{"fence", "both", func(w *world) { agent(w.t, w.d).HoldReads(false); w.stepOne(w.d) }},
		{"completion", "both", func(w *world) { w.stepOne(w.d); w.stepOne(w.d) }},
		{"completion applied", "both", func(w *world) { w.run(100*time.Millisecond, 10*time.Millisecond) }},
	}
	for at := range stages {
		for _, side := range []string{"P", "D"} {
			if side == "D" && stages[at].on == "P" {
				continue
			}
			t.Run(fmt.Sprintf("after %s, by %s", stages[at].name, side), func(t *testing.T) {
				w := &world{lab: newLab(t, `{}`)}
				w.run(time.Second, 100*time.Millisecond)
				for _, s := range stages[:at+1] {
					s.act(w)
				}
				if side == "P" {
					ok(w, w.p.host.Cancel(w.lease)) // ends a lease whoever named it, and an expectation
				} else {
					ok(w, w.d.host.Untrack(w.track))
				}
				w.step(time.Millisecond)
				agent(t, w.d).HoldReads(false)
				w.run(time.Second, 10*time.Millisecond)
				w.run(50*time.Second, 100*time.Millisecond)
				freed := w.p.take(record.EvFreed)
				if want := min(at, 1); len(freed) != want {
					t.Fatalf("%d ends of %d grants: %+v", len(freed), want, freed)
				}
				ends := w.d.take(record.EvReadDone)
				for _, done := range ends {
					if w.d.wrong(7, here) != 0 {
						t.Errorf("wrong data was handed out: %+v", done)
					}
				}
				ends = append(ends, w.d.take(record.EvReadFailed)...)
				if len(ends) > 1 { // shows C17.3
					t.Errorf("the read has ended %d times: %+v", len(ends), ends)
				}
				if w.track != 0 {
					ok(w, w.d.host.Untrack(w.track))
				}
				w.run(200*time.Second, 500*time.Millisecond)
				if a, b := w.p.core.plane.Alive(), w.d.core.plane.Alive(); a+b != 0 {
					t.Errorf("%d objects are left at P, %d at D", a, b)
				}
				if n := w.d.core.reads.Open(); n != 0 {
					t.Errorf("%d transfers are open", n)
				}
			})
		}
	}
}

// Two local requests (of a beam, or a retry) may name one remote request: the lease lives until the last of them.
func TestALeaseLivesUntilTheLastLocalRequestThatNamesItIsOver(t *testing.T) {
	l := newLab(t, `{}`)
	there := blocks(3, 8)
	lease, remote := l.grant("r1", 7, there)
	first, second, third := l.track(remote, "d-1", 71), l.track(remote, "d-2", 72), l.track(remote, "d-3", 73)
	l.run(40*time.Second, 100*time.Millisecond)
	l.read(first, blocks(40, 8), there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || done[0].User != 71 {
		t.Fatalf("read: %+v", done)
	}
	if err := l.d.host.Untrack(second); err != nil {
		t.Fatal(err)
	}
	l.run(40*time.Second, 100*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 0 {
		t.Fatalf("freed while a third request waits: %+v", freed)
	}
	l.read(third, blocks(50, 8), there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || done[0].User != 73 || l.d.wrong(7, blocks(50, 8)) != 0 {
		t.Errorf("read: %+v", done)
	}
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedCompleted { // shows S07.1
		t.Errorf("freed: %+v", freed)
	}
	if a := l.p.core.plane.Alive() + l.d.core.plane.Alive(); a != 0 {
		t.Errorf("%d objects are left", a)
	}
}
