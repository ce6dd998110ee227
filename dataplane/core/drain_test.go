package core

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/internal/await"
)

func TestAReaderThatDrainsReleasesAllThatItWillNeverRead(t *testing.T) {
	l := newLab(t, `{}`)
	for i := range 3 {
		_, remote := l.grant(fmt.Sprintf("r%d", i), uint64(i), blocks(uint32(8*i), 8))
		l.track(remote, "d", uint64(i))
	}
	l.run(time.Second, 30*time.Millisecond)
	if err := l.d.core.Drain(time.Minute); err != nil { // the clock stands: it must end by itself, without an untrack
		t.Fatalf("drain: %v", err)
	}
	l.step(30 * time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 3 || freed[0].Status != record.FreedReleased || freed[0].Reasons != record.FreedReleased {
		t.Errorf("P was told %+v, want three releases", freed)
	}
	if gone := l.d.take(record.EvLeaseGone); len(gone) != 3 {
		t.Errorf("D's host was told %+v, want three leases gone", gone)
	}
	if _, err := l.d.host.Track(l.peer, &host.Remote{ID: []byte("x")}, nil, 0, l.now); !errors.Is(err, host.ErrClosed) {
		t.Errorf("new work after a drain: %v, want ErrClosed", err)
	}
}

// C51: what is granted stays until it was read or the bound has passed, and what was cut off is said.
func TestAnOwnerThatDrainsServesItsReadersUntilTheBound(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("a", 1, there)
	l.grant("b", 2, blocks(20, 8))
	track := l.track(remote, "d-a", 1)
	l.run(time.Second, 30*time.Millisecond)
	err := l.p.core.Drain(0)
	if !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "leases held or expected: 2;") {
		t.Fatalf("drain = %v, want a time-out that names 2 leases", err)
	}
	if _, err := l.p.host.Grant(host.Grant{ID: []byte("c"), Blocks: 1}, l.now); !errors.Is(err, host.ErrClosed) { // shows C51.1
		t.Errorf("grant while draining: %v, want ErrClosed", err)
	}
	l.read(track, here, there)
	l.run(300*time.Millisecond, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(1, here) != 0 { // shows C51.2
		t.Errorf("a was not read whole while P drains: %+v", l.d.evs)
	}
	if err = l.p.core.Drain(0); !errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "leases held or expected: 1;") { // shows C51.3
		t.Errorf("drain = %v, want a time-out that names 1 lease", err)
	}
	l.run(40*time.Second, 100*time.Millisecond)
	if err := l.p.core.Drain(0); err != nil {
		t.Errorf("drain after the last lease has ended: %v", err)
	}
	if said := l.p.said(t, log.Draining); len(said) != 1 {
		t.Errorf("that it drains is said %d times: %+v", len(said), said)
	}
}

// Readers look at the board's header while they track: a router behind them learns where to send nothing new.
func TestAReaderIsToldOnceThatItsOwnerDrains(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("a", 1, there)
	track := l.track(remote, "d-a", 1)
	l.run(21*time.Second, 100*time.Millisecond)
	if told := l.d.take(record.EvEngineDrains); len(told) != 0 {
		t.Fatalf("told before the drain: %+v", told)
	}
	if err := l.p.core.Drain(0); !errors.Is(err, ErrTimeout) {
		t.Fatalf("drain = %v", err)
	}
	l.run(11*time.Second, 100*time.Millisecond) // two rounds
	if told := l.d.take(record.EvEngineDrains); len(told) != 1 || told[0].Handle != l.peer {
		t.Errorf("told %+v, want once, of P", told)
	}
	l.run(30*time.Second, 100*time.Millisecond)
	if told := l.d.take(record.EvEngineDrains); len(told) != 0 {
		t.Errorf("told again: %+v", told)
	}
	if down := l.d.take(record.EvEngineDown); len(down) != 0 {
		t.Errorf("a draining owner counts as down: %+v", down)
	}
	l.read(track, here, there)
	l.run(300*time.Millisecond, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(1, here) != 0 {
		t.Errorf("what a draining owner holds was not read whole: %+v", l.d.evs)
	}
}

// What a drain has to say leaves with a step, and its bound may be shorter than the pump's sleep.
func TestADrainEndsThePumpsSleep(t *testing.T) {
	f := newFleet(t, stream.KindProcess)
	f.wake = func() int { return newEventFd(t) }
	p := f.team("P", 2, 1)
	p.grant("lease", 1, blocks(0, 2))
	l := newLab(t, `{}`)
	l.grant("lease", 1, blocks(0, 2))
	l.p.core.mem.Control.WakeFd = int32(newEventFd(t))
	for name, c := range map[string]*Core{"host": p.core, "engine": l.p.core} {
		if n := c.wakes(t, record.Sleeps, func() error {
			if err := c.Drain(0); !errors.Is(err, ErrTimeout) {
				return fmt.Errorf("drain: %w, want ErrTimeout", err)
			}
			return nil
		}); n == 0 {
			t.Errorf("%s: nobody has woken the pump", name)
		}
	}
}

// TestACloseEndsADrainThatIsStillWaiting: kvl_close waits for calls that have begun, and nothing that the drain waits for comes any more.
func TestACloseEndsADrainThatIsStillWaiting(t *testing.T) {
	u := newPumped(t)
	_, remote := u.grant("r1", 7, blocks(3, 8))
	u.d.await(t, record.EvEngineUp)
	u.track(remote, "d-r1", 70)
	u.d.until(t, "D tracks r1", func(c *Core) bool { return c.tracker.Tracked() > 0 })
	u.hub.Kill(u.p.core.tr.Agent()) // so that it is never told that D does not read, and the clock stands
	drained := make(chan error, 1)
	go func() { drained <- u.d.core.Drain(10 * time.Second) }()
	u.d.until(t, "D has still to tell P", func(c *Core) bool { return c.drainLeft() != "" })
	if err := u.d.core.Close(time.Second); err != nil {
		t.Fatal(err)
	}
	if err := <-drained; !errors.Is(err, ErrClosed) {
		t.Errorf("drain: %v, want ErrClosed", err)
	}
}

// until waits for what a pump brings about.
func (n *node) until(t *testing.T, what string, ok func(*Core) bool) {
	t.Helper()
	await.True(t, what, func() bool {
		n.core.mu.Lock()
		defer n.core.mu.Unlock()
		return ok(n.core)
	})
}
