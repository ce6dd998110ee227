package core

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/watch"
)

// faulty is a transport whose Poll breaks on demand, as a bug in the core would.
type faulty struct {
	transport.Transport
	broken bool
}

func (f *faulty) Poll(in *transport.Inbox) int {
	if f.broken {
		var list []int
		_ = list[in.Len()] // a bounds error, not an explicit panic
	}
	return f.Transport.Poll(in)
}

func TestAPanicInAStepFencesEveryRowBeforeAnythingIsToldAndStopsTheCore(t *testing.T) {
	l := newLab(t, `{}`)
	bad := &faulty{}
	there := blocks(3, 8)
	lease, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(10*time.Second, 30*time.Millisecond)
	unnamed, _ := l.grant("r2", 8, blocks(20, 8))
	l.run(60*time.Millisecond, 30*time.Millisecond)

	bad.Transport = l.p.core.tr
	l.p.core.plane.WrapTransport(bad)
	bad.broken = true
	if err := l.p.core.Step(); !errors.Is(err, ErrPoisoned) {
		t.Fatalf("step = %v, want ErrPoisoned", err)
	}
	if atomic.LoadUint32(&l.p.core.mem.Control.Poisoned) != 1 {
		t.Error("the control page does not say so")
	}
	header, rows := record.Board(l.p.core.mem.Board)
	if header.Flags&record.BoardClosed == 0 {
		t.Error("the board is not marked closed")
	}
	for i := range l.p.core.mem.Slots {
		if rows[i].Fence != record.FenceClosed {
			t.Fatalf("row %d is open: %#x", i, rows[i].Fence)
		}
	}
	if !strings.Contains(l.p.core.Broken(), "index out of range") {
		t.Errorf("what broke is not told: %q", l.p.core.Broken())
	}
	if err := l.p.core.Step(); !errors.Is(err, ErrPoisoned) {
		t.Errorf("a broken core steps again: %v", err)
	}
	// The host is told from the slots: r1's reader has spoken natively, so it is told at once; r2's nobody has named.
	l.p.evs = nil
	told := func() []record.Event {
		var buf [8]record.Event
		return append([]record.Event(nil), buf[:l.p.host.Poll(buf[:], l.now)]...)
	}
	first := told()
	if len(first) != 2 || first[0].Kind != record.EvPoisoned || first[1].Kind != record.EvFreed ||
		first[1].Handle != uint64(lease) || first[1].Status != record.FreedPoisoned || first[1].User != 7 || first[1].Value0 != 8 {
		t.Errorf("told at once: %+v", first)
	}
	l.advance(l.p.core.cfg.Duration - time.Millisecond)
	if early := told(); len(early) != 0 {
		t.Errorf("told before one duration has passed: %+v", early)
	}
	l.advance(2 * time.Millisecond)
	if second := told(); len(second) != 1 || second[0].Handle != uint64(unnamed) || second[0].Status != record.FreedPoisoned {
		t.Errorf("told after one duration: %+v", second)
	}
	if more := told(); len(more) != 0 {
		t.Errorf("told twice: %+v", more)
	}
	// D finds out by the fence alone: P's software answers nothing any more.
	l.read(track, blocks(40, 8), there)
	for range 20 {
		l.advance(30 * time.Millisecond)
		l.stepOne(l.d)
	}
	if failed := l.d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status != record.ReadStale {
		t.Errorf("outcome: %+v, left %+v", failed, l.d.evs)
	}
}

// Nobody steps a broken context: what is beside the step must say that it is broken, or no alert would.
func TestABrokenContextSaysSoOnItsPageWithoutAnotherStep(t *testing.T) {
	for name, breaks := range map[string]func(*testing.T, *lab){
		"a panic in a step": func(t *testing.T, l *lab) {
			l.p.core.plane.WrapTransport(&faulty{Transport: l.p.core.tr, broken: true})
			if err := l.p.core.Step(); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("step = %v, want ErrPoisoned", err)
			}
		},
		"kvl_fence_all": func(_ *testing.T, l *lab) { // as it does it
			l.p.core.leases.FenceAll()
			atomic.StoreUint64(&l.p.core.mem.Control.PoisonNs, uint64(l.now))
			atomic.StoreUint32(&l.p.core.mem.Control.Poisoned, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, `{}`)
			l.run(time.Second, 30*time.Millisecond)
			p, err := l.p.core.Page()
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			exporter := metrics.NewExporter(l.p.core.Page)
			defer exporter.Close()
			var s watch.Snapshot
			says := func(poisoned, healthy uint64) bool {
				t.Helper()
				if err := p.Read(&s); err != nil {
					t.Fatal(err)
				}
				broken, _ := s.Value("poisoned", "")
				well, _ := s.Value("healthy", "")
				return s.Poisoned == (poisoned == 1) && broken == poisoned && well == healthy
			}
			if !says(0, 1) {
				t.Fatalf("before it breaks: %+v", s.Head)
			}
			breaks(t, l)
			at := s.Published
			eventually(t, "the page says that the context is broken", func() bool { return says(1, 0) })
			if s.Published != at {
				t.Errorf("a step has written the page: %d, then %d", at, s.Published)
			}
			text, err := exporter.Text()
			if err != nil {
				t.Fatal(err)
			}
			for _, metric := range []string{"kvlease_poisoned", "kvlease_healthy"} {
				want := map[string]string{"kvlease_poisoned": "1", "kvlease_healthy": "0"}[metric]
				if line := regexp.MustCompile(`(?m)^` + metric + `\{.*\} (.*)$`).FindSubmatch(text); line == nil || string(line[1]) != want {
					t.Errorf("%s is %q, want %s", metric, line, want)
				}
			}
		})
	}
}

// A lapsed expectation that waits for room in the ring has no blocks; what its slot says of some is of the use before.
func TestAfterAPoisoningALapsedExpectationIsNotToldAsALease(t *testing.T) {
	l := newLab(t, `{"events_max":64,"expect_max":40}`)
	old, _ := l.grant("old", 7, blocks(3, 8))
	if err := l.p.host.Cancel(old); err != nil {
		t.Fatal(err)
	}
	l.step(time.Millisecond)
	expected, err := l.p.host.Expect([]byte("e"))
	if err != nil || expected.Slot() != old.Slot() {
		t.Fatalf("%#x after %#x: %v", expected, old, err)
	}
	for i := range 200 { // they end before it and fill the ring
		if _, err := l.p.host.Grant(host.Grant{ID: fmt.Appendf(nil, "r%d", i), Blocks: 1, User: 9}, l.now); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 { // a host that does not poll
		l.advance(100 * time.Millisecond)
		if err := l.p.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	if c := l.p.core.leases.Counters; c.Lapsed != 1 || l.p.core.leases.Ending() == 0 {
		t.Fatalf("%d lapsed, %d ends wait", c.Lapsed, l.p.core.leases.Ending())
	}
	l.p.core.leases.FenceAll()
	atomic.StoreUint32(&l.p.core.mem.Control.Poisoned, 1)
	var buf [512]record.Event
	n := 0
	for _, e := range buf[:l.p.host.Poll(buf[:], l.now)] {
		if e.Kind == record.EvFreed && e.User != 9 {
			t.Errorf("told as freed: %+v", e)
		}
		if e.Kind == record.EvFreed {
			n++
		}
	}
	if n != 200 {
		t.Errorf("%d leases told, want 200", n)
	}
}

// The tracker of a poisoned context may be what is broken: a drain must not touch it, nor keep the lock.
func TestADrainOfAPoisonedContextLeavesItsPartsAlone(t *testing.T) {
	l := newLab(t, `{}`)
	c := l.d.core
	atomic.StoreUint32(&c.mem.Control.Poisoned, 1)
	tracker := c.tracker
	c.tracker = nil // a touch would panic
	if err := c.Drain(time.Second); !errors.Is(err, ErrPoisoned) {
		t.Errorf("drain = %v, want ErrPoisoned", err)
	}
	c.tracker = tracker
	if !c.mu.TryLock() {
		t.Fatal("the lock is held")
	}
	c.mu.Unlock()
}

func TestAPanicInADrainPoisons(t *testing.T) {
	l := newLab(t, `{}`)
	c := l.d.core
	tracker := c.tracker
	c.tracker = nil
	if err := c.Drain(time.Second); !errors.Is(err, ErrPoisoned) {
		t.Errorf("drain = %v, want ErrPoisoned", err)
	}
	c.tracker = tracker
	if atomic.LoadUint32(&c.mem.Control.Poisoned) != 1 {
		t.Error("the context is not poisoned")
	}
}
