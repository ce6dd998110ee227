package core

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// mallocs is the number of Go heap objects ever allocated by this process.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// grewBy reports the mallocs that f made. Goroutines of the runtime and the test may add a few, so the callers compare
// with a bound far below one per step.
func grewBy(f func()) uint64 {
	runtime.GC()
	before := mallocs()
	f()
	return mallocs() - before
}

const strayMallocs = 200 // of the runtime itself; one per step would be a thousand times that

func TestAMillionIdleStepsAllocateNothing(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 50_000
	}
	l := newLab(t, `{}`)
	for i := range 100 {
		_, remote := l.grant(string(rune('a'+i%26))+string(rune('a'+i/26)), uint64(i), blocks(0, 8))
		l.track(remote, "d", uint64(i))
	}
	l.run(time.Second, 30*time.Millisecond)
	got := grewBy(func() {
		for range steps {
			l.advance(time.Millisecond)
			if l.p.core.Step() != nil || l.d.core.Step() != nil {
				t.Fatal("step failed")
			}
		}
	})
	if got > strayMallocs {
		t.Errorf("%d idle steps of two engines made %d allocations", steps, got)
	}
	if held := l.p.core.leases.Held(); held != 100 {
		t.Errorf("%d leases are left of 100: the heartbeats did not go out", held)
	}
}

func TestAMillionBusyStepsAllocateNothing(t *testing.T) {
	steps := 1_000_000
	if testing.Short() {
		steps = 50_000
	}
	l := newLab(t, `{"reads_max":64}`)
	round := l.busyRounds()
	for i := range 1000 { // the connection, the first lap of everything
		round(i)
	}
	done, freed := 0, 0
	got := grewBy(func() {
		for i := range steps / 2 { // two engines step in each round
			d, f := round(i)
			done, freed = done+d, freed+f
		}
	})
	if got > strayMallocs {
		t.Errorf("%d busy steps made %d allocations", steps, got)
	}
	if want := steps / 2 * 7 / 8; done < want-1 || freed < steps/2-1 {
		t.Errorf("%d reads and %d ends, want at least %d and %d: the steps were not busy", done, freed, want, steps/2)
	}
}

// busyRounds makes rounds in which a request comes and is read, or given up, and both engines step. A round tells how many reads were
// done and how many leases freed in it.
func (l *lab) busyRounds() func(i int) (done, freed int) {
	id := []byte("request-0000")
	there := []record.Run{{Local: 40, Remote: 3, N: 8}}
	var evs [64]record.Event
	remote := host.Remote{ID: id, Native: true, Epoch: l.p.core.mem.Epoch}
	return func(i int) (done, freed int) {
		l.advance(time.Millisecond)
		id[8], id[9], id[10], id[11] = byte('0'+i/1000%10), byte('0'+i/100%10), byte('0'+i/10%10), byte('0'+i%10)
		lease, err := l.p.host.Grant(host.Grant{ID: id, Blocks: 8}, l.now)
		if err != nil {
			l.t.Fatal(err)
		}
		remote.Slot, remote.Generation, remote.Key = lease.Slot(), lease.Use(), l.p.host.Key(lease)
		track, err := l.d.host.Track(l.peer, &remote, id, 1, l.now)
		if err != nil {
			l.t.Fatal(err)
		}
		if i%8 == 0 {
			err = l.d.host.Untrack(track)
		} else {
			err = l.d.host.Read(track, there)
		}
		if err != nil {
			l.t.Fatal(err)
		}
		if l.p.core.Step() != nil || l.d.core.Step() != nil {
			l.t.Fatal("step failed")
		}
		for _, e := range evs[:l.d.host.Poll(evs[:], l.now)] {
			if e.Kind == record.EvReadDone {
				done++
			}
		}
		for _, e := range evs[:l.p.host.Poll(evs[:], l.now)] {
			if e.Kind == record.EvFreed {
				freed++
			}
		}
		return done, freed
	}
}
