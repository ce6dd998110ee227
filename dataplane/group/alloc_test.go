package group_test

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// Leases that are granted, renewed, read and freed, an expectation that is cancelled, a full state: no step of a host or of a rank
// allocates for any of it.
func TestNoStepOfAHostOrARankAllocates(t *testing.T) {
	l, p, d, peer := pair(t, stream.KindProcess, two, two)
	var buf [16]record.Event
	id, local, run := []byte("request"), []byte("local"), runs(20, 0, 4)
	done, freed := 0, 0
	poll := func() {
		for _, e := range [...]*engine{p, d} {
			for {
				n := e.host.Poll(buf[:], l.now)
				for i := range buf[:n] {
					switch buf[i].Kind {
					case record.EvReadDone:
						done++
					case record.EvFreed:
						freed++
					}
				}
				if n < len(buf) {
					break
				}
			}
		}
	}
	turn := func() {
		l.now = l.now.Add(10 * time.Millisecond)
		for _, e := range [...]*engine{p, d} {
			e.group.Step(l.now)
			for _, r := range e.ranks {
				r.plane.Step(l.now)
			}
		}
		poll()
	}
	remote := host.Remote{ID: id, Native: true, Epoch: p.era.Epoch}
	cycle := func() {
		expected, _ := p.host.Expect(local)
		h, err := p.host.Grant(host.Grant{ID: id, Blocks: 4}, l.now)
		if err != nil {
			t.Fatal(err)
		}
		remote.Key, remote.Slot, remote.Generation = p.host.Key(h), h.Slot(), h.Use()
		track, err := d.host.Track(peer, &remote, local, 1, l.now)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			turn()
		}
		if err := d.host.Read(track, run); err != nil {
			t.Fatal(err)
		}
		if err := p.host.Cancel(expected); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			turn()
		}
	}
	for range 10 {
		cycle()
	}
	done, freed = 0, 0
	allocs := testing.AllocsPerRun(50, cycle)
	if allocs != 0 {
		t.Errorf("%v allocations in 25 steps", allocs)
	}
	if done < 50 || freed < 50 {
		t.Fatalf("only %d reads and %d ends happened", done, freed)
	}
}

// What a step costs while nothing happens.
func BenchmarkIdleStepOfAHost(b *testing.B) {
	l, p, _, _ := pair(b, stream.KindProcess, two, two)
	for i := range 200 {
		p.grant(string(rune('A'+i)), uint64(i), 0, 1)
	}
	l.run(time.Second, 50*time.Millisecond)
	b.ReportAllocs()
	for b.Loop() {
		p.group.Step(l.now)
	}
}
