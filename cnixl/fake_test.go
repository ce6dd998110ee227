package cnixl

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
)

func TestTheFakeKeepsTheContract(t *testing.T) {
	transporttest.Run(t, func(t *testing.T) transporttest.Pair {
		s := newScript(t)
		a := s.open(Config{Agent: "decode-0", ReadsMax: 20})
		b := s.open(Config{Agent: "prefill-0"})
		return transporttest.Pair{
			A: a, B: b, ReadsMax: 20,
			Hold: func(hold bool) {
				if hold {
					s.do("hold decode-0 1")
				} else {
					s.do("hold decode-0 0")
				}
			},
			KillB: func() { s.do("kill prefill-0") },
			CutA:  func() { s.do("cut decode-0 prefill-0") },
		}
	})
}

func TestTheFirstBackendErrorLosesThePeerUntilItIsLoadedAgain(t *testing.T) {
	for _, st := range []int{-2, -6, -4} {
		t.Run(fmt.Sprint("status ", st), func(t *testing.T) {
			l := newLinked(t)
			l.do("fail gen_notif 1 %d", st)
			for range 5 {
				if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrPeer) {
					t.Fatalf("status %d: %v, want ErrPeer", st, err)
				}
				if _, err := l.a.PostRead(l.spec(1)); !errors.Is(err, transport.ErrPeer) {
					t.Fatalf("status %d: read: %v, want ErrPeer", st, err)
				}
			}
			if n := l.do("count gen_notif"); n != 1 { // shows F4.1
				t.Errorf("NIXL was asked %d times, want once: each failing send writes a line to stderr", n)
			}
			blob, err := l.b.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			if err := l.a.Drop(l.toB); err != nil {
				t.Fatal(err)
			}
			if l.toB, err = l.a.Load(blob); err != nil {
				t.Fatal(err)
			}
			if err := l.a.Send(l.toB, []byte("x")); err != nil {
				t.Errorf("after drop and load: %v", err)
			}
		})
	}
}

func TestAStatusOfTheAgentLayerEndsNoRead(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	l.memB[0] = 7
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range []int{-6, -3, -4} {
		l.do("fail get_xfer_status 1 %d", st)
		if got := status(l.a, x, 0); got != transport.Pending {
			t.Fatalf("status %d made the read %d, want Pending", st, got)
		}
		l.do("fail get_xfer_status 1 %d", st)
		if err := l.a.Release(x); !errors.Is(err, transport.ErrInvalid) {
			t.Fatalf("release under status %d: %v, want ErrInvalid", st, err)
		}
	}
	if n := l.a.Counters().StatusAgent; n != 6 {
		t.Errorf("%d such statuses counted, want 6", n)
	}
	if l.memA[0] != 0 || l.do("count release_xfer_req") != 0 {
		t.Error("NIXL was asked to release a read in flight")
	}
	l.do("hold D 0")
	if got := status(l.a, x, 0); got != transport.Done || l.memA[0] != 7 {
		t.Errorf("status %d, byte %d", got, l.memA[0])
	}
	if err := l.a.Release(x); err != nil {
		t.Error(err)
	}
}

func TestABackendErrorOfATransferFailsItAndLosesThePeer(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	l.do("fail get_xfer_status 1 -2")
	for range 3 { // an end stays an end
		if got := status(l.a, x, 0); got != transport.Failed {
			t.Fatalf("status %d, want Failed", got)
		}
	}
	if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrPeer) { // shows F4.1
		t.Errorf("send after it: %v, want ErrPeer", err)
	}
	if err := l.a.Drop(l.toB); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("drop over a handle that is kept: %v, want ErrInvalid", err)
	}
	if err := l.a.Release(x); err != nil {
		t.Fatal(err)
	}
	if n := l.do("land"); n != 1 {
		t.Fatalf("the fake knows %d reads released in flight, want 1: after an error bytes may still land", n)
	}
}

// UCX's "invalid parameter" of a get that it had put off is NIXL's own status of the read from then on: it ends it, and speaks against nobody.
func TestAReadThatNIXLCallsInvalidHasFailedHere(t *testing.T) {
	l := newLinked(t)
	l.do("hold D 1")
	x, err := l.a.PostRead(l.spec(4))
	if err != nil {
		t.Fatal(err)
	}
	l.do("fail get_xfer_status 1 -1")
	for range 3 {
		if got := status(l.a, x, 0); got != transport.FailedHere {
			t.Fatalf("status %d, want FailedHere", got)
		}
	}
	if err := l.a.Send(l.toB, []byte("x")); err != nil {
		t.Errorf("send after it: %v", err)
	}
	if err := l.a.Release(x); err != nil {
		t.Fatal(err)
	}
	if err := l.a.Drop(l.toB); err != nil {
		t.Error(err)
	}
}

// A message that UCX calls invalid is refused alone: what comes after it leaves over the same connection.
func TestASendThatNIXLCallsInvalidLosesNoPeer(t *testing.T) {
	l := newLinked(t)
	l.do("fail gen_notif 1 -1")
	if err := l.a.Send(l.toB, []byte("x")); !errors.Is(err, transport.ErrInvalid) {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	if err := l.a.Send(l.toB, []byte("y")); err != nil {
		t.Errorf("the next one: %v", err)
	}
	if n := l.a.Counters().SendsFailed; n != 1 {
		t.Errorf("%d sends counted, want 1", n)
	}
}

// A get that was begun lands, also where NIXL refuses the post behind it: memory that was given back would be written.
func TestAPostThatIsRefusedBehindItsGetIsAReadWhoseMemoryIsKept(t *testing.T) {
	for _, descs := range []int{1, 4} {
		t.Run(fmt.Sprint(descs), func(t *testing.T) {
			l := newLinked(t)
			l.memB[0] = 7
			l.do("choke D 1")
			x, err := l.a.PostRead(l.spec(descs))
			if err != nil {
				t.Fatalf("%v: nobody would know that its bytes may land", err)
			}
			if got := status(l.a, x, 0); got != transport.Failed {
				t.Errorf("status %d, want Failed", got)
			}
			if err := l.a.Release(x); err != nil {
				t.Fatal(err)
			}
			if n := l.do("land"); n != 1 || l.memA[0] != 7 {
				t.Errorf("%d reads landed behind the refusal, byte %d", n, l.memA[0])
			}
		})
	}
}

// A lost connection is what most posts are refused for: nothing of one descriptor was begun, and nothing has to wait for its end.
func TestAPostToALostPeerIsNoRead(t *testing.T) {
	l := newLinked(t)
	l.do("kill P")
	if x, err := l.a.PostRead(l.spec(1)); x != 0 || !errors.Is(err, transport.ErrPeer) {
		t.Fatalf("handle %d, %v, want ErrPeer", x, err)
	}
	if err := l.a.Drop(l.toB); err != nil {
		t.Error(err)
	}
}

func TestAPostThatIsRefused(t *testing.T) {
	for _, tc := range []struct {
		name   string
		descs  int
		status int
		want   error
		ended  transport.Status // if there is a read
	}{
		{"of one descriptor may have started it, so it is a failed read", 1, -2, nil, transport.Failed},
		{"before the backend has started nothing", 8, -6, transport.ErrPeer, 0},
		{"of several may have started some, so it is a failed read", 8, -2, nil, transport.Failed},
		{"for what it asks, of one", 1, -1, transport.ErrInvalid, 0},
		{"for what one of several asks", 8, -1, nil, transport.FailedHere},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLinked(t)
			l.do("fail post_xfer_req 1 %d", tc.status)
			x, err := l.a.PostRead(l.spec(tc.descs))
			if !errors.Is(err, tc.want) || (err == nil) != (x != 0) {
				t.Fatalf("handle %d, %v, want %v", x, err, tc.want)
			}
			if tc.want == nil {
				if got := status(l.a, x, 0); got != tc.ended {
					t.Errorf("status %d, want %d", got, tc.ended)
				}
				if err := l.a.Release(x); err != nil {
					t.Error(err)
				}
			}
			if err := l.a.Send(l.toB, []byte("x")); errors.Is(err, transport.ErrPeer) != (tc.status != -1) {
				t.Errorf("send after it: %v, want ErrPeer only where the peer may be lost", err)
			}
			if err := l.a.Drop(l.toB); err != nil {
				t.Errorf("drop: %v: the read is still counted as open", err)
			}
		})
	}
}

func TestAWrongAddressDoesNotLookLikeALostPeer(t *testing.T) {
	l := newLinked(t)
	spec := l.spec(2)
	spec.Descs[1].Remote += 1 << 30
	if _, err := l.a.PostRead(spec); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("%v, want ErrInvalid", err)
	}
	if err := l.a.Send(l.toB, []byte("x")); err != nil {
		t.Errorf("send after it: %v", err)
	}
	l.do("fail create_xfer_req 1 -2") // and nothing is wrong with the addresses
	if _, err := l.a.PostRead(l.spec(2)); !errors.Is(err, transport.ErrPeer) {
		t.Errorf("%v, want ErrPeer", err)
	}
}

func TestNIXLIsAskedForLocksAndForNoStatistics(t *testing.T) {
	s := newScript(t)
	s.open(Config{Agent: "usual"})
	s.open(Config{Agent: "careful", Strict: true})
	for name, want := range map[string]int{"usual": 2, "careful": 1} { // NIXL's numbers of the read-write and the strict lock
		if got := s.do("sync %s", name); got != want { // shows C73.2
			t.Errorf("agent %s was made with thread_sync %d, want %d", name, got, want)
		}
		if s.do("telemetry %s", name) != 0 {
			t.Errorf("agent %s was asked to measure", name)
		}
	}
	for _, symbol := range Symbols() {
		if strings.Contains(symbol, "telemetry") || strings.Contains(symbol, "cost") { // shows C76.1
			t.Errorf("%s is looked up: where it is missing no read would work", symbol)
		}
	}
}

func TestRegisterIsUndoneWhenTheSecondKindOfMemoryFails(t *testing.T) {
	s := newScript(t)
	a := s.open(Config{Agent: "D"})
	mem := memory(10 * 4096)
	var both []transport.Region // five of each kind
	for i := range uint64(10) {
		both = append(both, transport.Region{Addr: address(mem) + i*4096, Bytes: 4096, Mem: transport.Mem(i % 2)})
	}
	s.do("fail register_mem 2 -2")
	if err := a.Register(both); !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), "5 of them device memory") || !strings.Contains(err.Error(), "Remedy: a UCX with its module for CUDA") {
		t.Fatalf("%v, want ErrInvalid", err)
	}
	if s.do("count deregister_mem") != 1 { // shows C65.1
		t.Error("the first kind stayed registered")
	}
	if err := a.Register(both); err != nil || s.do("count register_mem") != 4 || s.do("count deregister_mem") != 1 { // shows C65.2
		t.Error(err)
	}
	if err := a.Unregister(both); err != nil {
		t.Error(err)
	}
}

func TestALoadThatHangsDoesNotHoldUpAStep(t *testing.T) {
	l := newLinked(t)
	c := l.open(Config{Agent: "P2"})
	blob, err := c.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	l.do("gate load_remote_md 1")
	loaded := make(chan error)
	go func() {
		_, err := l.a.Load(blob)
		loaded <- err
	}()
	waitUntil(t, "the load to begin", func() bool { return l.do("count load_remote_md") == 2 })
	in := transport.NewInbox(64, 4096)
	for i := range 1000 {
		if err := l.a.Send(l.toB, []byte("x")); err != nil {
			t.Fatal(err)
		}
		in.Reset()
		if n := l.b.Poll(in); n != 1 {
			t.Fatalf("round %d: %d notifications", i, n)
		}
		x, err := l.a.PostRead(l.spec(2))
		if err != nil {
			t.Fatal(err)
		}
		if status(l.a, x, 0) != transport.Done || l.a.Release(x) != nil {
			t.Fatal("read")
		}
	}
	select {
	case err := <-loaded:
		t.Fatalf("the load ended through its closed gate: %v", err)
	default:
	}
	l.do("gate load_remote_md 0")
	if err := <-loaded; err != nil {
		t.Error(err)
	}
}

func TestNIXLIsNotAskedToLoadAnAgentOverItself(t *testing.T) {
	l := newLinked(t)
	if err := l.b.Register([]transport.Region{{Addr: address(l.memB) + 64, Bytes: 64}}); err != nil {
		t.Fatal(err)
	}
	blob, err := l.b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	before := l.do("count load_remote_md")
	if _, err := l.a.Load(blob); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("load of a loaded agent with other regions: %v, want ErrInvalid", err)
	}
	if n := l.do("count load_remote_md") - before; n != 0 {
		t.Errorf("NIXL was asked %d times: it would drop the keys of what is loaded", n)
	}
	x, err := l.a.PostRead(l.spec(2))
	if err != nil || status(l.a, x, 0) != transport.Done || l.a.Release(x) != nil {
		t.Errorf("a read of the loaded agent after it: %v", err)
	}
}

func TestAPollThatNIXLRefusesLosesNothing(t *testing.T) {
	l := newLinked(t)
	if err := l.a.Send(l.toB, []byte("x")); err != nil {
		t.Fatal(err)
	}
	l.do("fail get_notifs 1 -2")
	in := transport.NewInbox(4, 256)
	if n := l.b.Poll(in); n != 0 {
		t.Errorf("%d notifications", n)
	}
	if n := l.b.Poll(in); n != 1 || l.b.Counters().PollsFailed != 1 {
		t.Errorf("%d notifications, %d refused polls", n, l.b.Counters().PollsFailed)
	}
}

func TestASenderThatCannotBeNamedIsCountedAndSkipped(t *testing.T) {
	l := newLinked(t)
	for range 3 {
		l.do("inject P")
	}
	if err := l.a.Send(l.toB, []byte("good")); err != nil {
		t.Fatal(err)
	}
	in := transport.NewInbox(4, 256)
	if n := l.b.Poll(in); n != 1 || l.b.Backlog() != 0 || l.b.Counters().NotifsBroken == 0 {
		t.Errorf("%d notifications, backlog %d, %d broken", n, l.b.Backlog(), l.b.Counters().NotifsBroken)
	}
}

// More polls find something than there are maps, while nothing is taken out.
func TestABacklogOfManyPollsKeepsOrderAndCount(t *testing.T) {
	l := newLinked(t)
	full := transport.NewInbox(1, 64)
	full.Put(nil, []byte("taken"))
	const total = 50
	for i := range total {
		if err := l.a.Send(l.toB, []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
		if n := l.b.Poll(full); n != 0 || l.b.Backlog() != i+1 {
			t.Fatalf("after %d: poll gave %d, backlog %d", i+1, n, l.b.Backlog())
		}
	}
	if l.b.Counters().MapsMerged == 0 {
		t.Error("the maps were never all in use, so the test shows nothing")
	}
	small := transport.NewInbox(3, 64)
	for got := 0; got < total; {
		small.Reset()
		if l.b.Poll(small) == 0 {
			t.Fatalf("nothing came after %d", got)
		}
		for {
			_, body, ok := small.Next()
			if !ok {
				break
			}
			if body[0] != byte(got) {
				t.Fatalf("notification %d in place of %d", body[0], got)
			}
			got++
		}
	}
}

func TestAClosedAgentsHandleReachesNoLaterAgent(t *testing.T) {
	s := newScript(t)
	var old []*Agent
	for i := range 200 {
		a, err := Open(Config{Agent: "same", Path: s.path})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range old {
			if _, err := o.Metadata(); !errors.Is(err, transport.ErrClosed) {
				t.Fatalf("agent %d answers through a closed handle: %v", i, err)
			}
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		old = append(old, a)
	}
}

func TestAStepMakesNoMallocOfOurs(t *testing.T) {
	l := newLinked(t)
	spec := l.spec(64)
	in := transport.NewInbox(64, 4096)
	before := Mallocs()
	for range 1000 {
		if err := l.a.Send(l.toB, []byte("HB:a,b")); err != nil {
			t.Fatal(err)
		}
		in.Reset()
		l.b.Poll(in)
		x, err := l.a.PostRead(spec)
		if err != nil {
			t.Fatal(err)
		}
		if status(l.a, x, 0) != transport.Done || l.a.Release(x) != nil {
			t.Fatal("read")
		}
	}
	if n := Mallocs() - before; n != 0 {
		t.Errorf("%d mallocs in 1,000 steps, want 0", n)
	}
}

func TestOneAgentOfAProcessLoadsAtATime(t *testing.T) {
	l := newLinked(t)
	blob, err := l.b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	if err := l.a.Drop(l.toB); err != nil {
		t.Fatal(err)
	}
	loads := l.do("count load_remote_md")
	loading.Lock()
	_, err = l.a.Load(blob)
	loading.Unlock()
	if err != transport.ErrFull || l.do("count load_remote_md") != loads {
		t.Errorf("while another agent loads: %v, and NIXL was asked %d times, want ErrFull and none", err, l.do("count load_remote_md")-loads)
	}
	if l.toB, err = l.a.Load(blob); err != nil {
		t.Error(err)
	}
}
