package loopback_test

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// world is D reading from P.
type world struct {
	t          *testing.T
	hub        *loopback.Hub
	d, p       *loopback.Agent
	memD, memP []byte
	toP        transport.Peer
	in         *transport.Inbox
}

func newWorld(t *testing.T, cfg loopback.Config) *world {
	t.Helper()
	w := &world{t: t, hub: loopback.NewHub(), memD: make([]byte, 4096), memP: make([]byte, 4096), in: transport.NewInbox(64, 4096)}
	w.d, w.p = w.agent("D", cfg, w.memD), w.agent("P", cfg, w.memP)
	w.toP = w.load()
	return w
}

func (w *world) agent(name string, cfg loopback.Config, mem []byte) *loopback.Agent {
	w.t.Helper()
	a, err := w.hub.New(name, cfg)
	w.must(err)
	w.must(a.Register([]transport.Region{{Addr: at(mem), Bytes: uint64(len(mem))}}))
	return a
}

func (w *world) load() transport.Peer {
	w.t.Helper()
	blob, err := w.p.Metadata()
	w.must(err)
	p, err := w.d.Load(blob)
	w.must(err)
	return p
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) post() transport.Xfer {
	w.t.Helper()
	x, err := w.d.PostRead(w.spec())
	w.must(err)
	return x
}

func (w *world) spec() *transport.ReadSpec {
	return &transport.ReadSpec{Peer: w.toP, Descs: []transport.Desc{{Local: at(w.memD), Remote: at(w.memP), Len: 64}}}
}

func (w *world) status(x transport.Xfer) transport.Status {
	out := make([]transport.Status, 1)
	w.d.PollReads([]transport.Xfer{x}, out, 0)
	return out[0]
}

func (w *world) arrived() int {
	w.in.Reset()
	return w.p.Poll(w.in)
}

func at(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m)))) }

func TestHeldReadsEndWhenTheyAreLet(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	w.d.HoldReads(true)
	x, y := w.post(), w.post()
	w.memP[0] = 1
	if w.status(x) != transport.Pending || w.memD[0] != 0 {
		t.Fatal("a held read moved")
	}
	w.d.LetReads(1)
	if w.status(x) != transport.Done || w.memD[0] != 1 || w.status(y) != transport.Pending {
		t.Error("one read was let go, and not exactly one ended")
	}
	w.d.HoldReads(false)
	if w.status(y) != transport.Done {
		t.Error("the second read did not end")
	}
}

func TestAFailedReadMayLandLate(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	w.memP[0] = 1
	w.d.FailNext(loopback.OpRead, nil)
	x := w.post()
	if w.status(x) != transport.Failed || w.memD[0] != 0 {
		t.Fatal("the read did not fail before its bytes moved")
	}
	if n := w.d.LandLate(); n != 1 || w.memD[0] != 1 {
		t.Errorf("%d reads landed late, byte %d", n, w.memD[0])
	}
	w.must(w.d.Release(x))
	if n := w.d.LandLate(); n != 0 {
		t.Errorf("%d released reads landed", n)
	}
}

func TestEachCallFailsWhenItIsTold(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	told := errors.New("told")
	blob, err := w.p.Metadata()
	w.must(err)
	for _, tc := range []struct {
		op   loopback.Op
		call func() error
	}{
		{loopback.OpRegister, func() error { return w.d.Register([]transport.Region{{Addr: at(w.memD), Bytes: 8}}) }},
		{loopback.OpSend, func() error { return w.d.Send(w.toP, nil) }},
		{loopback.OpPostRead, func() error { _, err := w.d.PostRead(w.spec()); return err }},
		{loopback.OpDrop, func() error { return w.d.Drop(w.toP) }},
		{loopback.OpLoad, func() error { w.toP, err = w.d.Load(blob); return err }},
		{loopback.OpAbandon, func() error { return w.d.Abandon(w.toP) }},
	} {
		w.d.FailNext(tc.op, told)
		w.d.FailNext(tc.op, transport.ErrFull)
		if err := tc.call(); !errors.Is(err, told) {
			t.Errorf("op %d: %v, want the first error", tc.op, err)
		}
		if err := tc.call(); !errors.Is(err, transport.ErrFull) {
			t.Errorf("op %d: %v, want the second error", tc.op, err)
		}
		if tc.op == loopback.OpPostRead {
			continue // its read would stay open
		}
		if err := tc.call(); err != nil {
			t.Errorf("op %d: %v after the failures, want nil", tc.op, err)
		}
	}
}

func TestHeldNotificationsArriveOnDelivery(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	w.p.HoldNotifs(true)
	for i := range 5 {
		w.must(w.d.Send(w.toP, []byte{byte(i)}))
	}
	if n := w.arrived(); n != 0 || w.p.Backlog() != 0 || w.p.InFlight() != 5 {
		t.Fatalf("%d arrived, backlog %d, %d in flight", n, w.p.Backlog(), w.p.InFlight())
	}
	if n := w.p.Deliver(2); n != 2 || w.arrived() != 2 {
		t.Errorf("delivered %d", n)
	}
	if _, body, _ := w.in.Next(); body[0] != 0 {
		t.Errorf("the oldest was not first: %v", body)
	}
	w.p.HoldNotifs(false)
	if n := w.arrived(); n != 3 {
		t.Errorf("%d arrived after the hold, want 3", n)
	}
	w.p.LoseNext(1)
	w.must(w.d.Send(w.toP, []byte("lost")))
	w.must(w.d.Send(w.toP, []byte("kept")))
	if n := w.arrived(); n != 1 {
		t.Errorf("%d arrived, want the second only", n)
	}
}

func TestAStoppedAgentIsSilentUntilItGoesOn(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	w.hub.Stop("P")
	x := w.post()
	w.must(w.d.Send(w.toP, []byte("x")))
	if w.status(x) != transport.Pending || w.arrived() != 0 {
		t.Fatal("a stopped agent answered")
	}
	w.hub.Resume("P")
	if w.status(x) != transport.Done || w.arrived() != 1 {
		t.Error("an agent that goes on did not")
	}
}

func TestAKilledAgentsSuccessorIsAnotherOne(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	old, err := w.p.Metadata()
	w.must(err)
	w.hub.Kill("P")
	w.p = w.agent("P", loopback.Config{}, w.memP)
	if err := w.d.Send(w.toP, nil); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("send to the killed agent: %v, want ErrPeer", err)
	}
	w.must(w.d.Drop(w.toP))
	w.toP, err = w.d.Load(old)
	w.must(err)
	if err := w.d.Send(w.toP, nil); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("send by the old metadata: %v, want ErrPeer", err)
	}
	w.must(w.d.Drop(w.toP))
	w.toP = w.load()
	w.must(w.d.Send(w.toP, nil))
}

func TestMemoryThatTheOwnerUnregisteredIsNotRead(t *testing.T) {
	w := newWorld(t, loopback.Config{})
	w.memP[0] = 1
	x := w.post()
	w.must(w.p.Unregister([]transport.Region{{Addr: at(w.memP), Bytes: 4096}}))
	if w.status(x) != transport.Failed || w.memD[0] != 0 {
		t.Error("it was read")
	}
}

func TestPoolsThatAreFullRefuse(t *testing.T) {
	w := newWorld(t, loopback.Config{NotifsMax: 3, NotifBytesMax: 64, DescsMax: 64, ReadsMax: 4, AttachedMax: 1, PeersMax: 1, RegionsMax: 1})
	for range 3 {
		w.must(w.d.Send(w.toP, []byte("x")))
	}
	if err := w.d.Send(w.toP, []byte("x")); !errors.Is(err, transport.ErrFull) {
		t.Errorf("the fourth notification: %v, want ErrFull", err)
	}
	if w.arrived() != 3 {
		t.Error("the others did not arrive")
	}
	for range 100 { // the byte ring wraps without losing room
		w.must(w.d.Send(w.toP, make([]byte, 40)))
		if err := w.d.Send(w.toP, make([]byte, 40)); !errors.Is(err, transport.ErrFull) {
			t.Fatalf("80 bytes in 64: %v, want ErrFull", err)
		}
		if w.arrived() != 1 {
			t.Fatal("nothing arrived")
		}
	}
	many := w.spec()
	for len(many.Descs) < 64*5+1 {
		many.Descs = append(many.Descs, many.Descs[0])
	}
	if _, err := w.d.PostRead(many); !errors.Is(err, transport.ErrFull) {
		t.Errorf("descriptors past the pool: %v, want ErrFull", err)
	}
	if err := w.d.Register([]transport.Region{{Addr: at(w.memD), Bytes: 8}}); !errors.Is(err, transport.ErrFull) {
		t.Errorf("a second region: %v, want ErrFull", err)
	}
	other := w.agent("P2", loopback.Config{}, make([]byte, 64))
	blob, err := other.Metadata()
	w.must(err)
	if _, err := w.d.Load(blob); !errors.Is(err, transport.ErrFull) {
		t.Errorf("a second peer: %v, want ErrFull", err)
	}
	if _, err := w.hub.New("P", loopback.Config{}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("a second agent of a name: %v, want ErrInvalid", err)
	}
	spec := w.spec()
	for range 3 { // the room comes back with the read
		spec.Notif = []byte("req-1:1")
		x, err := w.d.PostRead(spec)
		w.must(err)
		if _, err := w.d.PostRead(spec); !errors.Is(err, transport.ErrFull) {
			t.Errorf("a second read with a notification: %v, want ErrFull", err)
		}
		if w.status(x) != transport.Done || w.arrived() != 1 {
			t.Error("the first did not land, or nothing arrived with it")
		}
		w.must(w.d.Release(x))
	}
	spec.Notif = make([]byte, 4097)
	if _, err := w.d.PostRead(spec); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("an attached notification of 4,097 bytes: %v, want ErrInvalid", err)
	}
}

// A peer whose queue is full does not lose the notification that rides on a read: the read ends when there is room.
func TestAnAttachedNotificationWaitsForRoom(t *testing.T) {
	w := newWorld(t, loopback.Config{NotifsMax: 1})
	w.must(w.d.Send(w.toP, []byte("first")))
	spec := w.spec()
	spec.Notif = []byte("second")
	x, err := w.d.PostRead(spec)
	w.must(err)
	if w.status(x) != transport.Pending {
		t.Fatal("the read ended without its notification")
	}
	if w.arrived() != 1 || w.status(x) != transport.Done || w.arrived() != 1 {
		t.Error("the notification did not follow")
	}
	if _, body, _ := w.in.Next(); string(body) != "second" {
		t.Errorf("got %q", body)
	}
}
