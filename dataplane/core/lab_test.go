package core

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

const (
	labLayers   = 2
	labBlocks   = 64
	labBlockLen = 256
)

// loopbackConfig has room for all that the tests send.
var loopbackConfig = loopback.Config{ReadsMax: 1 << 14, AttachedMax: 1 << 10, NotifBytesMax: 8 << 20}

// smallLoopback keeps the transport out of what a memory test measures.
var smallLoopback = loopback.Config{ReadsMax: 64, DescsMax: 1024, NotifsMax: 64}

// lab is two engines in one process on one virtual clock: a prefill engine p and a decode engine d.
type lab struct {
	t    testing.TB
	now  clock.Instant // the test's own; advance moves it, since cores look at it on goroutines of theirs, too
	hub  *loopback.Hub
	size loopback.Config
	p, d *node
	peer uint64 // p as d knows it

	seed  uint64               // not 0: of the numbers that are random otherwise
	drive string               // "" is inline
	clock func() clock.Instant // nil: now
	edit  func(cfg *Config)    // not nil: the last word on a node's configuration

	mem     transport.Mem                                               // what the nodes say their caches are
	devices OpenDevices                                                 // nil: nobody knows device memory
	wrap    func(id string, tr transport.Transport) transport.Transport // nil: the loopback as it is
}

type node struct {
	core *Core
	host *host.Host
	kv   []byte
	evs  []record.Event

	regions []Region
	book    logtest.Book
}

func newLab(t testing.TB, config string) *lab {
	l := &lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig}
	l.p, l.d = l.node("P", config), l.node("D", config)
	l.peer = l.connect(l.d, l.p)
	return l
}

func (l *lab) node(id, config string) *node {
	l.t.Helper()
	n := l.unregisteredNode(id, config)
	if err := n.core.Register(n.regions); err != nil {
		l.t.Fatal(err)
	}
	return n
}

// unregistered is a node whose memory the transport does not know yet.
func (l *lab) unregistered(id string) *node {
	l.t.Helper()
	return l.unregisteredNode(id, `{}`)
}

func (l *lab) unregisteredNode(id, config string) *node {
	l.t.Helper()
	cfg, err := ParseConfig([]byte(config))
	if err != nil {
		l.t.Fatal(err)
	}
	cfg.EngineID, cfg.Transport, cfg.Drive = id, "loopback", "inline"
	cfg.Log, cfg.LogLevel = "host", "info"
	if !strings.Contains(config, "stats_page") {
		cfg.StatsPage = "" // its own alone: tests leave no files
	}
	read := func() clock.Instant { return clock.Instant(atomic.LoadInt64((*int64)(&l.now))) }
	if l.drive != "" {
		cfg.Drive = l.drive
	}
	if l.clock != nil {
		read = l.clock
	}
	if l.edit != nil {
		l.edit(cfg)
	}
	mem, err := NewMemory(cfg.Sizes())
	if err != nil {
		l.t.Fatal(err)
	}
	if l.seed != 0 {
		l.seed++
		mem.Epoch, mem.Base, mem.Secret = l.seed, l.seed<<32, [2]uint64{l.seed, ^l.seed}
		mem.Control.BeginEra(mem.Epoch, mem.Secret)
	}
	open := map[string]OpenTransport{"loopback": func(cfg *Config, agent string) (transport.Transport, error) {
		size := l.size
		size.PeersMax = cfg.PeersMax()
		tr, err := l.hub.New(agent, size)
		if err == nil && l.wrap != nil {
			return l.wrap(id, tr), nil
		}
		return tr, err
	}}
	c, err := Open(cfg, mem, open, read)
	if err != nil {
		l.t.Fatal(err)
	}
	c.UseDevices(l.devices)
	kv, err := pages(labLayers * labBlocks * labBlockLen)
	if err != nil {
		l.t.Fatal(err)
	}
	var regions []Region
	for layer := range labLayers {
		regions = append(regions, Region{
			Addr: uint64(uintptr(unsafe.Pointer(&kv[layer*labBlocks*labBlockLen]))), Bytes: labBlocks * labBlockLen,
			BlockLen: labBlockLen, BlockStride: labBlockLen, Blocks: labBlocks, Group: -1, Name: fmt.Sprintf("layer.%d", layer),
			Mem: l.mem,
		})
	}
	h, err := host.New(mem, c.Wake)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close(0) })
	return &node{core: c, host: h, kv: kv, regions: regions}
}

// connect lets reader know owner, by the handshake map out of band.
func (l *lab) connect(reader, owner *node) uint64 {
	l.t.Helper()
	m, err := owner.core.OwnHandshake(0)
	if err != nil {
		l.t.Fatal(err)
	}
	engine, err := reader.core.AddEngine(heartbeat.EngineDesc{ID: owner.core.cfg.EngineID})
	if err != nil {
		l.t.Fatal(err)
	}
	if err := reader.core.Handshake(engine, 0, m); err != nil {
		l.t.Fatal(err)
	}
	return engine
}

// fill writes what only this request has into its blocks on one side.
func (n *node) fill(request uint64, blocks []uint32) {
	for layer := range labLayers {
		for i, b := range blocks {
			block := n.block(layer, b)
			for off := 0; off < labBlockLen; off += 8 {
				binary.LittleEndian.PutUint64(block[off:], content(request, layer, i, off))
			}
		}
	}
}

// wrong counts the words of a request's blocks that are not its own.
func (n *node) wrong(request uint64, blocks []uint32) int {
	bad := 0
	for layer := range labLayers {
		for i, b := range blocks {
			block := n.block(layer, b)
			for off := 0; off < labBlockLen; off += 8 {
				if binary.LittleEndian.Uint64(block[off:]) != content(request, layer, i, off) {
					bad++
				}
			}
		}
	}
	return bad
}

func (n *node) block(layer int, b uint32) []byte {
	at := (layer*labBlocks + int(b)) * labBlockLen
	return n.kv[at : at+labBlockLen]
}

func content(request uint64, layer, position, off int) uint64 {
	return request<<40 ^ uint64(layer)<<32 ^ uint64(position)<<16 ^ uint64(off) ^ 0x9e3779b97f4a7c15
}

// advance moves the clock.
func (l *lab) advance(d time.Duration) { l.set(l.now.Add(d)) }

func (l *lab) set(now clock.Instant) { atomic.StoreInt64((*int64)(&l.now), int64(now)) }

// step moves the clock and steps both engines.
func (l *lab) step(d time.Duration) {
	l.t.Helper()
	l.advance(d)
	l.stepOne(l.p)
	l.stepOne(l.d)
}

func (l *lab) stepOne(n *node) {
	l.t.Helper()
	if err := n.core.Step(); err != nil {
		l.t.Fatalf("step: %v\n%s", err, n.core.broken)
	}
	var buf [16]record.Event
	for {
		k := n.host.Poll(buf[:], l.now)
		n.evs = append(n.evs, buf[:k]...)
		if k < len(buf) {
			return
		}
	}
}

// run steps every pass for a span.
func (l *lab) run(span, pass time.Duration) {
	l.t.Helper()
	for end := l.now.Add(span); l.now < end; {
		l.step(pass)
	}
}

// said is what a node has said of a kind.
func (n *node) said(t testing.TB, kind log.Kind) []log.Line {
	t.Helper()
	text, _ := n.core.Log(1 << 20)
	n.book.Take(t, text)
	return n.book.Of(t, kind)
}

// wantSaid checks that it has said something of a kind about an engine and a request.
func (n *node) wantSaid(t testing.TB, kind log.Kind, engine, request string) {
	t.Helper()
	n.said(t, kind)
	n.book.Want(t, kind, engine, request)
}

// wantLine checks that a context has said something of a kind about an engine. What it says is gone then.
func wantLine(t testing.TB, c *Core, kind log.Kind, engine string) {
	t.Helper()
	n := node{core: c}
	n.wantSaid(t, kind, engine, "")
}

// take removes and returns the events of a kind.
func (n *node) take(kind uint16) []record.Event {
	var out, rest []record.Event
	for _, e := range n.evs {
		if e.Kind == kind {
			out = append(out, e)
		} else {
			rest = append(rest, e)
		}
	}
	n.evs = rest
	return out
}

// grant fills and grants blocks on p and tells what a reader needs.
func (l *lab) grant(id string, request uint64, blocks []uint32) (record.Handle, *host.Remote) {
	l.t.Helper()
	l.p.fill(request, blocks)
	lease, err := l.p.host.Grant(host.Grant{ID: []byte(id), Blocks: uint32(len(blocks)), User: request}, l.now)
	if err != nil {
		l.t.Fatal(err)
	}
	return lease, &host.Remote{ID: []byte(id), Native: true, Epoch: l.p.core.mem.Epoch, Key: l.p.host.Key(lease), Slot: lease.Slot(), Generation: lease.Use()}
}

// occupy has a node track a request at an engine that never answers: it has something to do for ever.
func (l *lab) occupy(n *node) {
	l.t.Helper()
	engine, err := n.core.AddEngine(heartbeat.EngineDesc{ID: "nobody"})
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := n.host.Track(engine, &host.Remote{ID: []byte("never"), Native: true, Epoch: 1}, nil, 0, l.now); err != nil {
		l.t.Fatal(err)
	}
	l.stepOne(n)
}

func (l *lab) track(r *host.Remote, local string, user uint64) record.Handle {
	l.t.Helper()
	h, err := l.d.host.Track(l.peer, r, []byte(local), user, l.now)
	if err != nil {
		l.t.Fatal(err)
	}
	return h
}

func (l *lab) read(track record.Handle, local, remote []uint32) {
	l.t.Helper()
	var runs []record.Run
	for i := range local {
		runs = append(runs, record.Run{Group: 0, Local: local[i], Remote: remote[i], N: 1})
	}
	if err := l.d.host.Read(track, runs); err != nil {
		l.t.Fatal(err)
	}
}

func blocks(first, n uint32) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = first + uint32(i)
	}
	return out
}

// agent is a node's loopback transport with its knobs.
func agent(t testing.TB, n *node) *loopback.Agent {
	t.Helper()
	a, ok := n.core.tr.(*loopback.Agent)
	if !ok {
		t.Fatalf("transport is a %T", n.core.tr)
	}
	return a
}

// debugFree gives what earlier tests left behind back to the system, so that resident memory can be compared.
func debugFree() { debug.FreeOSMemory() }
