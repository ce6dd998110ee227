package ipc

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cuda/devices"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

const (
	blocks   = 16
	blockLen = 512
)

// engines are an owner P and a reader D on one clock, with caches on the fake's first device: the whole read path of a core.
type engines struct {
	*rig
	hub  *loopback.Hub
	time atomic.Int64 // what goes on beside steps looks at it, too
	p, d *engine
	peer uint64 // P as D knows it
}

type engine struct {
	core   *core.Core
	host   *host.Host
	agent  string
	cache  uint64
	region core.Region
	events []record.Event
}

func newEngines(t *testing.T) *engines {
	t.Helper()
	e := &engines{rig: newRig(t), hub: loopback.NewHub()}
	e.time.Store(int64(time.Hour))
	t.Setenv("KVLEASE_CUDA", e.Path)
	e.p, e.d = e.open("P"), e.open("D")
	for _, n := range []*engine{e.p, e.d} {
		if err := n.core.Register([]core.Region{n.region}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := e.p.core.OwnHandshake(0)
	if err == nil {
		e.peer, err = e.d.core.AddEngine(heartbeat.EngineDesc{ID: "P"})
	}
	if err == nil {
		err = e.d.core.Handshake(e.peer, 0, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *engines) now() clock.Instant { return clock.Instant(e.time.Load()) }

func (e *engines) open(id string) *engine {
	e.TB.Helper()
	n := &engine{cache: e.alloc(blocks * blockLen)}
	n.region = core.Region{Addr: n.cache, Bytes: blocks * blockLen, BlockLen: blockLen, BlockStride: blockLen, Blocks: blocks, Group: -1, Mem: transport.VRAM}
	cfg, err := core.ParseConfig(fmt.Appendf(nil, `{"engine_id":%q,"transport":"loopback","drive":"inline","log":"host","log_level":"info","stats_page":""}`, id))
	if err != nil {
		e.TB.Fatal(err)
	}
	mem, err := core.NewMemory(cfg.Sizes())
	if err != nil {
		e.TB.Fatal(err)
	}
	inner := core.Loopback(e.hub)
	n.core, err = core.Open(cfg, mem, map[string]core.OpenTransport{"loopback": func(cfg *core.Config, agent string) (transport.Transport, error) {
		n.agent = agent
		tr, err := inner(cfg, agent)
		if err != nil {
			return nil, err
		}
		return New(tr, Config{Driver: e.driver, ReadsMax: 16, DescsMax: 64})
	}}, e.now)
	if err != nil {
		e.TB.Fatal(err)
	}
	root := e.TB.TempDir() // a machine without NICs
	devices.Machine{Sys: root, Proc: root, Dev: root}.Use(n.core)
	if n.host, err = host.New(mem, n.core.Wake); err != nil {
		e.TB.Fatal(err)
	}
	return n
}

// step moves the clock and steps both, as long as they can be: one whose device is lost is broken.
func (e *engines) step(d time.Duration) {
	e.TB.Helper()
	e.time.Add(int64(d))
	for _, n := range []*engine{e.p, e.d} {
		if err := n.core.Step(); err != nil && !errors.Is(err, core.ErrPoisoned) {
			e.TB.Fatal(err)
		}
		var buf [16]record.Event
		n.events = append(n.events, buf[:n.host.Poll(buf[:], e.now())]...)
	}
}

func (n *engine) of(kind uint16) (list []record.Event) {
	for _, ev := range n.events {
		if ev.Kind == kind {
			list = append(list, ev)
		}
	}
	return list
}

// reading has D in the middle of a copy of eight of P's blocks, which all have one value.
func (e *engines) reading(value byte) {
	e.TB.Helper()
	if err := errors.Join(e.ctx.Fill(e.p.cache, value, blocks*blockLen), e.ctx.Fill(e.d.cache, 0, blocks*blockLen)); err != nil {
		e.TB.Fatal(err)
	}
	lease, err := e.p.host.Grant(host.Grant{ID: []byte("r"), Blocks: 8}, e.now())
	if err != nil {
		e.TB.Fatal(err)
	}
	mem := e.p.core.Memory()
	track, err := e.d.host.Track(e.peer, &host.Remote{
		ID: []byte("r"), Native: true, Epoch: mem.Epoch, Key: e.p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use(),
	}, []byte("d"), 0, e.now())
	if err != nil {
		e.TB.Fatal(err)
	}
	for range 20 {
		e.step(10 * time.Millisecond)
	}
	e.Do("hold 1")
	copies := e.Do("count cuMemcpyDtoDAsync")
	if err := e.d.host.Read(track, []record.Run{{Group: 0, Local: 4, Remote: 0, N: 8}}); err != nil {
		e.TB.Fatal(err)
	}
	for range 20 {
		e.step(10 * time.Millisecond)
	}
	if e.Do("count cuMemcpyDtoDAsync") == copies || len(e.d.of(record.EvReadDone))+len(e.d.of(record.EvReadFailed)) != 0 {
		e.TB.Fatalf("D is not in the middle of a copy: %+v", e.d.events)
	}
}

// wantEnd checks how the read ended, that no block is held any more, and that all is given back when both close.
func (e *engines) wantEnd(statuses ...int32) {
	e.TB.Helper()
	failed := e.d.of(record.EvReadFailed)
	if done := e.d.of(record.EvReadDone); len(done) != 0 || len(failed) != 1 {
		e.TB.Fatalf("done %+v, failed %+v, want one that has failed", done, failed)
	}
	if !slices.Contains(statuses, failed[0].Status) {
		e.TB.Errorf("the read ended with %d, want one of %v", failed[0].Status, statuses)
	}
	if back := e.d.of(record.EvBlocksBack); len(back) != int(failed[0].Flags&record.FlagBlocksHeld) {
		e.TB.Errorf("%+v, and its blocks came back %d times", failed[0], len(back))
	}
	var stats struct {
		Held uint64 `json:"reads_blocks_held"`
		Open uint64 `json:"reads_open"`
	}
	if err := json.Unmarshal(e.d.core.Stats(), &stats); err != nil || stats.Held+stats.Open != 0 {
		e.TB.Errorf("%v: %+v are left", err, stats)
	}
	e.wantClosed()
}

// wantClosed checks that both close and that nobody but the engine holds the device's context then.
func (e *engines) wantClosed() {
	e.TB.Helper()
	if err := errors.Join(e.d.core.Close(time.Second), e.p.core.Close(time.Second)); err != nil {
		e.TB.Error(err)
	}
	if n := e.Do("retains 0"); n != 1 {
		e.TB.Errorf("the device's context is held %d times", n)
	}
}

func TestACoreReadsDeviceMemoryOverIPCAndSaysThatItCouldNotProveIt(t *testing.T) {
	e := newEngines(t)
	book := logtest.New()
	text, _ := e.d.core.Log(1 << 20)
	book.Take(t, text)
	if said := book.Of(t, log.MemoryUnproven); len(said) != 1 || !strings.Contains(said[0].What, "loopback+ipc has no second agent") || len(book.Of(t, log.MemoryProven)) != 0 {
		t.Errorf("said %+v", said)
	}
	var stats struct {
		Proven   int `json:"regions_proven"`
		Unproven int `json:"regions_unproven"`
	}
	if err := json.Unmarshal(e.d.core.Stats(), &stats); err != nil || stats.Proven != 0 || stats.Unproven != 1 {
		t.Errorf("%v: %+v", err, stats)
	}
	e.reading(7)
	e.Do("hold 0")
	for range 20 {
		e.step(10 * time.Millisecond)
	}
	if done := e.d.of(record.EvReadDone); len(done) != 1 || e.Do("byte %#x", e.d.cache+4*blockLen) != 7 || e.Do("byte %#x", e.d.cache+12*blockLen) != 0 {
		t.Errorf("%+v", e.d.events)
	}
	e.wantClosed()
}

func TestAnOwnerThatDiesInTheMiddleOfACopyIsNotBelieved(t *testing.T) {
	e := newEngines(t)
	e.reading(7)
	e.hub.Kill(e.p.agent)
	e.Do("hold 0") // every byte comes: the copy needs nothing of the owner
	for range 600 {
		e.step(100 * time.Millisecond)
	}
	e.wantEnd(record.ReadFailed, record.ReadUnproven, record.ReadLost)
}

func TestAnOwnerThatStandsStillInTheMiddleOfACopyIsNotBelieved(t *testing.T) {
	e := newEngines(t)
	e.reading(7)
	e.hub.Stop(e.p.agent)
	e.Do("hold 0")
	for range 6000 {
		e.step(100 * time.Millisecond)
	}
	if failed := e.d.of(record.EvReadFailed); len(failed) != 1 {
		t.Fatalf("%+v", e.d.events)
	}
	e.hub.Resume(e.p.agent)
	for range 600 {
		e.step(100 * time.Millisecond)
	}
	e.wantEnd(record.ReadTimeout, record.ReadUnproven)
}

func TestADeviceThatStandsStillHoldsTheBlocksUntilItsCopyHasEnded(t *testing.T) {
	e := newEngines(t)
	e.reading(7)
	for range 6000 {
		e.step(100 * time.Millisecond)
	}
	if failed := e.d.of(record.EvReadFailed); len(failed) != 1 || failed[0].Flags&record.FlagBlocksHeld == 0 || len(e.d.of(record.EvBlocksBack)) != 0 {
		t.Fatalf("a copy that can still land: %+v", e.d.events)
	}
	if err := e.d.core.Close(0); !errors.Is(err, core.ErrBusy) {
		t.Errorf("close under it: %v", err)
	}
	e.Do("hold 0")
	for range 600 {
		e.step(100 * time.Millisecond)
	}
	e.wantEnd(record.ReadTimeout)
}

// TestMemoryThatIsUnregisteredAndFreedInTheMiddleOfACopyIsNotBelieved: an owner cannot see that a copy of a peer runs, so the bytes are another's.
func TestMemoryThatIsUnregisteredAndFreedInTheMiddleOfACopyIsNotBelieved(t *testing.T) {
	e := newEngines(t)
	e.reading(7)
	if err := errors.Join(e.p.core.Unregister(), e.ctx.Free(e.p.cache)); err != nil {
		t.Fatal(err)
	}
	other := e.alloc(blocks * blockLen)
	if err := e.ctx.Fill(other, 9, blocks*blockLen); err != nil {
		t.Fatal(err)
	}
	e.Do("hold 0")
	for range 600 {
		e.step(100 * time.Millisecond)
	}
	if other == e.p.cache && e.Do("byte %#x", e.d.cache+4*blockLen) != 9 {
		t.Errorf("the copy brought %d: this shows nothing", e.Do("byte %#x", e.d.cache+4*blockLen))
	}
	e.wantEnd(record.ReadFailed, record.ReadStale, record.ReadUnproven, record.ReadLost)
}

// TestADeviceThatIsLostInTheMiddleOfACopyGivesAllBack: what an error of a transfer may still write has its time first.
func TestADeviceThatIsLostInTheMiddleOfACopyGivesAllBack(t *testing.T) {
	e := newEngines(t)
	e.reading(7)
	e.Do("lost 0 719")
	e.step(10 * time.Millisecond)
	if failed := e.d.of(record.EvReadFailed); len(failed) != 1 || failed[0].Flags&record.FlagBlocksHeld == 0 || len(e.d.of(record.EvBlocksBack)) != 0 {
		t.Fatalf("a part of it may still land: %+v", e.d.events)
	}
	for range 600 {
		e.step(100 * time.Millisecond)
	}
	if freed := e.p.of(record.EvFreed); len(freed) != 1 {
		t.Errorf("P has ended %+v", freed)
	}
	e.wantEnd(record.ReadFailed)
	e.Do("lost 0 0")
}
