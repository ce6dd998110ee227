package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
)

// fillRing tracks until the ring refuses, and tells how many went in.
func fillRing(l *lab, remote *host.Remote) (tracks []record.Handle) {
	for i := 0; ; i++ {
		h, err := l.d.host.Track(l.peer, remote, fmt.Appendf(nil, "d-%d", i), 1, l.now)
		if errors.Is(err, host.ErrFull) {
			return tracks
		}
		if err != nil {
			l.t.Fatal(err)
		}
		tracks = append(tracks, h)
	}
}

func TestWhatEndsARequestIsNeverRefusedAndNeverOvertakesItsStart(t *testing.T) {
	l := newLab(t, `{"ring_bytes":4096}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.run(time.Second, 30*time.Millisecond)
	tracks := fillRing(l, remote)
	if len(tracks) < 20 || len(tracks) > 4096/80 {
		t.Fatalf("%d tracks fill a ring of 4,096 bytes", len(tracks))
	}
	for _, h := range tracks {
		for range 3 { // said once, however often it is said
			if err := l.d.host.Untrack(h); err != nil {
				t.Fatalf("untrack with a full ring: %v", err)
			}
		}
	}
	if _, err := l.d.host.Track(l.peer, remote, []byte("late"), 1, l.now); !errors.Is(err, host.ErrFull) {
		t.Errorf("new work while the overflow is not empty: %v, want ErrFull", err)
	}
	if n := l.d.core.counters()["refused_ring"]; n == uint64(0) {
		t.Error("no refusal is counted")
	}
	if err := l.d.host.Reject(l.peer, remote, l.now); err != nil {
		t.Errorf("reject with a full ring: %v", err)
	}
	records := l.d.core.plane.Counters.Records
	l.step(30 * time.Millisecond)
	if got, want := l.d.core.plane.Counters.Records-records, uint64(2*len(tracks)+1); got != want {
		t.Errorf("the core saw %d records, want %d: each track and untrack once, and the reject", got, want)
	}
	l.run(300*time.Millisecond, 30*time.Millisecond)
	if alive := l.d.core.tracker.Alive(); alive != 0 {
		t.Errorf("%d objects are left on D: an untrack was lost or came before its track", alive)
	}
	for _, h := range tracks {
		if err := l.d.host.Untrack(h); !errors.Is(err, host.ErrStale) {
			t.Fatalf("untrack of an ended request: %v, want ErrStale", err)
		}
	}
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedReleased {
		t.Errorf("P was told %+v, want one release", freed)
	}
	if _, err := l.d.host.Track(l.peer, remote, []byte("again"), 1, l.now); err != nil {
		t.Errorf("new work after the overflow has been drained: %v", err)
	}
}

func TestAGrantWhoseExpectationLapsedTakesAFreshSlot(t *testing.T) {
	l := newLab(t, `{}`)
	expected, err := l.p.host.Expect([]byte("r1"))
	if err != nil {
		t.Fatal(err)
	}
	l.run(301*time.Second, 100*time.Millisecond) // expect_max is 10 x 30 s
	if lapsed := l.p.take(record.EvExpectLapsed); len(lapsed) != 1 || lapsed[0].Handle != uint64(expected) {
		t.Fatalf("lapsed: %+v", lapsed)
	}
	lease, err := l.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, Expected: expected, User: 7}, l.now)
	if err != nil || lease == expected {
		t.Fatalf("grant: %x, %v; the expectation was %x", lease, err, expected)
	}
	l.run(time.Second, 30*time.Millisecond)
	if held := l.p.core.Held(); held != 1 {
		t.Errorf("%d leases held, want 1", held)
	}
}

func TestARequestThatIsCancelledBeforeItsGrantLeavesNothing(t *testing.T) {
	l := newLab(t, `{}`)
	for i := range 10_000 { // C37
		h, err := l.p.host.Expect(fmt.Appendf(nil, "r%d", i))
		if err == nil {
			err = l.p.host.Cancel(h)
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			l.stepOne(l.p)
		}
	}
	l.step(30 * time.Millisecond)
	if alive := l.p.core.plane.Alive(); alive != 0 {
		t.Errorf("%d objects are left", alive)
	}
	used := 0
	for i := range l.p.core.mem.Slots {
		if l.p.core.mem.Slots[i].State != 0 {
			used++
		}
	}
	if used > 200 { // shows C37.2: what is cancelled is used again, and no other memory is touched
		t.Errorf("%d slots were used for 10,000 expectations of which at most 100 stood at once", used)
	}
	if len(l.p.evs) != 0 {
		t.Errorf("events: %+v", l.p.evs[:min(3, len(l.p.evs))])
	}
}

func TestEventsThatFindNoRoomWaitAndNoneIsLost(t *testing.T) {
	l := newLab(t, `{"events_max":64}`)
	const n = 1000
	for i := range n {
		if _, err := l.p.host.Grant(host.Grant{ID: fmt.Appendf(nil, "r%d", i), Blocks: 1, User: uint64(i)}, l.now); err != nil {
			t.Fatal(err)
		}
	}
	step := func(d time.Duration) { // a host that does not poll
		l.advance(d)
		if err := l.p.core.Step(); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		step(100 * time.Millisecond)
	}
	if held := l.p.core.Held(); held != 0 {
		t.Fatalf("%d leases held after 50 s", held)
	}
	if l.p.core.plane.Counters.EventsHeld == 0 {
		t.Fatal("the ring was never full")
	}
	seen := make([]int, n)
	for range 2 * n {
		var buf [16]record.Event
		k := l.p.host.Poll(buf[:], clock.Instant(0))
		for _, e := range buf[:k] {
			if e.Kind != record.EvFreed || e.Status != record.FreedExpired {
				t.Fatalf("event %+v", e)
			}
			seen[e.User]++
		}
		step(time.Millisecond)
	}
	for i, times := range seen {
		if times != 1 {
			t.Fatalf("lease %d was told %d times", i, times)
		}
	}
}

// Full means that a step brings room; of what no step can, the caller must be told so.
func TestAReadThatTheRingMayNeverHaveRoomForIsInvalid(t *testing.T) {
	l := newLab(t, `{"ring_bytes":16384}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	scattered := func(n int) (runs []record.Run) {
		for i := range n {
			runs = append(runs, record.Run{Local: uint32(2 * i % labBlocks), Remote: uint32(i % labBlocks), N: 1})
		}
		return runs
	}
	most := 3 * record.RunsMax // and the fill at the wrap
	for range 8 {              // wherever in the ring the last record ended
		h := l.track(remote, "local", 1)
		l.step(time.Millisecond)
		if err := l.d.host.Read(h, scattered(most+1)); !errors.Is(err, host.ErrInvalid) {
			t.Errorf("a read of %d runs: %v, want ErrInvalid", most+1, err)
		}
		if err := l.d.host.Read(h, scattered(most)); err != nil {
			t.Errorf("a read of %d runs: %v", most, err)
		}
		l.step(time.Millisecond)
	}
}

// Nothing else bounds the number of rejects, so they have a part of the overflow to themselves.
func TestRejectsLeaveRoomForWhatMayNotBeLost(t *testing.T) {
	l := newLab(t, `{"ring_bytes":4096,"tracked_max":64,"requests_max":64}`)
	_, remote := l.grant("r1", 7, blocks(0, 8))
	l.run(time.Second, 30*time.Millisecond)
	tracks := fillRing(l, remote)
	rejects := 0
	for err := error(nil); err == nil; rejects++ {
		remote := &host.Remote{ID: fmt.Appendf(nil, "%01000d", rejects)}
		if err = l.d.host.Reject(l.peer, remote, l.now); err != nil && !errors.Is(err, host.ErrFull) {
			t.Fatal(err)
		}
		if rejects > 1<<16 {
			t.Fatal("rejects have no bound")
		}
	}
	for _, h := range tracks {
		if err := l.d.host.Untrack(h); err != nil {
			t.Fatalf("untrack behind %d rejects: %v", rejects, err)
		}
	}
	l.run(30*time.Second, 30*time.Millisecond)
	if c := l.d.core.tracker.Counters(); c.Rejected != uint64(rejects-1) || c.Untracked != uint64(len(tracks)) {
		t.Errorf("%d rejects and %d untracks were heard, want %d and %d", c.Rejected, c.Untracked, rejects-1, len(tracks))
	}
}
