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
	if !g.real && g.do("retains 0") != 1 {
		t.Errorf("after %d eras the context is held %d times, want the engine's own", eras, g.do("retains 0"))
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
	g.do("work 5") // ms: reads that are under way are what this is about
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

// TestReadsInFlightWhileMemoryIsTakenAway: P takes its memory back under a read of D and writes something else there at once. What D may
// use is what P had; all else has failed.
func TestReadsInFlightWhileMemoryIsTakenAway(t *testing.T) {
	g := newRig(t)
	g.reads()
	held, landed := g.caches()
	p, d := g.side("P"), g.side("D")
	if err := d.core.Register([]core.Region{landed.region()}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ends := map[uint16]int{}
	rounds := g.times(20)
	for round := range rounds {
		value := byte(round + 1)
		if err := errors.Join(held.fill(value), landed.fill(0), p.core.Register([]core.Region{held.region()})); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		engine := p.meet(d)
		lease, err := p.host.Grant(host.Grant{ID: []byte("r"), Blocks: cacheBlocks, Tokens: 16 * cacheBlocks}, core.Now())
		if err != nil {
			t.Fatal(err)
		}
		p.turn(func(*record.Event) {})
		epoch, key, _ := p.host.Era(lease)
		track, err := d.host.Track(engine, &host.Remote{ID: []byte("r"), Native: true, Epoch: epoch, Key: key, Slot: lease.Slot(), Generation: lease.Use()}, []byte("l"), 1, core.Now())
		if err == nil {
			err = d.host.Read(track, []record.Run{{N: cacheBlocks}})
		}
		if err != nil {
			t.Fatal(err)
		}
		var end *record.Event
		back := false // D's own blocks
		look := func(e *record.Event) {
			switch {
			case record.Handle(e.Handle) != track:
			case e.Kind == record.EvReadDone, e.Kind == record.EvReadFailed:
				kept := *e
				end, back = &kept, e.Flags&record.FlagBlocksHeld == 0
			case e.Kind == record.EvBlocksBack:
				back = true
			}
		}
		until := time.Now().Add(time.Duration(rng.Int64N(int64(20 * time.Millisecond)))) // the last one to its end
		for end == nil && round > 0 && (round == rounds-1 || time.Now().Before(until)) { // nothing of the first is posted
			d.turn(look)
			p.turn(func(*record.Event) {}) // what it has not taken in may hold up reads behind it
		}
		p.takeBack(func() { d.turn(look) })
		if err := held.fill(0xee); err != nil {
			t.Fatal(err)
		}
		await.True(t, "the read's end", func() bool { d.turn(look); return end != nil })
		got, err := landed.read()
		if err != nil {
			t.Fatal(err)
		}
		if end.Kind == record.EvReadDone && !bytes.Equal(got, bytes.Repeat([]byte{value}, len(got))) {
			t.Fatalf("round %d: D may use blocks that begin with %#x, P had %#x", round, got[0], value)
		}
		if round == rounds-1 && end.Kind != record.EvReadDone {
			t.Errorf("the last read, of memory that stayed until it had ended, has failed with status %d", end.Status)
		}
		ends[end.Kind]++
		await.True(t, "D has its blocks back", func() bool { d.turn(look); return back })
		if err := d.core.RemoveEngine(engine); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d reads were accepted, %d have failed", ends[record.EvReadDone], ends[record.EvReadFailed])
	if ends[record.EvReadFailed] == 0 || ends[record.EvReadDone] == 0 {
		t.Error("want some of both")
	}
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
		s.turn(func(*record.Event) {})
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
