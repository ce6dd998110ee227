package hardware

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/require"
)

// times is how often something is tried: on fakes as seldom as shows that the test is right.
func (g *rig) times(n int) int {
	if g.real {
		return n
	}
	return n / 2
}

// TestSleepAndWake frees the memory while it is not registered, as sleep mode does.
func TestSleepAndWake(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	c := g.open("P")
	eras := g.times(20)
	for era := range eras {
		addr, err := engine.Alloc(256 * block)
		if err != nil {
			t.Fatalf("era %d: %v", era, err)
		}
		if err := errors.Join(c.Register([]core.Region{region(addr, 256, 0)}), c.Step(), c.Unregister(), c.Step(), engine.Free(addr)); err != nil {
			t.Fatalf("era %d: %v\n%s", era, err, c.Broken())
		}
	}
	if !g.real && g.Do("retains 0") != 1 {
		t.Errorf("after %d eras the context is held %d times, want the engine's own", eras, g.Do("retains 0"))
	}
}

const cacheBlocks = 64

// cache is the KV cache of one side.
type cache struct {
	ctx  *cuda.Context
	addr uint64
}

func (c *cache) fill(value byte) error { return c.ctx.Fill(c.addr, value, cacheBlocks*block) }

func (c *cache) read() ([]byte, error) {
	b := make([]byte, cacheBlocks*block)
	return b, c.ctx.CopyOut(b, c.addr)
}

func (c *cache) region() core.Region {
	r := region(c.addr, cacheBlocks, c.ctx.Device())
	r.Name = "kv" // the same on both sides: regions are matched by it
	return r
}

// caches are P's and D's, on the first GPU and, if there is one, on the second.
func (g *rig) caches() (p, d *cache) {
	g.t.Helper()
	first := g.begin(0)
	last := first
	if second, err := g.driver.Make(1); err == nil {
		last = second
		g.t.Cleanup(func() { _ = second.Release() })
		g.t.Log("from GPU 0 into GPU 1")
	}
	return &cache{first, g.alloc(first, cacheBlocks*block)}, &cache{last, g.alloc(last, cacheBlocks*block)}
}

// reads is a machine on which device memory can be read: on fakes all but that goes over the NIXL of make deps.
func (g *rig) reads() {
	g.t.Helper()
	if g.real {
		return
	}
	g.nixl = cnixl.Config{Folders: []string{"../.."}}
	if lib, err := cnixl.Find(g.nixl); err != nil || lib.File == "" {
		require.Skip(g.t, "nixl", fmt.Sprintf("no NIXL below third_party (%v): run make deps", err))
	}
	g.ipc = true
	g.Do("work 5") // ms: reads that are under way are what this is about
}

// side is an engine with its cache.
type side struct {
	t      *testing.T
	core   *core.Core
	host   *host.Host
	events [64]record.Event
}

func (g *rig) side(name string) *side {
	g.t.Helper()
	c := g.open(name)
	h, err := host.New(c.Memory(), c.Wake)
	if err != nil {
		g.t.Fatal(err)
	}
	return &side{t: g.t, core: c, host: h}
}

// turn steps once and looks at what has come.
func (s *side) turn(on func(*record.Event)) {
	s.t.Helper()
	if err := s.core.Step(); err != nil {
		s.t.Fatalf("%v\n%s", err, s.core.Broken())
	}
	n := s.host.Poll(s.events[:], core.Now())
	for i := range s.events[:n] {
		on(&s.events[i])
	}
}

// flight is a read of D from P.
type flight struct {
	t            *testing.T
	p, d         *side
	held, landed *cache
	lease, track record.Handle
	end          *record.Event
	back         bool // D has its own blocks back
	freed        bool // P has heard that the lease has ended
	ends         map[uint16]int
}

func (g *rig) flight() *flight {
	g.t.Helper()
	g.reads()
	f := &flight{t: g.t, ends: map[uint16]int{}}
	f.held, f.landed = g.caches()
	f.p, f.d = g.side("P"), g.side("D")
	if err := f.d.core.Register([]core.Region{f.landed.region()}); err != nil {
		g.t.Fatal(err)
	}
	return f
}

// begin has P hold blocks with a value under a lease, and D read all of them.
func (f *flight) begin(engine uint64, value byte) {
	f.t.Helper()
	f.end, f.back, f.freed = nil, false, false
	err := errors.Join(f.held.fill(value), f.landed.fill(0))
	if err == nil {
		f.lease, err = f.p.host.Grant(host.Grant{ID: []byte("r"), Blocks: cacheBlocks, Tokens: 16 * cacheBlocks}, core.Now())
	}
	if err != nil {
		f.t.Fatal(err)
	}
	f.p.turn(ignore)
	epoch, key, _ := f.p.host.Era(f.lease)
	f.track, err = f.d.host.Track(engine, &host.Remote{ID: []byte("r"), Native: true, Epoch: epoch, Key: key, Slot: f.lease.Slot(), Generation: f.lease.Use()}, []byte("l"), 1, core.Now())
	if err == nil {
		err = f.d.host.Read(f.track, []record.Run{{N: cacheBlocks}})
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

func ignore(*record.Event) {}

// look takes D's events.
func (f *flight) look(e *record.Event) {
	switch {
	case record.Handle(e.Handle) != f.track:
	case e.Kind == record.EvReadDone, e.Kind == record.EvReadFailed:
		kept := *e
		f.end, f.back = &kept, e.Flags&record.FlagBlocksHeld == 0
	case e.Kind == record.EvBlocksBack:
		f.back = true
	}
}

// hear takes P's.
func (f *flight) hear(e *record.Event) {
	f.freed = f.freed || e.Kind == record.EvFreed && record.Handle(e.Handle) == f.lease
}

// fly steps both for a span, or to the end of the read if span is negative. What P has not taken in may hold up reads behind it.
func (f *flight) fly(span time.Duration) {
	f.t.Helper()
	for until := time.Now().Add(span); f.end == nil && (span < 0 || time.Now().Before(until)); {
		f.d.turn(f.look)
		f.p.turn(f.hear)
	}
}

// land waits for the end of the read, with something else in P's blocks since, and for D's own blocks. What D may use is what P had.
func (f *flight) land(value byte) {
	f.t.Helper()
	if err := f.held.fill(0xee); err != nil {
		f.t.Fatal(err)
	}
	await.True(f.t, "the read's end", func() bool { f.d.turn(f.look); return f.end != nil })
	got, err := f.landed.read()
	if err != nil {
		f.t.Fatal(err)
	}
	if f.end.Kind == record.EvReadDone && !bytes.Equal(got, bytes.Repeat([]byte{value}, len(got))) {
		f.t.Fatalf("D may use blocks that begin with %#x and end with %#x, P had %#x", got[0], got[len(got)-1], value)
	}
	f.ends[f.end.Kind]++
	await.True(f.t, "D has its blocks back", func() bool { f.d.turn(f.look); return f.back })
}

// fared says how reads have ended: some had to be overtaken, and those that were not had to be accepted.
func (f *flight) fared(last uint16) {
	f.t.Helper()
	f.t.Logf("%d reads were accepted, %d have failed", f.ends[record.EvReadDone], f.ends[record.EvReadFailed])
	if f.ends[record.EvReadFailed] == 0 || last != record.EvReadDone {
		f.t.Errorf("want some that have failed; the last one, which nobody disturbed, ended with event %d", last)
	}
}

// spans are how long reads fly in each round: not at all in the first, to their end in the last.
func (g *rig) spans() []time.Duration {
	seed := rand.Uint64()
	g.t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	list := make([]time.Duration, g.times(20))
	for i := range list {
		list[i] = time.Duration(rng.Int64N(int64(20 * time.Millisecond)))
	}
	list[0], list[len(list)-1] = 0, -1
	return list
}

// TestReadsInFlightWhileMemoryIsTakenAway: P unregisters under a read of D, and writes something else there at once.
func TestReadsInFlightWhileMemoryIsTakenAway(t *testing.T) {
	g := newRig(t)
	f := g.flight()
	for round, span := range g.spans() {
		if err := f.p.core.Register([]core.Region{f.held.region()}); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		engine := f.p.meet(f.d)
		f.begin(engine, byte(round+1))
		f.fly(span)
		f.p.takeBack(func() { f.d.turn(f.look) })
		f.land(byte(round + 1))
		if err := f.d.core.RemoveEngine(engine); err != nil {
			t.Fatal(err)
		}
	}
	f.fared(f.end.Kind)
}

// TestReadsInFlightWhileBlocksGoToOthers: P ends the lease under a read of D, as a cancel does whose parameters have left all the same, and
// writes something else there at once. The fence is all that tells D.
func TestReadsInFlightWhileBlocksGoToOthers(t *testing.T) {
	g := newRig(t)
	f := g.flight()
	if err := f.p.core.Register([]core.Region{f.held.region()}); err != nil {
		t.Fatal(err)
	}
	engine := f.p.meet(f.d)
	for round, span := range g.spans() {
		f.begin(engine, byte(round+1))
		f.fly(span)
		if err := f.p.host.Cancel(f.lease); err != nil && !errors.Is(err, host.ErrStale) {
			t.Fatalf("round %d: %v", round, err)
		}
		await.True(t, "the lease has ended", func() bool { f.p.turn(f.hear); return f.freed })
		f.land(byte(round + 1))
	}
	f.fared(f.end.Kind)
}

// meet has d know p as an engine that it is connected to.
func (s *side) meet(d *side) uint64 {
	s.t.Helper()
	m, err := s.core.OwnHandshake(0)
	if err != nil {
		s.t.Fatal(err)
	}
	engine, err := d.core.AddEngine(heartbeat.EngineDesc{ID: "P"})
	if err == nil {
		err = d.core.Handshake(engine, 0, m)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	up := false
	await.True(s.t, "D is connected", func() bool {
		s.turn(ignore)
		d.turn(func(e *record.Event) { up = up || e.Kind == record.EvEngineUp })
		return up
	})
	return engine
}

// takeBack unregisters, as often as it is refused for readers that are on their way.
func (s *side) takeBack(meanwhile func()) {
	s.t.Helper()
	await.True(s.t, "P has its memory back", func() bool {
		err := s.core.Unregister()
		if err != nil && !errors.Is(err, core.ErrBusy) && !errors.Is(err, core.ErrTransport) {
			s.t.Fatal(err)
		}
		meanwhile()
		return err == nil
	})
}
