package capacity

import (
	"fmt"
	"math/bits"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/sim/simnet"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/ringbuf"
)

// engine is one context of role engine, put together as package core does it, on a clock of the simulation.
type engine struct {
	w     *world
	index int32 // of all engines, the owners first
	id    string
	epoch uint64 // of this boot, which counts the boots
	phase int64  // its passes begin at phase + n x pass

	alive       bool
	crashes     uint64        // so far
	stalls      uint64        // so far
	stalledTill clock.Instant // it stands still
	last        clock.Instant // its last step

	mem    *record.Memory
	host   *host.Host
	plane  *dataplane.Plane
	agent  *simnet.Agent
	served *wire.Handshake // its map, as a reader has parsed it

	seen marks // of its counters, by which its steps are told apart
	poll func(*record.Event)
}

// cacheBase is where the caches lie: nobody looks there.
const cacheBase = 1 << 40

// shape is what the two kinds of engines differ in.
type shape struct {
	slots, tracks, reads, engines int
	notifs, parse                 int
	blocks                        uint32
}

func (w *world) owner() shape {
	return shape{
		slots: min(w.cfg.CacheBlocks, slotsMax), tracks: 1, reads: 1, engines: 1, notifs: 1024, parse: 64 << 10,
		blocks: uint32(w.cfg.CacheBlocks),
	}
}

func (w *world) reader() shape {
	return shape{
		slots: 1, tracks: w.cfg.QueueMax, reads: 2 * w.cfg.Slots, engines: w.cfg.P, notifs: 16, parse: 4 << 10,
		blocks: uint32(w.cfg.CacheBlocks),
	}
}

func words(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n]
}

func ring(capacity int) ([]byte, error) {
	if capacity = max(capacity, ringbuf.CapacityMin); capacity&(capacity-1) != 0 {
		capacity = 1 << bits.Len(uint(capacity))
	}
	mem := words(ringbuf.Bytes(uint32(capacity)))
	return mem, ringbuf.Format(mem, uint32(capacity))
}

// Sizes of rings: a submission and an event with their heads.
const (
	recordBytes = 256
	eventBytes  = 8 + record.EventLen
)

func newMemory(s shape, epoch uint64, secret [2]uint64) (*record.Memory, error) {
	m := &record.Memory{
		Control: record.AsControl(words(record.CtlLen)), Slots: record.Slots(words(s.slots * record.SlotLen)),
		Tracks: record.Tracks(words(s.tracks * record.TrkLen)), Board: words(record.BoardHeadLen + s.slots*record.RowLen),
		Secret: secret, Epoch: epoch, Base: mix(secret[0]) >> 2,
	}
	m.Control.Magic, m.Control.Version = record.ControlMagic, record.LayoutVersion
	m.Control.LeaseFree, m.Control.TrackFree, m.Control.WakeFd, m.Control.EventFd = record.None, record.None, -1, -1
	m.Control.BeginEra(epoch, secret)
	var err error
	if m.Events, err = ring(eventBytes * min(s.slots+2*s.tracks, 1<<14)); err != nil {
		return nil, err
	}
	submissions, err := ring(recordBytes * min(s.slots+s.tracks, 256))
	if err != nil {
		return nil, err
	}
	over, err := ring(32*s.tracks + 2*ringbuf.RecordBytesMax) // an untrack of each
	if err != nil {
		return nil, err
	}
	m.Rings, m.Overflows = [][]byte{submissions}, [][]byte{over}
	return m, nil
}

// boot makes a life of an engine: everything anew but its name.
func (e *engine) boot(s shape) error {
	w := e.w
	e.epoch++
	id := uint64(e.index)<<20 | e.epoch // boots of different engines differ, too
	secret := [2]uint64{draw(w.cfg.Seed, drawSecret, id, 0), draw(w.cfg.Seed, drawSecret, id, 1)}
	mem, err := newMemory(s, id, secret)
	if err != nil {
		return err
	}
	rows := max(256, 2*s.tracks)
	own := w.set.terms()
	rc := read.Config{
		ReadsMax: s.reads, SourcesMax: 1, PartsMax: 1, RunsMax: 64 * s.reads, PeersMax: s.engines + heartbeat.ParkedMax, RowsMax: rows,
		ReadTimeout: 4 * own, QuarantineErrorWait: max(own, 30*time.Second),
	}
	mem.Landing = words(read.LandingBytes(rc))
	name := fmt.Sprintf("%s.%x", e.id, id)
	agent, err := w.net.Agent(name, simnet.AgentConfig{ReadsMax: 2*s.reads + rows, Rate: w.cfg.LinkRate, Sized: true})
	if err != nil {
		return err
	}
	layout := &read.Layout{Regions: []read.Region{{
		Addr: cacheBase, BlockLen: uint64(w.cfg.BlockBytes), BlockStride: uint64(w.cfg.BlockBytes), Blocks: s.blocks,
		Group: -1, Mem: transport.VRAM, Parts: 1, Name: "cache",
	}}}
	if err := agent.Register([]transport.Region{
		{Addr: cacheBase, Bytes: uint64(s.blocks) * uint64(w.cfg.BlockBytes), Mem: transport.VRAM},
		{Addr: record.Addr(mem.Board), Bytes: uint64(len(mem.Board))},
		{Addr: record.Addr(mem.Landing), Bytes: uint64(len(mem.Landing))},
	}); err != nil {
		return err
	}
	header, boardRows := record.Board(mem.Board)
	mem.Control.DurationNs = uint64(own)
	leases, err := lease.New(lease.Config{Duration: own, StockLinger: own * 2 / 3, Jitter: w.cfg.Jitter, StockPeers: true, Seed: id},
		lease.Memory{Control: mem.Control, Slots: mem.Slots, Header: header, Rows: boardRows[:s.slots]}, secret, mem.Base, id)
	if err != nil {
		return err
	}
	reads, err := read.New(rc, agent, mem.Landing, layout)
	if err != nil {
		return err
	}
	out, err := dataplane.NewEvents(mem.Events, nil)
	if err != nil {
		return err
	}
	tracker, err := heartbeat.New(heartbeat.Config{
		Self: heartbeat.Identity{EngineHash: wire.EngineHash([]byte(e.id)), Epoch: id}, Duration: own,
		Tracks: s.tracks, Engines: s.engines, Links: s.engines + 1, SourcesMax: 1, Owed: max(s.tracks/4, 64), RunsMax: 64 * s.tracks,
		RowStates: 1, LongIDs: 1, ReadTimeout: 4 * own, Seed: id,
	}, agent, reads, mem.Tracks, mem.Control, out)
	if err != nil {
		return err
	}
	if err := tracker.SetLocal(layout); err != nil {
		return err
	}
	plane, err := dataplane.New(dataplane.Config{RecordsStepMax: 1 << 16, NotifsStepMax: s.notifs, ParseMax: s.parse, StockPeers: true},
		mem, agent, leases, tracker, reads, out)
	if err != nil {
		return err
	}
	if e.host, err = host.New(mem, nil); err != nil {
		return err
	}
	e.mem, e.plane, e.agent, e.alive, e.seen = mem, plane, agent, true, marks{}
	e.stalledTill, e.last = 0, w.now
	agent.OnArrival(func() { w.wake(e) })
	e.served, err = e.describe(id)
	return err
}

// describe makes the engine's handshake map and parses it, as a reader does.
func (e *engine) describe(epoch uint64) (*wire.Handshake, error) {
	blob, err := e.agent.Metadata()
	if err != nil {
		return nil, err
	}
	c := &e.w.cfg
	bytes := uint64(c.BlockBytes)
	text := wire.AppendHandshake(nil, &wire.Handshake{
		EngineID: e.id, AgentMetadata: blob, Layout: "HND", BlockSize: uint64(c.BlockTokens), AttnBackend: "FLASH_ATTN",
		PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1, NumBlocks: uint64(c.CacheBlocks), Native: true,
		BaseAddrs: []uint64{cacheBase}, BlockLens: []uint64{bytes}, BlockStrides: []uint64{bytes},
		RegionNumBlocks: []uint64{uint64(c.CacheBlocks)}, RegionGroupIDs: []int64{-1}, RegionNames: []string{"cache"},
		RegionMemTypes: []transport.Mem{transport.VRAM},
		Lease: wire.HandshakeLease{
			Version: wire.LeaseVersion, Epoch: epoch, Base: e.mem.Base, Board: record.Addr(e.mem.Board), Slots: uint32(len(e.mem.Slots)),
			Duration: e.w.set.terms(), Agent: e.agent.Agent(), TP: 1, PP: 1,
		},
	})
	h := new(wire.Handshake)
	return h, wire.ParseHandshake(text, h)
}

// terms is the lease duration that engines are opened with: of a fixed time to live the one that is the default.
func (s Setting) terms() time.Duration {
	if s.Fixed {
		return 30 * time.Second
	}
	return s.Term
}

// align gives the first pass that begins at t or later, and after the last step.
func (e *engine) align(t clock.Instant) clock.Instant {
	pass := int64(e.w.cfg.Pass)
	n := (int64(t) - e.phase + pass - 1) / pass
	at := e.phase + n*pass
	if at <= int64(e.last) {
		at += ((int64(e.last)-at)/pass + 1) * pass
	}
	return clock.Instant(at)
}

// due is when the engine steps next: the first pass in which something can happen that no arrival brings.
func (e *engine) due() clock.Instant {
	p, now := e.plane, e.last
	if p.Pending() || p.Leases.Ending() > 0 {
		return now
	}
	if g := p.Reads.Gauges(); g.Pending == g.Held && p.Reads.NeedsStep() { // something to be posted, and no end will wake us
		return now
	}
	due := min(p.Tracker.NextDue(now), p.Leases.NextDue(now))
	if p.Leases.Held() > 0 { // a table that is not looked at for an interval takes it for a stall
		due = min(due, now.Add(e.w.set.terms()/12))
	}
	return due
}
