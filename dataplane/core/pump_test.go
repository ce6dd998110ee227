package core

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// pumped is a lab whose engines are stepped by their own pumps, on a clock that the test moves.
type pumped struct {
	*lab
	ns atomic.Int64
}

func newPumped(t *testing.T) *pumped {
	u := &pumped{lab: &lab{t: t, hub: loopback.NewHub(), size: loopbackConfig}}
	u.ns.Store(int64(time.Hour))
	u.now = clock.Instant(time.Hour)
	u.lab.clock = func() clock.Instant { return clock.Instant(u.ns.Load()) }
	u.lab.drive = "pump"
	u.p, u.d = u.node("P", `{}`), u.node("D", `{}`)
	u.peer = u.connect(u.d, u.p)
	return u
}

// await waits on the host's descriptor until an event of the kind has come.
func (n *node) await(t *testing.T, kind uint16) record.Event {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		var buf [16]record.Event
		n.evs = append(n.evs, buf[:n.host.Poll(buf[:], n.core.clock())]...)
		if got := n.take(kind); len(got) > 0 {
			return got[0]
		}
		fds := []unix.PollFd{{Fd: n.core.mem.Control.EventFd, Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, 100); err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
		empty(int(n.core.mem.Control.EventFd))
	}
	t.Fatalf("no event of kind %d; got %+v", kind, n.evs)
	return record.Event{}
}

func TestThePumpCarriesALeaseFromGrantToFreedWithoutAnyStepOfTheHost(t *testing.T) {
	u := newPumped(t)
	there, here := blocks(3, 8), blocks(40, 8)
	lease, remote := u.grant("r1", 7, there)
	u.d.await(t, record.EvEngineUp)
	track := u.track(remote, "d-r1", 70)
	u.read(track, here, there)
	if done := u.d.await(t, record.EvReadDone); done.Handle != uint64(track) {
		t.Errorf("read: %+v", done)
	}
	if freed := u.p.await(t, record.EvFreed); freed.Handle != uint64(lease) || freed.Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
	if bad := u.d.wrong(7, here); bad != 0 {
		t.Errorf("%d words are wrong", bad)
	}
}

func TestThePumpStopsBeatingForALoopThatHasNotPassedWithinStallCover(t *testing.T) {
	u := newPumped(t)
	u.grant("r1", 7, blocks(0, 8))
	_, remote := u.grant("r2", 8, blocks(8, 8))
	u.d.await(t, record.EvEngineUp)
	u.track(remote, "d-r2", 70)
	ctl := u.d.core.mem.Control
	move := func(d time.Duration) { // the hours pass for both, and P's pump gets to look at them
		for end := u.ns.Load() + int64(d); u.ns.Load() < end; {
			u.ns.Add(int64(100 * time.Millisecond))
			for _, n := range []*node{u.p, u.d} { // one whole step of each after the clock has moved
				at := atomic.LoadUint64(&n.core.mem.Control.Steps)
				for atomic.LoadUint64(&n.core.mem.Control.Steps) < at+2 {
					n.core.Wake()
				}
			}
		}
	}
	pass := func() { atomic.StoreUint64(&ctl.PassNs, uint64(u.ns.Load())) }
	for range 8 { // 80 s with a pass every 10 s
		pass()
		move(10 * time.Second)
	}
	if got := u.p.await(t, record.EvFreed); got.User != 7 || got.Status != record.FreedExpired {
		t.Fatalf("only the lease that nobody tracks may expire, got %+v", got)
	}
	atomic.StoreUint64(&ctl.PauseUntilNs, uint64(u.ns.Load()+int64(60*time.Second)))
	move(60 * time.Second)
	if held := u.p.held(); held != 1 {
		t.Fatalf("%d leases held while D pauses on purpose, want 1", held)
	}
	move(60 * time.Second) // no pass, no pause: 30 s of cover, then at most an extension and its jitter
	if got := u.p.await(t, record.EvFreed); got.User != 8 || got.Status != record.FreedExpired {
		t.Errorf("freed: %+v", got)
	}
}

func (n *node) held() int {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.core.leases.Held()
}

func TestAContextWithAReadInFlightIsBusyAndStaysUsable(t *testing.T) {
	l := newLab(t, `{}`)
	there := blocks(3, 8)
	_, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	agent(t, l.d).HoldReads(true)
	l.read(track, blocks(40, 8), there)
	l.step(30 * time.Millisecond)
	if err := l.d.core.Unregister(); err == nil || !isBusy(err) {
		t.Errorf("Unregister = %v, want ErrBusy", err)
	}
	if err := l.d.core.Close(0); err == nil || !isBusy(err) {
		t.Errorf("Close = %v, want ErrBusy", err)
	}
	agent(t, l.d).HoldReads(false)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 {
		t.Errorf("the read did not end well: %+v", l.d.evs)
	}
	if err := l.d.core.Close(0); err != nil {
		t.Errorf("Close = %v", err)
	}
	if err := l.d.core.Step(); err == nil {
		t.Error("a closed context steps")
	}
	if _, err := l.d.host.Grant(host.Grant{ID: []byte("x")}, l.now); err == nil {
		t.Error("a closed context takes new work")
	}
}

func isBusy(err error) bool { return errors.Is(err, ErrBusy) }
