package hardware

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/cuda"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/require"
)

// TestSleepAndWake frees the memory while it is not registered, as sleep mode does.
func TestSleepAndWake(t *testing.T) {
	g := newRig(t)
	engine := g.begin(0)
	c := g.open("P")
	const eras = 20
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

// cache is the KV cache of one side.
type cache interface {
	fill(value byte) error
	read() ([]byte, error)
	region() core.Region
}

const cacheBlocks = 64

type onDevice struct {
	ctx  *cuda.Context
	addr uint64
}

func (c *onDevice) fill(value byte) error { return c.ctx.Fill(c.addr, value, cacheBlocks*block) }
func (c *onDevice) read() ([]byte, error) {
	b := make([]byte, cacheBlocks*block)
	return b, c.ctx.CopyOut(b, c.addr)
}
func (c *onDevice) region() core.Region {
	r := region(c.addr, cacheBlocks, c.ctx.Device())
	r.Name = "kv"
	return r
}

type onHost []byte

func (c onHost) fill(value byte) error { copy(c, bytes.Repeat([]byte{value}, len(c))); return nil }
func (c onHost) read() ([]byte, error) { return bytes.Clone(c), nil }
func (c onHost) region() core.Region {
	r := region(record.Addr(c), cacheBlocks, 0)
	r.Name, r.Mem = "kv", transport.DRAM
	return r
}

// caches are P's and D's: on the first and the last GPU, or, where there is none that NIXL could read from, in host memory.
func (g *rig) caches() (p, d cache) {
	g.t.Helper()
	if !g.real {
		if lib, err := cnixl.Find(cnixl.Config{Folders: []string{"../.."}}); err != nil || lib.File == "" {
			require.Skip(g.t, "nixl", fmt.Sprintf("no NIXL below third_party (%v): run make deps", err))
		}
		g.nixl = cnixl.Config{Folders: []string{"../.."}}
		var sides [2]cache
		for i := range sides {
			m, err := unix.Mmap(-1, 0, cacheBlocks*block, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			if err != nil {
				g.t.Fatal(err)
			}
			g.t.Cleanup(func() { _ = unix.Munmap(m) })
			sides[i] = onHost(m)
		}
		return sides[0], sides[1]
	}
	first := g.begin(0)
	last := first
	if second, err := g.driver.Make(1); err == nil {
		last = second
		g.t.Cleanup(func() { _ = second.Release() })
		g.t.Log("from GPU 0 into GPU 1")
	}
	return &onDevice{first, g.alloc(first, cacheBlocks*block)}, &onDevice{last, g.alloc(last, cacheBlocks*block)}
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
	held, landed := g.caches()
	p, d := g.side("P"), g.side("D")
	if err := d.core.Register([]core.Region{landed.region()}); err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ends := map[uint16]int{}
	const rounds = 20
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
