package core

import (
	"errors"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// awake registers a node's memory again.
func (l *lab) awake(n *node) {
	l.t.Helper()
	if err := n.core.Register(n.regions); err != nil {
		l.t.Fatal(err)
	}
}

func TestAContextThatRegistersAgainIsAnotherEngineForItsPeers(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	lease, remote := l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	before := *l.p.core.mem.Control
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.p.core.OwnHandshake(0); err == nil {
		t.Error("a context without memory has a handshake")
	}
	l.step(30 * time.Millisecond) // it steps on
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedClosed {
		t.Fatalf("freed: %+v", freed)
	}
	clear(l.p.kv) // asleep, the memory is somebody else's
	l.read(track, here, there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 0 {
		t.Fatalf("a read from a sleeping owner is done: %+v", done)
	}

	l.awake(l.p)
	now := *l.p.core.mem.Control
	if now.Era != before.Era+2 || now.Epoch == before.Epoch || now.Secret == before.Secret {
		t.Errorf("era %d, epoch %#x, secret %x after %d, %#x, %x", now.Era, now.Epoch, now.Secret, before.Era, before.Epoch, before.Secret)
	}
	l.connect(l.d, l.p) // the same handle: the engine has come back as another one
	l.run(time.Second, 30*time.Millisecond)
	if failed := l.d.take(record.EvReadFailed); len(failed) != 1 || failed[0].Status == record.ReadOK {
		t.Errorf("the read of the era before: %+v, left %+v", failed, l.d.evs)
	}
	lease, remote = l.grant("r1", 8, there)
	track = l.track(remote, "d-r1", 71)
	l.read(track, here, there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || done[0].User != 71 || l.d.wrong(8, here) != 0 {
		t.Errorf("read in the next era: %+v, left %+v", done, l.d.evs)
	}
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
}

// A transport does not go while a peer has to take what it asked for. The engine has a core that steps and serves, and calls again.
func TestAnUnregisterThatTheTransportRefusesIsCalledAgain(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	lease, remote := l.grant("r1", 7, there)
	l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	before := *l.p.core.mem.Control
	between := []record.Handle{lease}
	for n := range uint64(3) {
		agent(t, l.p).FailNext(loopback.OpClose, transport.ErrUntaken)
		if err := l.p.core.Unregister(); !errors.Is(err, ErrTransport) || !errors.Is(err, transport.ErrUntaken) {
			t.Fatalf("Unregister = %v, want ErrTransport and ErrUntaken", err)
		}
		if err := l.p.core.Register(l.p.regions); !errors.Is(err, ErrState) {
			t.Errorf("Register = %v, want ErrState", err)
		}
		l.run(time.Second, 30*time.Millisecond)
		freed := l.p.take(record.EvFreed)
		if len(freed) != 1 || freed[0].Handle != uint64(between[n]) || freed[0].Status != record.FreedClosed {
			t.Fatalf("freed: %+v", freed)
		}
		lease, _ := l.grant("between", 100+n, there)
		between = append(between, lease)
		l.step(30 * time.Millisecond)
	}
	if now := *l.p.core.mem.Control; now.Era != before.Era || now.Epoch != before.Epoch {
		t.Errorf("era %d, epoch %#x after %d, %#x", now.Era, now.Epoch, before.Era, before.Epoch)
	}
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.step(30 * time.Millisecond)
	l.p.take(record.EvFreed)
	l.awake(l.p)
	l.connect(l.d, l.p)
	l.run(time.Second, 30*time.Millisecond)
	_, remote = l.grant("r2", 8, there)
	l.read(l.track(remote, "d-r2", 71), here, there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || done[0].User != 71 || l.d.wrong(8, here) != 0 {
		t.Errorf("read in the next era: %+v, left %+v", done, l.d.evs)
	}
}

func TestParametersOfAnEraThatIsOverAreReadFromNobody(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant("r1", 7, there)
	l.run(time.Second, 30*time.Millisecond)
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.awake(l.p)
	l.connect(l.d, l.p)
	for range 5 { // slot and use of the parameters are taken again
		l.grant("r1", 9, there)
	}
	track := l.track(remote, "d-r1", 70)
	l.read(track, here, there)
	l.run(60*time.Second, 100*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 0 {
		t.Errorf("data of another era was handed out: %+v", done)
	}
	if l.d.core.plane.Alive() != 0 {
		if err := l.d.host.Untrack(track); err != nil {
			t.Fatal(err)
		}
		l.run(200*time.Second, time.Second)
	}
	if n := l.d.core.plane.Alive(); n != 0 {
		t.Errorf("%d objects are left at D", n)
	}
}

// A reader that goes to sleep tells the owners what it will never read, and its host that it is lost.
func TestAReaderThatUnregistersGivesUpWhatItTracks(t *testing.T) {
	l := newLab(t, `{}`)
	lease, remote := l.grant("r1", 7, blocks(3, 8))
	track := l.track(remote, "d-r1", 70)
	l.run(time.Second, 30*time.Millisecond)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.run(100*time.Millisecond, 10*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedReleased {
		t.Errorf("P was told %+v, want a release", freed)
	}
	if gone := l.d.take(record.EvLeaseGone); len(gone) != 1 || gone[0].Handle != uint64(track) {
		t.Errorf("D's host was told %+v, want that the lease is gone", gone)
	}
	if err := l.d.host.Untrack(track); err != nil {
		t.Fatal(err)
	}
	l.run(time.Minute, 100*time.Millisecond) // asleep
	if n := l.d.core.plane.Alive(); n != 0 {
		t.Errorf("%d objects are left at D", n)
	}

	l.awake(l.d)
	there, here := blocks(11, 8), blocks(40, 8)
	_, remote = l.grant("r2", 8, there)
	track = l.track(remote, "d-r2", 71) // over the handle and the handshake that it had
	l.run(20*time.Second, 100*time.Millisecond)
	l.read(track, here, there)
	l.run(time.Second, 30*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || done[0].User != 71 || l.d.wrong(8, here) != 0 {
		t.Errorf("read after waking: %+v, left %+v", done, l.d.evs)
	}
	if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Status != record.FreedCompleted {
		t.Errorf("freed: %+v", freed)
	}
}

func TestAGrantSaidWhileThereIsNoMemoryEndsAsClosed(t *testing.T) {
	for _, steps := range []bool{true, false} {
		l := newLab(t, `{}`)
		if err := l.p.core.Unregister(); err != nil {
			t.Fatal(err)
		}
		lease, err := l.p.host.Grant(host.Grant{ID: []byte("r1"), Blocks: 8, User: 7}, l.now)
		if err != nil {
			t.Fatal(err)
		}
		if steps {
			l.step(time.Millisecond)
		}
		l.awake(l.p)
		l.step(time.Millisecond)
		if freed := l.p.take(record.EvFreed); len(freed) != 1 || freed[0].Handle != uint64(lease) || freed[0].Status != record.FreedClosed {
			t.Errorf("steps while asleep %v, freed: %+v", steps, freed)
		}
	}
}

func TestEndsThatFoundNoRoomBeforeAnEraAreToldInTheNext(t *testing.T) {
	l := newLab(t, `{"events_max":64,"requests_max":512}`)
	for i := range 300 {
		l.grant(string(rune('a'+i%26))+string(rune('0'+i/26)), uint64(i), []uint32{uint32(i % labBlocks)})
	}
	l.p.core.Step() // their ends do not fit into the ring all at once
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.awake(l.p)
	l.run(time.Second, 30*time.Millisecond)
	if freed := l.p.take(record.EvFreed); len(freed) != 300 {
		t.Errorf("%d ends told, want 300", len(freed))
	}
}

func TestAContextSleepsAndWakesAsOftenAsItLikes(t *testing.T) {
	l := newLab(t, `{}`)
	there, here := blocks(3, 8), blocks(40, 8)
	for round := range 5 {
		for _, n := range []*node{l.p, l.d} {
			if err := n.core.Unregister(); err != nil {
				t.Fatal(err)
			}
			if err := n.core.Unregister(); !errors.Is(err, ErrState) {
				t.Fatalf("a second Unregister: %v", err)
			}
		}
		l.awake(l.p)
		l.awake(l.d)
		l.connect(l.d, l.p)
		_, remote := l.grant("r1", uint64(round), there)
		track := l.track(remote, "d-r1", 70)
		l.read(track, here, there)
		l.run(20*time.Second, 100*time.Millisecond)
		if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(uint64(round), here) != 0 {
			t.Fatalf("round %d: %+v, left %+v", round, done, l.d.evs)
		}
		l.p.evs, l.d.evs = nil, nil
	}
	if n := l.p.core.plane.Alive() + l.d.core.plane.Alive(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

func TestAPoisonedContextRegistersNoMore(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.p.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.p.core.leases.FenceAll()
	l.p.core.mem.Control.Poisoned = 1
	if err := l.p.core.Register(l.p.regions); !errors.Is(err, ErrPoisoned) {
		t.Errorf("Register: %v, want ErrPoisoned", err)
	}
	header, rows := record.Board(l.p.core.mem.Board)
	if header.Flags&record.BoardClosed == 0 || rows[0].Fence != record.FenceClosed {
		t.Error("the board is open")
	}
}
