package core

import (
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// A grant takes its expected slot in the host's half; the core hears of it by the ring. Between the two the slot is
// neither an expectation that may lapse nor a lease that the core could end.
func TestUnregisterDoesNotWaitForAGrantThatIsOnItsWay(t *testing.T) {
	l := newLab(t, `{}`)
	expected, err := l.p.host.Expect([]byte("r1"))
	if err != nil {
		t.Fatal(err)
	}
	l.step(time.Millisecond)
	lease, err := l.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7, Expected: expected}, l.now)
	if err != nil || lease != expected {
		t.Fatalf("grant: %v, %v", lease, err)
	}
	within(t, "Unregister", func() {
		if err := l.p.core.Unregister(); err != nil {
			t.Errorf("Unregister: %v", err)
		}
	})
	l.step(time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedClosed || freed[0].User != 7 {
		t.Errorf("freed: %+v", freed)
	}
}

func TestUnregisterOfAPoisonedContextLeavesTheEndsToPoll(t *testing.T) {
	l := newLab(t, `{}`)
	lease, _ := l.grant("r1", 7, blocks(3, 8))
	l.step(time.Millisecond)
	l.p.core.leases.FenceAll() // as kvl_fence_all does it
	atomic.StoreUint64(&l.p.core.mem.Control.PoisonNs, uint64(l.now))
	atomic.StoreUint32(&l.p.core.mem.Control.Poisoned, 1)
	var buf [8]record.Event
	if n := l.p.host.Poll(buf[:], l.now); n != 1 || buf[0].Kind != record.EvPoisoned {
		t.Fatalf("told at once: %+v", buf[:n])
	}
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.advance(l.p.core.cfg.Duration + time.Millisecond)
	n := l.p.host.Poll(buf[:], l.now)
	if n != 1 || buf[0].Kind != record.EvFreed || buf[0].Handle != uint64(lease) || buf[0].Status != record.FreedPoisoned {
		t.Errorf("told one duration later: %+v", buf[:n])
	}
}

func TestADrainOfAPoisonedContextDoesNotWaitForStepsThatNobodyMakes(t *testing.T) {
	u := newPumped(t) // its clock stands still: no time-out ends the wait
	u.grant("r1", 7, blocks(3, 8))
	within(t, "the pump's step", func() {
		for u.p.held() == 0 {
			runtime.Gosched()
		}
	})
	u.p.core.mu.Lock() // no step while it is poisoned
	u.p.core.leases.FenceAll()
	atomic.StoreUint64(&u.p.core.mem.Control.PoisonNs, uint64(u.now))
	atomic.StoreUint32(&u.p.core.mem.Control.Poisoned, 1)
	u.p.core.mu.Unlock()
	within(t, "Drain", func() {
		if err := u.p.core.Drain(time.Hour); !errors.Is(err, ErrPoisoned) {
			t.Errorf("Drain: %v, want ErrPoisoned", err)
		}
	})
}

func TestNoStepBeginsOnceCloseHasSeenThatNoReadIsOpen(t *testing.T) {
	l := newLab(t, `{}`)
	there := blocks(3, 8)
	_, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	if err := l.d.core.stopReads(0); err != nil {
		t.Fatal(err)
	}
	l.read(track, blocks(40, 8), there) // as one that was submitted a moment ago
	if err := l.d.core.Step(); !errors.Is(err, ErrClosed) {
		t.Errorf("Step = %v, want ErrClosed", err)
	}
	if n := l.d.core.reads.Open(); n != 0 {
		t.Errorf("%d reads were posted on an agent that is about to go", n)
	}
}

// stubborn is a transport whose Close is refused.
type stubborn struct {
	transport.Transport
	refuse bool
}

func (s *stubborn) Close() error {
	if s.refuse {
		return transport.ErrInvalid
	}
	return s.Transport.Close()
}

func TestACloseThatTheTransportRefusesIsNoSuccessTheNextTime(t *testing.T) {
	l := newLab(t, `{}`)
	s := &stubborn{Transport: l.p.core.tr, refuse: true}
	l.p.core.tr = s
	for range 2 {
		if err := l.p.core.Close(0); !errors.Is(err, ErrTransport) {
			t.Errorf("Close = %v, want ErrTransport", err)
		}
	}
	s.refuse = false
	if err := l.p.core.Close(0); err != nil {
		t.Errorf("Close = %v", err)
	}
}

// within fails the test, instead of hanging it, when fn does not return.
func within(t *testing.T, what string, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not return", what)
	}
}

// Nothing steps a broken context, so nobody would ever see that its transfers have ended.
func TestABrokenContextWithAReadInFlightIsClosedWhenTheReadHasEnded(t *testing.T) {
	for _, verb := range []string{"close", "unregister"} {
		t.Run(verb, func(t *testing.T) {
			l := newLab(t, `{}`)
			there, here := blocks(3, 8), blocks(40, 8)
			_, remote := l.grant("r1", 7, there)
			track := l.track(remote, "d-r1", 70)
			l.run(time.Second, 30*time.Millisecond)
			agent(t, l.d).HoldReads(true)
			l.read(track, here, there)
			l.step(30 * time.Millisecond)
			ctl := l.d.core.mem.Control
			l.d.core.leases.FenceAll()
			atomic.StoreUint64(&ctl.PoisonNs, uint64(l.now))
			atomic.StoreUint32(&ctl.Poisoned, 1)
			leave := func() error {
				if verb == "close" {
					return l.d.core.Close(0)
				}
				return l.d.core.Unregister()
			}
			if err := leave(); !errors.Is(err, ErrBusy) {
				t.Fatalf("with a read in flight: %v, want ErrBusy", err)
			}
			agent(t, l.d).HoldReads(false)
			for range 3 {
				if err := leave(); err == nil {
					return
				}
			}
			t.Errorf("%d transfers are open after their ends", l.d.core.reads.Open())
		})
	}
}
