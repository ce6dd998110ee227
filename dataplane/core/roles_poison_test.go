package core

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
)

// brokenTeam is an engine of two ranks that hold a lease, whose host breaks while rank 1 stands still, with its rows open, until it goes
// on.
func brokenTeam(f *fleet) (p *team, lease record.Handle, goesOn func()) {
	f.t.Helper()
	p = f.team("P", 2, 1)
	lease, _ = p.grant("r", 7, blocks(3, 4))
	f.until("both hold it", func() bool { return p.ranks[0].core.Held()+p.ranks[1].core.Held() == 2 })
	f.turns(20)
	p.ranks[1].stopped = true
	p.ranks[1].core.mu.Lock() // its pump, too
	letGo := sync.OnceFunc(p.ranks[1].core.mu.Unlock)
	f.t.Cleanup(letGo)
	ctl := p.core.mem.Control
	ctl.PoisonNs = uint64(f.now())
	atomic.StoreUint32(&ctl.Poisoned, 1)
	p.core.Wake()
	f.until("the rank that steps has closed its rows", p.ranks[0].core.fenced)
	f.pass = p.core.cfg.Duration / 10
	for end := f.now().Add(5 * p.core.cfg.Duration); f.now() < end; time.Sleep(100 * time.Microsecond) {
		f.turn()
	}
	f.until("the host has told that it is broken", func() bool { return kinds(p.evs, record.EvPoisoned) == 1 })
	if n := p.of(record.EvFreed, lease); n != 0 || p.ranks[1].core.fenced() {
		f.t.Fatalf("%d ends were told while a rank's rows are open", n)
	}
	return p, lease, func() { letGo(); p.ranks[1].stopped = false }
}

// freedInTime takes the end of the lease, which must come one duration after since: until then a reader that does not check rows may
// have renewed.
func (m *team) freedInTime(lease record.Handle, since func() bool, what string) {
	f := m.f
	f.t.Helper()
	f.until(what, since)
	from := f.now()
	if freed := m.event(record.EvFreed, lease); freed.Status != record.FreedPoisoned {
		f.t.Errorf("freed: %+v", freed)
	}
	if waited := f.now().Sub(from) + 2*f.pass; waited < m.core.cfg.Duration {
		f.t.Errorf("told %v after the rows were closed, want %v", waited, m.core.cfg.Duration)
	}
}

func TestABrokenHostTellsNoEndBeforeARankThatStandsStillHasClosedItsRows(t *testing.T) {
	for _, w := range []struct{ carrier, drive string }{
		{stream.KindProcess, "inline"}, {stream.KindShm, "inline"}, {stream.KindShm, "pump"}, {stream.KindDelta, "inline"},
	} {
		t.Run(fmt.Sprint(w), func(t *testing.T) {
			f := newFleet(t, w.carrier)
			f.drive = w.drive
			p, lease, goesOn := brokenTeam(f)
			goesOn()
			p.freedInTime(lease, p.ranks[1].core.fenced, "it goes on, and closes its rows")
			for _, r := range p.ranks {
				if err := r.core.Close(0); err != nil {
					t.Error(err)
				}
			}
			if err := p.core.Close(0); err != nil {
				t.Error(err)
			}
		})
	}
}

// One that never goes on keeps the blocks, until it is certain that its process is gone.
func TestABrokenHostTellsTheEndsOnceAProcessThatStoodStillIsGone(t *testing.T) {
	f := newFleet(t, stream.KindDelta)
	p, lease, _ := brokenTeam(f)
	if err := p.core.DeltaLost(1); err != nil {
		t.Fatal(err)
	}
	p.freedInTime(lease, func() bool { return true }, "the engine has said that it is gone")
}

// The word of a rank that its rows are closed is lost on its way, like any other.
func TestABrokenHostIsToldAgainThatRowsAreClosed(t *testing.T) {
	f := newFleet(t, stream.KindDelta)
	p, lease, goesOn := brokenTeam(f)
	goesOn()
	carry, lost := f.carry, 0
	f.carry = func(from, to *Core, rank uint32) {
		var buf [stream.MessageBytesMin]byte
		switch n, _ := from.DeltaTake(rank, buf[:]); {
		case n == 0:
		case to == p.core && rank == 1 && lost < 3:
			lost++
		default:
			to.DeltaPut(rank, buf[:n])
		}
	}
	f.until("it was lost", func() bool { return lost >= 3 })
	f.carry = carry
	p.freedInTime(lease, p.ranks[1].core.fenced, "it has closed its rows")
}
