package cnixl

import (
	"errors"
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

func TestMemoryThatARefusedRegistrationLeavesBehindIsKnownUntilItsEnd(t *testing.T) {
	s := newScript(t)
	a := s.open(Config{Agent: "D"})
	mem := memory(2 * 4096)
	host := transport.Region{Addr: address(mem), Bytes: 4096}
	device := transport.Region{Addr: address(mem) + 4096, Bytes: 4096, Mem: transport.VRAM}
	s.do("fail register_mem 2 -2")
	s.do("fail deregister_mem 1 -2")
	if err := a.Register([]transport.Region{device, host}); !errors.Is(err, transport.ErrStuck) {
		t.Fatalf("%v, want ErrStuck", err)
	}
	if err := a.Unregister([]transport.Region{device}); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("%v: what was refused counts as registered", err)
	}
	if err := a.Unregister([]transport.Region{host}); err != nil || s.do("count deregister_mem") != 2 {
		t.Errorf("%v, NIXL was asked %d times", err, s.do("count deregister_mem"))
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
