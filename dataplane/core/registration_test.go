package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// laggard is a transport that registers only when it is let, with a lock around all of its calls, as NIXL has it.
type laggard struct {
	transport.Transport
	mu      sync.Mutex
	let     chan struct{} // a registration takes one; closed: none is needed
	at      chan int      // the ranges of each registration as it begins
	pieces  []int
	removed int
}

func (s *laggard) Register(regions []transport.Region) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pieces = append(s.pieces, len(regions))
	s.at <- len(regions)
	<-s.let
	return s.Transport.Register(regions)
}

func (s *laggard) Unregister(regions []transport.Region) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed += len(regions)
	return s.Transport.Unregister(regions)
}

func (s *laggard) Poll(in *transport.Inbox) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Transport.Poll(in)
}

func (s *laggard) Load(blob []byte) (transport.Peer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Transport.Load(blob)
}

func (s *laggard) Send(p transport.Peer, msg []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Transport.Send(p, msg)
}

func (s *laggard) Twin(agent string) (transport.Twin, error) {
	return s.Transport.(transport.Twins).Twin(agent)
}

// newSlow is a lab whose D registers anew, on another thread; result has what came of it. Each range is a piece.
func newSlow(t *testing.T, prepare func(l *lab)) (l *lab, result chan error) {
	t.Helper()
	l = newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.d.said(t, log.Registering)
	l.d.book.Lines = nil
	l.wrap = func(_ string, inner transport.Transport) transport.Transport {
		return &laggard{Transport: inner, let: make(chan struct{}, 16), at: make(chan int, 16)}
	}
	l.d.core.pace = registrationPace{pieceBytes: 1, every: time.Hour, slow: time.Hour}
	if prepare != nil {
		prepare(l)
	}
	result = make(chan error, 1)
	go func() { result <- l.d.core.Register(l.d.regions) }()
	return l, result
}

func TestStepsGoOnWhileMemoryIsRegistered(t *testing.T) {
	atDevices, letDevices := make(chan struct{}), make(chan struct{})
	dev := &device{current: map[int]bool{}}
	l, result := newSlow(t, func(l *lab) {
		for i := range l.d.regions {
			l.d.regions[i].Mem = transport.VRAM
		}
		l.d.core.UseDevices(func() (Devices, error) {
			close(atDevices)
			<-letDevices // as a driver that begins
			return dev.open()
		})
	})
	steps := func(n int) {
		t.Helper()
		for range n {
			l.step(10 * time.Millisecond) // a step that waits is a test that does not end
		}
	}
	<-atDevices
	steps(3)
	close(letDevices)
	tr := waitForSlow(l)
	for range 2 { // the cache, whose regions dev joins, then the board
		<-tr.at
		steps(3)
		tr.let <- struct{}{}
	}
	<-tr.at
	_, remote := l.grant("r0", 5, blocks(20, 2))
	l.track(remote, "d-r0", 5) // of an engine that cannot be loaded meanwhile
	steps(30)
	close(tr.let)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	l.peer = l.connect(l.d, l.p)
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote = l.grant("r1", 7, there)
	track := l.track(remote, "d-r1", 7)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	if done := l.d.take(record.EvReadDone); len(done) != 1 || l.d.wrong(7, here) != 0 {
		t.Errorf("read afterwards: %+v, left %+v", done, l.d.evs)
	}
}

func TestWhileMemoryIsRegisteredNothingElseIsDoneWithIt(t *testing.T) {
	l, result := newSlow(t, nil)
	tr := waitForSlow(l)
	<-tr.at
	if err := l.d.core.Unregister(); !errors.Is(err, ErrBusy) {
		t.Errorf("Unregister: %v, want ErrBusy", err)
	}
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrBusy) {
		t.Errorf("a second Register: %v, want ErrBusy", err)
	}
	if _, err := l.d.core.OwnHandshake(0); err == nil {
		t.Error("there is a handshake map")
	}
	close(tr.let)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if want := []int{1, 1, 1, 1}; !slices.Equal(tr.pieces, want) {
		t.Errorf("registered in pieces of %v ranges, want %v", tr.pieces, want)
	}
}

// waitForSlow is the transport of the registration under way.
func waitForSlow(l *lab) *laggard {
	for { // ends with the test's time
		l.d.core.mu.Lock()
		tr, ok := l.d.core.tr.(*laggard)
		l.d.core.mu.Unlock()
		if ok {
			return tr
		}
		time.Sleep(time.Millisecond)
	}
}

func TestCloseCutsARegistrationOff(t *testing.T) {
	l, result := newSlow(t, nil)
	tr := waitForSlow(l)
	<-tr.at
	tr.let <- struct{}{}
	<-tr.at // one range is registered, the second is under way
	if err := l.d.core.Close(0); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "kvl_register") {
		t.Fatalf("Close: %v, want ErrBusy", err)
	}
	tr.let <- struct{}{}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Register: %v, want ErrClosed", err)
	}
	if len(tr.pieces) != 2 || tr.removed != 2 {
		t.Errorf("%d pieces were registered and %d ranges removed, want 2 and 2", len(tr.pieces), tr.removed)
	}
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrClosed) {
		t.Errorf("Register after it: %v, want ErrClosed", err)
	}
	if err := l.d.core.Close(time.Second); err != nil {
		t.Errorf("Close again: %v", err)
	}
}

func TestACloseEndsAReadBackThatDoesNotEnd(t *testing.T) {
	held := make(chan *loopback.Agent, 1)
	l, _ := newScripted(t, `{}`, func(tw *transport.Twin) error {
		a := tw.Transport.(*loopback.Agent)
		a.HoldReads(true)
		held <- a
		return nil
	})
	result := make(chan error, 1)
	go func() { result <- l.d.core.Register(l.d.regions) }()
	twin := <-held
	if err := l.d.core.Close(10 * time.Second); !errors.Is(err, ErrBusy) {
		t.Errorf("Close: %v, want ErrBusy", err)
	}
	if err := <-result; !errors.Is(err, ErrClosed) {
		t.Errorf("Register: %v, want ErrClosed", err)
	}
	if len(strays.list) != 1 {
		t.Errorf("%d twins are kept for their reads, want 1", len(strays.list))
	}
	twin.HoldReads(false)
	if err := l.d.core.Close(time.Second); err != nil || len(strays.list) != 0 {
		t.Errorf("Close again: %v, %d twins are left", err, len(strays.list))
	}
}

func TestAContextThatIsBrokenMeanwhileKeepsNothingRegistered(t *testing.T) {
	l, result := newSlow(t, nil)
	tr := waitForSlow(l)
	<-tr.at
	atomic.StoreUint32(&l.d.core.mem.Control.Poisoned, 1)
	close(tr.let)
	if err := <-result; !errors.Is(err, ErrPoisoned) || tr.removed != 4 {
		t.Errorf("Register: %v, %d ranges removed", err, tr.removed)
	}
}

func TestHowFarARegistrationIsCanBeSeen(t *testing.T) {
	l, result := newSlow(t, func(l *lab) { l.d.core.pace.every = time.Millisecond })
	tr := waitForSlow(l)
	<-tr.at
	tr.let <- struct{}{}
	<-tr.at
	layer := l.d.regions[0].Bytes
	all := 2*layer + uint64(len(l.d.core.mem.Board)+len(l.d.core.mem.Landing))
	seen := func() (of uint64) {
		for _, line := range l.d.said(t, log.Registering) {
			if line.Values["done_bytes"] == layer {
				of = line.Values["bytes"]
			}
		}
		return of
	}
	for seen() == 0 { // ends with the test's time
		time.Sleep(time.Millisecond)
	}
	if seen() != all {
		t.Errorf("%d of %d bytes, want of %d", layer, seen(), all)
	}
	l.stepOne(l.d)
	stat := func(name string) any { return l.d.core.counters()[name] }
	if stat("registered_bytes") != layer || stat("registering_bytes") != all || stat("regions_proven") != 0 {
		t.Errorf("statistics: %v of %v, %v proven", stat("registered_bytes"), stat("registering_bytes"), stat("regions_proven"))
	}
	if len(l.d.said(t, log.RegisteringSlow)) != 0 {
		t.Error("it is called slow")
	}
	close(tr.let)
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if stat("registered_bytes") != all || stat("registering_bytes") != uint64(0) || stat("regions_proven") != 2 || stat("regions_unproven") != 0 {
		t.Errorf("statistics: %v of %v, %v proven, %v not", stat("registered_bytes"), stat("registering_bytes"), stat("regions_proven"), stat("regions_unproven"))
	}
	if err := l.d.core.Unregister(); err != nil || stat("registered_bytes") != uint64(0) || stat("regions_proven") != 0 {
		t.Errorf("asleep: %v, %v bytes, %v proven", err, stat("registered_bytes"), stat("regions_proven"))
	}
}

func TestASlowRegistrationIsToldWithARemedy(t *testing.T) {
	for _, at := range []string{"the transport", "the driver"} {
		t.Run(at, func(t *testing.T) {
			let, dev := make(chan struct{}), &device{current: map[int]bool{}}
			l, result := newSlow(t, func(l *lab) {
				l.d.core.pace.every, l.d.core.pace.slow = time.Millisecond, 0
				if at == "the driver" {
					l.d.regions = mixed(l.d.regions)
					l.d.core.UseDevices(func() (Devices, error) {
						<-let
						return dev.open()
					})
				}
			})
			for len(l.d.said(t, log.Registering)) < 4 { // ends with the test's time; the first of them says that it is slow
				time.Sleep(time.Millisecond)
			}
			close(let)
			close(waitForSlow(l).let)
			if err := <-result; err != nil {
				t.Fatal(err)
			}
			if lines := l.d.said(t, log.RegisteringSlow); len(lines) != 1 || !strings.Contains(lines[0].Remedy, "huge pages") || !strings.Contains(lines[0].Remedy, "NVRM") {
				t.Errorf("said %+v", lines)
			}
		})
	}
}

// choosy is a transport that would run into a limit with the second of two pieces.
type choosy struct {
	transport.Transport
	asked, registered int
}

func (c *choosy) Admits(regions []transport.Region) error {
	c.asked = len(regions)
	return fmt.Errorf("%w: 96 MiB of 64", transport.ErrUnavailable)
}

func (c *choosy) Register(regions []transport.Region) error {
	c.registered++
	return c.Transport.Register(regions)
}

func TestWhatTheWholeOfAMemoryRunsIntoIsFoundBeforeItsFirstPiece(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	var tr *choosy
	l.wrap = func(_ string, inner transport.Transport) transport.Transport {
		tr = &choosy{Transport: inner}
		return tr
	}
	l.d.core.pace = registrationPace{pieceBytes: 1, every: time.Hour, slow: time.Hour}
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) || !strings.Contains(err.Error(), "96 MiB of 64") {
		t.Errorf("Register: %v", err)
	}
	if tr.asked != 4 || tr.registered != 0 {
		t.Errorf("asked about %d ranges, %d pieces registered", tr.asked, tr.registered)
	}
}

func TestNothingOfARegistrationStaysBehindIfAPieceIsRefused(t *testing.T) {
	l := newLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.d.core.pace = registrationPace{pieceBytes: 1, every: time.Hour, slow: time.Hour}
	var inner *loopback.Agent
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		inner = tr.(*loopback.Agent)
		return &refusesThird{Transport: tr}
	}
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) {
		t.Errorf("Register: %v", err)
	}
	for i, r := range l.d.regions {
		if err := inner.Unregister([]transport.Region{{Addr: r.Addr, Bytes: r.Bytes}}); err == nil {
			t.Errorf("region %d was registered still", i)
		}
	}
	if err := l.d.core.Register(l.d.regions); err != nil {
		t.Errorf("again: %v", err)
	}
}

// refusesThird is a transport that refuses its third registration.
type refusesThird struct {
	transport.Transport
	n int
}

func (f *refusesThird) Register(regions []transport.Region) error {
	if f.n++; f.n == 3 {
		return fmt.Errorf("%w: no room", transport.ErrFull)
	}
	return f.Transport.Register(regions)
}
