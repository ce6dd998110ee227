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
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// device is one device of a test, its driver and what is held of it.
type device struct {
	opened, held, flushes int
	regions               []Region

	mu      sync.Mutex   // a registration enters beside steps
	current map[int]bool // by thread

	openErr, holdErr, enterErr, flushErr error
	fired                                func(event uint64) (bool, error)
	unordered, noNIC                     bool
	released                             func() // nil, or called when it is let go
}

func (d *device) open() (Devices, error) {
	d.opened++
	return d, d.openErr
}

func (d *device) Hold(regions []Region) (Held, error) {
	if d.holdErr != nil {
		return nil, d.holdErr
	}
	d.held++
	d.regions = slices.DeleteFunc(slices.Clone(regions), func(r Region) bool { return r.Mem != transport.VRAM })
	return d, nil
}

// Ranges joins all into one: the lab's layers touch.
func (d *device) Ranges() []transport.Region {
	r := transport.Region{Addr: d.regions[0].Addr, Mem: transport.VRAM}
	for _, part := range d.regions {
		r.Bytes += part.Bytes
	}
	return []transport.Region{r}
}

func (d *device) Notes() []string {
	return []string{"device 0: the free part of its BAR1 window is not known"}
}

func (d *device) Enter() (bool, error) {
	if d.enterErr != nil {
		return false, d.enterErr
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	was := d.current[unix.Gettid()]
	d.current[unix.Gettid()] = true
	return !was, nil
}

func (d *device) entered() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.current[unix.Gettid()]
}

func (d *device) Leave() error {
	if !d.entered() {
		return errors.New("left on another thread")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.current[unix.Gettid()] = false
	return nil
}

// Read takes the memory from where it is: what the test calls a device's is the test's.
func (d *device) Read(dst []byte, _ uint32, addr uint64) error {
	copy(dst, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), len(dst)))
	return nil
}

func (d *device) Unordered() bool { return d.unordered }
func (d *device) NoNIC() bool     { return d.noNIC }

func (d *device) Flush() error {
	d.flushes++
	return d.flushErr
}

func (d *device) Fired(event uint64) (bool, error) { return d.fired(event) }

func (d *device) Release() error {
	if d.released != nil {
		d.released()
	}
	d.held--
	return nil
}

// guarded is a transport that notes what is called without the device's context, while memory of it is registered.
type guarded struct {
	transport.Transport
	of         *device
	registered []transport.Region
	calls      map[string]int
	without    []string
	refuse     bool
}

func (w *guarded) note(call string) {
	w.calls[call]++
	if !w.of.entered() && w.of.held > 0 {
		w.without = append(w.without, call)
	}
}

func (w *guarded) Register(regions []transport.Region) error {
	w.note("Register")
	if w.refuse {
		return fmt.Errorf("%w: refused", transport.ErrInvalid)
	}
	w.registered = append([]transport.Region(nil), regions...)
	return w.Transport.Register(regions)
}

func (w *guarded) Twin(agent string) (transport.Twin, error) {
	w.note("Twin")
	return w.Transport.(transport.Twins).Twin(agent)
}

func (w *guarded) Metadata() ([]byte, error) {
	w.note("Metadata")
	return w.Transport.Metadata()
}

func (w *guarded) Load(blob []byte) (transport.Peer, error) {
	w.note("Load")
	return w.Transport.Load(blob)
}

func (w *guarded) Drop(p transport.Peer) error {
	w.note("Drop")
	return w.Transport.Drop(p)
}

func (w *guarded) Send(p transport.Peer, msg []byte) error {
	w.note("Send")
	return w.Transport.Send(p, msg)
}

func (w *guarded) Poll(in *transport.Inbox) int {
	w.note("Poll")
	return w.Transport.Poll(in)
}

func (w *guarded) PostRead(spec *transport.ReadSpec) (transport.Xfer, error) {
	w.note("PostRead")
	return w.Transport.PostRead(spec)
}

func (w *guarded) PollReads(xfers []transport.Xfer, out []transport.Status, spinNs int64) {
	w.note("PollReads")
	w.Transport.PollReads(xfers, out, spinNs)
}

func (w *guarded) Release(x transport.Xfer) error {
	w.note("Release")
	return w.Transport.Release(x)
}

func (w *guarded) Close() error {
	w.note("Close")
	return w.Transport.Close()
}

// deviceLab is a lab whose reader has its cache on a device.
type deviceLab struct {
	*lab
	dev *device
	tr  []*guarded // the reader's, era by era
}

func newDeviceLab(t *testing.T, config string) *deviceLab {
	l := &deviceLab{dev: &device{current: map[int]bool{}}}
	l.lab = &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
	l.p = l.node("P", config)
	l.mem, l.devices = transport.VRAM, l.dev.open
	l.wrap = func(_ string, tr transport.Transport) transport.Transport {
		l.tr = append(l.tr, &guarded{Transport: tr, of: l.dev, calls: map[string]int{}})
		return l.tr[len(l.tr)-1]
	}
	l.d = l.node("D", config)
	l.peer = l.connect(l.d, l.p)
	return l
}

func (l *deviceLab) readOnce(id string, request uint64) record.Event {
	l.t.Helper()
	there, here := blocks(3, 8), blocks(40, 8)
	_, remote := l.grant(id, request, there)
	track := l.track(remote, "d-"+id, request)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.lab.read(track, here, there)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	evs := l.d.take(record.EvReadDone)
	if len(evs) != 1 {
		l.t.Fatalf("%d reads have ended", len(evs))
	}
	return evs[0]
}

func TestWithoutDeviceMemoryNothingOfDevicesIsOpened(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	if l.dev.opened != 1 || l.dev.held != 1 {
		t.Fatalf("opened %d times, held %d", l.dev.opened, l.dev.held)
	}
	l.mem = transport.DRAM
	host := l.node("H", `{}`)
	if l.dev.opened != 1 || l.dev.held != 1 {
		t.Errorf("host memory opens a device")
	}
	_ = host
}

func TestEveryCallOfATransportHasTheDevicesContext(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	tr := l.tr[0]
	if got := len(tr.registered); got != 3 || tr.registered[0].Bytes != labLayers*labBlocks*labBlockLen {
		t.Errorf("registered: %+v, want the joined cache, board and landing rows", tr.registered)
	}
	l.d.wantSaid(t, log.DeviceRegistered, "", "")
	if said := l.d.book.Of(t, log.DeviceUnchecked); len(said) != 1 || !strings.Contains(said[0].What, "BAR1 window is not known") {
		t.Errorf("said: %+v", said)
	}
	if ev := l.readOnce("r1", 7); ev.Status != record.ReadOK || l.d.wrong(7, blocks(40, 8)) != 0 {
		t.Errorf("read: %+v, %d wrong words", ev, l.d.wrong(7, blocks(40, 8)))
	}
	_, remote := l.grant("r2", 8, blocks(20, 8))
	l.track(remote, "d-r2", 8)
	l.run(time.Second, 10*time.Millisecond)
	if err := l.d.core.Unregister(); err != nil { // tells owners, closes
		t.Fatal(err)
	}
	for _, call := range []string{"Register", "Twin", "Metadata", "Load", "Send", "Poll", "PostRead", "PollReads", "Release", "Close"} {
		if tr.calls[call] == 0 {
			t.Errorf("%s was not called", call)
		}
	}
	if len(tr.without) != 0 {
		t.Errorf("called without the context: %q", tr.without)
	}
	if l.dev.held != 0 {
		t.Error("held after everything was unregistered")
	}
	if err := l.d.core.Register(l.d.regions); err != nil || l.dev.held != 1 || l.dev.opened != 2 {
		t.Errorf("again: %v, held %d, opened %d times", err, l.dev.held, l.dev.opened)
	}
	if err := l.d.core.Close(time.Second); err != nil || l.dev.held != 0 || len(l.tr[1].without) != 0 {
		t.Errorf("close: %v, held %d, without the context: %q", err, l.dev.held, l.tr[1].without)
	}
	for thread, current := range l.dev.current {
		if current {
			t.Errorf("thread %d keeps the context", thread)
		}
	}
}

func TestARegistrationThatIsRefusedHoldsNothingAndCanBeTriedAgain(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	if err := l.d.core.Unregister(); err != nil {
		t.Fatal(err)
	}
	l.dev.openErr = fmt.Errorf("%w: no driver", ErrUnavailable)
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no driver") || l.dev.held != 0 {
		t.Errorf("no driver: %v, held %d", err, l.dev.held)
	}
	l.dev.openErr, l.dev.holdErr = nil, fmt.Errorf("%w: managed memory", ErrInvalid)
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "managed memory") || l.dev.held != 0 {
		t.Errorf("managed memory: %v, held %d", err, l.dev.held)
	}
	l.dev.holdErr = nil
	last := l.tr[len(l.tr)-1]
	if last.calls["Register"] != 0 {
		t.Error("the transport was asked for what was refused")
	}
	last.refuse = true
	if err := l.d.core.Register(l.d.regions); !errors.Is(err, ErrTransport) || l.dev.held != 0 {
		t.Errorf("the transport refuses: %v, held %d", err, l.dev.held)
	}
	last.refuse = false
	if err := l.d.core.Register(l.d.regions); err != nil || l.dev.held != 1 {
		t.Errorf("again: %v, held %d", err, l.dev.held)
	}
}

func TestADeviceThatCannotBeEnteredPoisonsTheContext(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	l.dev.enterErr = errors.New("cuCtxPushCurrent: CUDA_ERROR_CONTEXT_IS_DESTROYED")
	polls := l.tr[0].calls["Poll"]
	if err := l.d.core.Step(); !errors.Is(err, ErrPoisoned) || !strings.Contains(l.d.core.Broken(), "CONTEXT_IS_DESTROYED") {
		t.Fatalf("%v, broken: %.200q", err, l.d.core.Broken())
	}
	header, _ := record.Board(l.d.core.mem.Board)
	if atomic.LoadUint32(&l.d.core.mem.Control.Poisoned) != 1 || header.Flags&record.BoardClosed == 0 || l.tr[0].calls["Poll"] != polls {
		t.Error("the board is open, or the transport was called")
	}
	if err := l.d.core.Close(time.Second); err != nil || l.dev.held != 0 {
		t.Errorf("close: %v, held %d", err, l.dev.held)
	}
}

func TestWhatAReadBroughtIsFlushedBeforeItIsTold(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	if ev := l.readOnce("r1", 7); ev.Status != record.ReadOK || l.dev.flushes != 0 {
		t.Errorf("%+v, %d flushes of ordered writes", ev, l.dev.flushes)
	}
	l.dev.unordered = true
	if ev := l.readOnce("r2", 8); ev.Status != record.ReadOK || l.dev.flushes == 0 {
		t.Errorf("%+v, %d flushes", ev, l.dev.flushes)
	}
	l.dev.flushErr = errors.New("cuFlushGPUDirectRDMAWrites: CUDA_ERROR_LAUNCH_FAILED")
	there := blocks(3, 8)
	_, remote := l.grant("r3", 9, there)
	track := l.track(remote, "d-r3", 9)
	l.run(200*time.Millisecond, 10*time.Millisecond)
	l.read(track, blocks(40, 8), there)
	l.run(time.Second, 10*time.Millisecond)
	if ok := l.d.take(record.EvReadDone); len(ok) != 0 {
		t.Errorf("told as read: %+v", ok)
	}
	l.d.wantSaid(t, log.ReadFailedHere, "P", "r3")
	if n := l.d.core.tracker.Counters().Disconnects; n != 0 || l.d.core.reads.Counters.FailedHere == 0 {
		t.Errorf("%d connections broken by a device of this side, which failed %d transfers", n, l.d.core.reads.Counters.FailedHere)
	}
}

func TestStepsWithDeviceMemoryAllocateNothing(t *testing.T) {
	l := newDeviceLab(t, `{}`)
	l.dev.unordered = true
	l.readOnce("r1", 7)
	n := testing.AllocsPerRun(200, func() {
		l.advance(time.Millisecond)
		if err := l.d.core.Step(); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}
