package group_test

import (
	"encoding/binary"
	"fmt"
	"sort"
	"testing"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/ringbuf"
)

const (
	slots    = 256
	tracks   = 128
	blockLen = 256
	blocksN  = 64
	duration = 30 * time.Second
	runsMax  = 1 << 13 // of a context: hundreds of contexts are made here
)

// lab is engines in one process on one virtual clock, each a host with its ranks, over loopback.
type lab struct {
	t       testing.TB
	now     clock.Instant
	hub     *loopback.Hub
	engines []*engine
	epoch   uint64
}

// engine is a host context and its rank contexts.
type engine struct {
	lab   *lab
	id    string
	shape topology.Shape
	kind  string
	mem   *record.Memory
	group *group.Group
	host  *host.Host
	hosts *stream.Host
	ranks []*rank
	evs   []record.Event
	era   record.Era
	cfg   group.Config
	buf   []byte // of carry
}

// rank is one rank context.
type rank struct {
	n       uint32
	mem     *record.Memory
	carrier stream.Carrier
	link    *dataplane.Link
	plane   *dataplane.Plane
	agent   *loopback.Agent
	own     *ringbuf.Consumer
	kv      []byte
	base    uint64
	stopped bool
	broken  bool                                              // its core, for good
	fault   func(fromHost bool, nth int, msg []byte) [][]byte // of its delta carrier; nil: none
	sent    [2]int
	late    [2][]byte
}

func newLab(t testing.TB) *lab {
	return &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), epoch: 100}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func words(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)[:n]
}

func ring(t testing.TB, capacity int) []byte {
	mem := words(ringbuf.Bytes(uint32(capacity)))
	must(t, ringbuf.Format(mem, uint32(capacity)))
	return mem
}

func memory(t testing.TB, producers, events int) *record.Memory {
	m := &record.Memory{
		Control: record.AsControl(words(record.CtlLen)), Slots: record.Slots(words(slots * record.SlotLen)),
		Tracks: record.Tracks(words(tracks * record.TrkLen)), Board: words(record.BoardHeadLen + slots*record.RowLen),
		Events: ring(t, events),
	}
	m.Control.LeaseFree, m.Control.TrackFree, m.Control.WakeFd, m.Control.EventFd = record.None, record.None, -1, -1
	for range producers {
		m.Rings = append(m.Rings, ring(t, 1<<16))
		m.Overflows = append(m.Overflows, ring(t, 1<<16))
	}
	return m
}

// engine opens an engine's contexts and attaches them.
func (l *lab) engine(id string, shape topology.Shape, kind string, change func(*group.Config)) *engine {
	l.t.Helper()
	l.epoch++
	e := &engine{lab: l, id: id, shape: shape, kind: kind, mem: memory(l.t, 1, 1<<16),
		era: record.Era{Era: 1, Epoch: l.epoch, Secret: [2]uint64{l.epoch * 77, l.epoch * 99}}}
	e.mem.Epoch, e.mem.Secret = e.era.Epoch, e.era.Secret
	e.mem.Control.BeginEra(e.era.Epoch, e.era.Secret)
	name := fmt.Sprintf("%s-%s-%p", l.t.Name(), id, l) // contexts of a process meet by name
	sc := stream.Config{EngineID: name, TP: shape.TP, PP: shape.PP, WakeFd: -1, RingBytes: stream.RingBytesMin}
	var err error
	e.hosts, err = stream.OpenHost(kind, sc)
	must(l.t, err)
	l.t.Cleanup(func() { e.hosts.Close() })
	out, err := dataplane.NewEvents(e.mem.Events, nil)
	must(l.t, err)
	e.cfg = group.Config{Self: shape, Duration: duration, Engines: 16, RunsMax: runsMax, MapMax: 1 << 14, Between: kind == stream.KindDelta, Seed: l.epoch}
	if change != nil {
		change(&e.cfg)
	}
	var carriers []stream.Carrier
	for n := range e.hosts.Ranks() {
		carriers = append(carriers, e.hosts.End(uint32(n)))
	}
	e.group, err = group.New(e.cfg, e.mem, carriers, out)
	must(l.t, err)
	e.group.SetEra(e.era)
	e.host, err = host.New(e.mem, nil)
	must(l.t, err)
	for n := range shape.Ranks() {
		sc.Rank = n
		c, err := stream.OpenRank(kind, sc)
		must(l.t, err)
		e.ranks = append(e.ranks, e.rank(n, c))
		l.t.Cleanup(func() { c.Close() })
	}
	l.engines = append(l.engines, e)
	return e
}

func (e *engine) rank(n uint32, c stream.Carrier) *rank {
	t, l := e.lab.t, e.lab
	r := &rank{n: n, mem: memory(t, 0, 1<<12), carrier: c, kv: words(blocksN * blockLen), base: uint64(n+1) << 40}
	name := fmt.Sprintf("%s_%d", e.id, n)
	var err error
	r.agent, err = l.hub.New(name, loopback.Config{ReadsMax: 512, DescsMax: 4096})
	must(t, err)
	rc := read.Config{ReadsMax: 64, RunsMax: runsMax, ReadTimeout: 4 * duration, QuarantineErrorWait: duration}
	r.mem.Landing = words(read.LandingBytes(rc))
	must(t, r.agent.Register([]transport.Region{
		{Addr: record.Addr(r.kv), Bytes: uint64(len(r.kv))}, {Addr: record.Addr(r.mem.Board), Bytes: uint64(len(r.mem.Board))},
		{Addr: record.Addr(r.mem.Landing), Bytes: uint64(len(r.mem.Landing))},
	}))
	layout := &read.Layout{Regions: []read.Region{{Addr: record.Addr(r.kv), BlockLen: blockLen, BlockStride: blockLen, Blocks: blocksN, Group: -1, Parts: 1, Name: "layer"}}}
	reads, err := read.New(rc, r.agent, r.mem.Landing, layout)
	must(t, err)
	header, rows := record.Board(r.mem.Board)
	r.mem.Secret, r.mem.Epoch, r.mem.Base = e.era.Secret, e.era.Epoch, r.base
	table, err := lease.New(lease.Config{Duration: duration, ExpectMax: -1, StockPeers: true, Seed: 1, AllPeersCheck: true},
		lease.Memory{Control: r.mem.Control, Slots: r.mem.Slots, Header: header, Rows: rows}, e.era.Secret, r.base, e.era.Epoch)
	if err != nil { // never is 0 or negative, as the table has it
		table, err = lease.New(lease.Config{Duration: duration, ExpectMax: 1 << 60, StockPeers: true, Seed: 1, AllPeersCheck: true},
			lease.Memory{Control: r.mem.Control, Slots: r.mem.Slots, Header: header, Rows: rows}, e.era.Secret, r.base, e.era.Epoch)
	}
	must(t, err)
	r.link = dataplane.NewLink(dataplane.LinkConfig{Rank: n, Engines: 16, MapMax: 1 << 14}, r.mem, c)
	tracker, err := heartbeat.New(heartbeat.Config{
		Self: heartbeat.Identity{EngineHash: wire.EngineHash([]byte(e.id)), Epoch: e.era.Epoch, Rank: n}, Shape: e.shape,
		Duration: duration, Tracks: tracks, Engines: 16, RunsMax: runsMax, Seed: 1,
	}, r.agent, reads, r.mem.Tracks, r.mem.Control, r.link)
	must(t, err)
	if k, ok := any(tracker).(interface{ SetLocal(*read.Layout) error }); ok {
		must(t, k.SetLocal(layout))
	}
	out, err := dataplane.NewEvents(r.mem.Events, nil)
	must(t, err)
	r.own, err = ringbuf.NewConsumer(r.mem.Events)
	must(t, err)
	r.plane, err = dataplane.NewRank(dataplane.Config{RecordsStepMax: 1 << 16, NotifsStepMax: 4096, ParseMax: 1 << 16, StockPeers: true},
		r.mem, r.agent, table, tracker, reads, out, r.link)
	must(t, err)
	r.link.SetMap(e.describe(r))
	return r
}

// describe is a rank's handshake map.
func (e *engine) describe(r *rank) []byte {
	blob, err := r.agent.Metadata()
	must(e.lab.t, err)
	return wire.AppendHandshake(nil, &wire.Handshake{
		EngineID: e.id, AgentMetadata: blob, Layout: "HND", BlockSize: 16, AttnBackend: "X", PhysicalPerLogical: 1, DCPSize: 1, PCPSize: 1,
		NumBlocks: blocksN, Native: true, BaseAddrs: []uint64{record.Addr(r.kv)}, BlockLens: []uint64{blockLen}, BlockStrides: []uint64{blockLen},
		RegionNumBlocks: []uint64{blocksN}, RegionGroupIDs: []int64{-1}, RegionNames: []string{"layer"}, RegionMemTypes: []transport.Mem{0},
		Lease: wire.HandshakeLease{Version: wire.LeaseVersion, Epoch: e.era.Epoch, Base: r.base, Board: record.Addr(r.mem.Board),
			Slots: slots, Duration: duration, Agent: r.agent.Agent(), Rank: r.n, TP: e.shape.TP, PP: e.shape.PP},
	})
}

// carry moves the messages of a delta carrier between a rank and its host.
func (e *engine) carry(r *rank) {
	up, ok := r.carrier.(stream.Delta)
	if !ok {
		return
	}
	down := e.hosts.End(r.n).(stream.Delta)
	if e.buf == nil {
		e.buf = make([]byte, stream.MessageBytesMax)
	}
	for dir, ends := range [2][2]stream.Delta{{up, down}, {down, up}} {
		if r.stopped && !r.broken {
			continue
		}
		for range 64 {
			n, err := ends[0].Take(e.buf)
			if err != nil || n == 0 {
				break
			}
			msgs := [][]byte{append([]byte(nil), e.buf[:n]...)}
			if r.fault != nil {
				msgs = r.fault(dir == 1, r.sent[dir], msgs[0])
			}
			r.sent[dir]++
			for _, m := range msgs {
				_ = ends[1].Put(m)
			}
		}
	}
}

// step moves the clock and steps everything once, in a fixed order.
func (l *lab) step(d time.Duration) {
	l.t.Helper()
	l.now = l.now.Add(d)
	for _, e := range l.engines {
		for _, r := range e.ranks {
			e.carry(r)
		}
		e.group.Step(l.now)
		for _, r := range e.ranks {
			e.carry(r)
		}
		for _, r := range e.ranks {
			if r.broken {
				r.link.Poisoned()
			}
			if r.stopped {
				continue
			}
			r.plane.Step(l.now)
			e.load(r)
			e.carry(r)
		}
		e.poll()
	}
}

// load is what a rank's loader does off the step.
func (e *engine) load(r *rank) {
	for {
		select {
		case m := <-r.link.Maps():
			if err := r.link.Load(m); err != nil {
				e.lab.t.Logf("rank %d: map of rank %d: %v", r.n, m.Rank, err)
			}
		default:
			return
		}
	}
}

func (e *engine) poll() {
	var buf [16]record.Event
	for {
		n := e.host.Poll(buf[:], e.lab.now)
		e.evs = append(e.evs, buf[:n]...)
		if n < len(buf) {
			return
		}
	}
}

func (l *lab) run(span, pass time.Duration) {
	for end := l.now.Add(span); l.now < end; {
		l.step(pass)
	}
}

// until steps until ok, or fails.
func (l *lab) until(what string, ok func() bool) {
	l.t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		l.step(20 * time.Millisecond)
	}
	l.t.Fatalf("never: %s", what)
}

// take removes and returns the events of a kind.
func (e *engine) take(kind uint16) []record.Event {
	var out, rest []record.Event
	for _, ev := range e.evs {
		if ev.Kind == kind {
			out = append(out, ev)
		} else {
			rest = append(rest, ev)
		}
	}
	e.evs = rest
	return out
}

func (e *engine) count(kind uint16) (n int) {
	for _, ev := range e.evs {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}

// ready waits until every rank is up.
func (e *engine) ready() {
	e.lab.t.Helper()
	e.lab.until("ranks up of "+e.id, func() bool { return e.count(record.EvRankUp) >= len(e.ranks) })
	if got := len(e.take(record.EvRankUp)); got != len(e.ranks) {
		e.lab.t.Fatalf("%d ranks came up, want %d", got, len(e.ranks))
	}
}

// know lets reader know owner: the maps that the owner's host has of its ranks, as its side channel would serve them.
func (e *engine) know(owner *engine) uint64 {
	e.lab.t.Helper()
	h, err := e.group.AddEngine(group.EngineDesc{ID: owner.id, TP: owner.shape.TP, PP: owner.shape.PP, User: 5})
	must(e.lab.t, err)
	must(e.lab.t, e.group.LoadEngine(h, owner.maps()))
	e.lab.until(owner.id+" up", func() bool { return e.count(record.EvEngineUp) > 0 })
	e.take(record.EvEngineUp)
	return h
}

func (e *engine) maps() (maps []group.PeerMap) {
	e.lab.t.Helper()
	for n := range e.ranks {
		m := e.group.OwnMap(n)
		if m == nil {
			e.lab.t.Fatalf("%s has no map of rank %d", e.id, n)
		}
		maps = append(maps, group.PeerMap{Rank: uint32(n), Data: m})
	}
	return maps
}

// grant fills blocks on all ranks and grants them.
func (e *engine) grant(id string, request uint64, first, n uint32) (record.Handle, *host.Remote) {
	e.lab.t.Helper()
	for _, r := range e.ranks {
		r.fill(request, first, n)
	}
	return e.grantAs(host.Grant{ID: []byte(id), Blocks: n, User: request})
}

func (e *engine) grantAs(g host.Grant) (record.Handle, *host.Remote) {
	e.lab.t.Helper()
	h, err := e.host.Grant(g, e.lab.now)
	must(e.lab.t, err)
	return h, &host.Remote{ID: g.ID, Native: true, Epoch: e.era.Epoch, Key: lease.Key(e.era.Secret, h.Slot(), h.Use()), Slot: h.Slot(), Generation: h.Use()}
}

func (r *rank) fill(request uint64, first, n uint32) {
	for b := first; b < first+n; b++ {
		for off := 0; off < blockLen; off += 8 {
			binary.LittleEndian.PutUint64(r.kv[int(b)*blockLen+off:], request<<32^uint64(off)<<8^uint64(b-first))
		}
	}
}

// right reports that a rank has a request's blocks: the same words as every rank of the owner has.
func (r *rank) right(request uint64, first, n uint32, shape, owner topology.Shape) bool {
	for b := first; b < first+n; b++ {
		for off := 0; off < blockLen; off += 8 {
			at := off
			switch { // the reader's rank holds a part of the owner's, or several
			case shape.TP > owner.TP:
				return true // checked where heads are (dataplane/read)
			case shape.TP < owner.TP:
				return true
			}
			if binary.LittleEndian.Uint64(r.kv[int(b)*blockLen+off:]) != request<<32^uint64(at)<<8^uint64(b-first) {
				return false
			}
		}
	}
	return true
}

func runs(local, remote, n uint32) []record.Run {
	return []record.Run{{Group: 0, Local: local, Remote: remote, N: n}}
}

func (e *engine) track(owner uint64, r *host.Remote, user uint64) record.Handle {
	e.lab.t.Helper()
	h, err := e.host.Track(owner, r, []byte("local"), user, e.lab.now)
	must(e.lab.t, err)
	return h
}

// idle reports that nothing is alive anywhere.
func (l *lab) idle() string {
	for _, e := range l.engines {
		if n := e.group.Alive(); n != 0 {
			return fmt.Sprintf("host %s: %d alive: %+v", e.id, n, e.group.Gauges())
		}
		for _, r := range e.ranks {
			if held := r.plane.Leases.Held() + r.plane.Leases.Ending(); held != 0 && !r.stopped {
				return fmt.Sprintf("%s rank %d: %d leases", e.id, r.n, held)
			}
			if n := r.plane.Tracker.Gauges().Tracked; n != 0 && !r.stopped {
				return fmt.Sprintf("%s rank %d: %d tracked", e.id, r.n, n)
			}
		}
	}
	return ""
}

func kinds(evs []record.Event) (out []string) {
	for _, ev := range evs {
		out = append(out, fmt.Sprintf("%d/%d/%x", ev.Kind, ev.Status, ev.Handle))
	}
	sort.Strings(out)
	return out
}
