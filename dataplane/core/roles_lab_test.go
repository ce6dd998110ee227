package core

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/heartbeat"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

const (
	teamBlocks    = 32
	teamHeads     = 4 // of the model, over all ranks
	teamHeadBytes = 24
	teamParts     = 2 // K and V
	teamLayers    = 2 // of the model, over all stages
)

// teamConfig keeps contexts small.
const teamConfig = `{"requests_max":256,"tracked_max":256,"reads_max":64,"read_runs_max":2048,"engines_max":32,"events_max":256,"producers_max":1,"ring_bytes":65536}`

// teamWait is how long the machine may take for what needs a few steps.
const teamWait = 20 * time.Second

// fleet is engines of several contexts in one process: each a host and its ranks, or one context of role engine.
type fleet struct {
	t       testing.TB
	hub     *loopback.Hub
	size    loopback.Config
	carrier string
	drive   string
	config  string // of every context, after what the fleet says
	dir     string
	side    bool         // engines meet over TCP, on the real clock
	ns      atomic.Int64 // the clock otherwise
	teams   []*team
	pass    time.Duration // by which it moves in a turn
	carry   func(from, to *Core, rank uint32)
	wake    func() int // makes the descriptor that ends the sleep of a loop; nil: nobody sleeps
	seed    uint64     // not 0: of the numbers that are random otherwise
}

// team is one engine.
type team struct {
	f       *fleet
	id      string
	tp, pp  int
	mla     bool
	core    *Core // the host's
	host    *host.Host
	ranks   []*teamRank
	evs     []record.Event
	stopped bool // nobody steps its host
}

// teamRank is a rank's context; of role engine the same as the host's.
type teamRank struct {
	core    *Core
	host    *host.Host // its own completion ring: what befell the host
	evs     []record.Event
	kv      []byte
	regions []Region
	layers  []int // of the model
	heads   int
	first   int // of the heads that it has
	stopped bool
}

func newFleet(t testing.TB, carrier string) *fleet {
	f := &fleet{t: t, hub: loopback.NewHub(), size: loopbackConfig, carrier: carrier, drive: "inline", config: teamConfig, dir: t.TempDir(), pass: 5 * time.Millisecond}
	f.ns.Store(int64(time.Hour))
	return f
}

// realTime puts the fleet on the real clock, with the side channel between its engines.
func (f *fleet) realTime() *fleet { f.side = true; return f }

func (f *fleet) now() clock.Instant {
	if f.side {
		return Now()
	}
	return clock.Instant(f.ns.Load())
}

// context opens one context of an engine.
func (f *fleet) context(role, id string, tp, pp, rank int) (*Core, *host.Host) {
	f.t.Helper()
	c, h, err := f.tryContext(role, id, tp, pp, rank)
	if err != nil {
		f.t.Fatal(err)
	}
	return c, h
}

func (f *fleet) tryContext(role, id string, tp, pp, rank int) (*Core, *host.Host, error) {
	cfg, err := ParseConfig([]byte(f.config))
	if err != nil {
		return nil, nil, err
	}
	cfg.EngineID, cfg.Role, cfg.Transport, cfg.Drive, cfg.Carrier = id, role, "loopback", f.drive, f.carrier
	cfg.TPSize, cfg.PPSize, cfg.KVHeads = tp, pp, teamHeads
	cfg.CarrierPath = filepath.Join(f.dir, id)
	cfg.Log, cfg.LogLevel = "host", "info"
	cfg.CoreMemoryMax, cfg.StatsPage = 1<<40, "" // its own alone: tests leave no files
	if role == "rank" {
		cfg.TPRank, cfg.PPRank = rank%tp, rank/tp
	} else if f.side {
		cfg.SideChannelHost, cfg.SideChannelPort, cfg.SideChannelListen = "127.0.0.1", 0, true
	}
	mem, err := NewMemory(cfg.Sizes())
	if err != nil {
		return nil, nil, err
	}
	if f.wake != nil {
		mem.Control.WakeFd = int32(f.wake())
	}
	if f.seed != 0 {
		e := f.nextEra()
		mem.Epoch, mem.Base, mem.Secret = e.epoch, e.base, e.secret
		mem.Control.BeginEra(e.epoch, e.secret)
	}
	open := map[string]OpenTransport{"loopback": func(cfg *Config, agent string) (transport.Transport, error) {
		size := f.size
		size.PeersMax = cfg.PeersMax()
		return f.hub.New(agent, size)
	}}
	f.t.Cleanup(func() { // they belong to the memory
		for _, fd := range []int32{mem.Control.EventFd, mem.Control.WakeFd} {
			if fd >= 0 {
				unix.Close(int(fd))
			}
		}
	})
	c, err := Open(cfg, mem, open, f.now)
	if err != nil {
		return nil, nil, err
	}
	if f.seed != 0 {
		c.nextEra = f.nextEra
	}
	h, err := host.New(mem, c.Wake)
	if err != nil {
		return nil, nil, err
	}
	if role == "host" {
		h.HostOf(tp * pp)
	}
	return c, h, nil
}

// nextEra gives eras that are the same in each run.
func (f *fleet) nextEra() era {
	f.seed++
	n := f.seed * 0x9e3779b97f4a7c15
	return era{epoch: n | 1, secret: [2]uint64{n, ^n}, base: n >> 2}
}

// team opens an engine and registers its ranks' memory. One of a single rank has the role engine unless apart says otherwise.
func (f *fleet) team(id string, tp, pp int, edit ...func(*team)) *team {
	f.t.Helper()
	m := f.open(id, tp, pp, edit...)
	for r := range m.ranks {
		m.register(r)
	}
	f.until(id+" has all its maps", func() bool { return m.whole() })
	return m
}

// open is team without registered memory.
func (f *fleet) open(id string, tp, pp int, edit ...func(*team)) *team {
	f.t.Helper()
	m := &team{f: f, id: id, tp: tp, pp: pp}
	for _, e := range edit {
		e(m)
	}
	if tp*pp == 1 {
		m.core, m.host = f.context("engine", id, 1, 1, 0)
		m.ranks = append(m.ranks, m.newRank(0, m.core, m.host))
	} else {
		m.core, m.host = f.context("host", id, tp, pp, 0)
		for r := range tp * pp {
			c, h := f.context("rank", id, tp, pp, r)
			m.ranks = append(m.ranks, m.newRank(r, c, h))
		}
	}
	f.teams = append(f.teams, m)
	f.t.Cleanup(func() { m.close(5 * time.Second) })
	return m
}

func replicated(m *team) { m.mla = true }

// close ends what is left of an engine: the ranks first, so that the host need not wait for them.
func (m *team) close(timeout time.Duration) {
	if !m.f.side {
		timeout = 0 // its clock stands still
	}
	for _, r := range m.ranks {
		if r.core != m.core {
			r.core.Close(timeout)
		}
	}
	m.core.Close(timeout)
}

// newRank gives a rank its slice of the heads, of the layers of its stage.
func (m *team) newRank(n int, c *Core, h *host.Host) *teamRank {
	r := &teamRank{core: c, host: h, heads: teamHeads / m.tp, first: n % m.tp * (teamHeads / m.tp)}
	if m.mla {
		r.heads, r.first = teamHeads, 0
	}
	for layer := n / m.tp * teamLayers / m.pp; layer < (n/m.tp+1)*teamLayers/m.pp; layer++ {
		r.layers = append(r.layers, layer)
	}
	blockLen := teamParts * r.heads * teamHeadBytes
	kv, err := pages(len(r.layers) * teamBlocks * blockLen)
	if err != nil {
		m.f.t.Fatal(err)
	}
	r.kv = kv
	for i, layer := range r.layers {
		r.regions = append(r.regions, Region{
			Addr: uint64(uintptr(unsafe.Pointer(&kv[i*teamBlocks*blockLen]))), Bytes: uint64(teamBlocks * blockLen),
			BlockLen: uint64(blockLen), BlockStride: uint64(blockLen), Blocks: teamBlocks, Group: -1, Name: fmt.Sprintf("layer.%d", layer),
			Parts: teamParts, Replicated: m.mla,
		})
	}
	return r
}

func (m *team) register(rank int) {
	m.f.t.Helper()
	if err := m.ranks[rank].core.Register(m.ranks[rank].regions); err != nil {
		m.f.t.Fatal(err)
	}
}

// whole reports that the maps of all ranks are there.
func (m *team) whole() bool {
	for r := range m.ranks {
		if _, err := m.core.OwnHandshake(uint32(r)); err != nil {
			return false
		}
	}
	return true
}

// each calls f for every byte of a request's blocks in a rank's memory, with what is to stand there.
func (r *teamRank) each(request uint64, blocks []uint32, f func(b *byte, want byte)) {
	blockLen := teamParts * r.heads * teamHeadBytes
	for i, layer := range r.layers {
		for position, b := range blocks {
			block := r.kv[(i*teamBlocks+int(b))*blockLen:][:blockLen]
			for part := range teamParts {
				for h := range r.heads {
					for off := range teamHeadBytes {
						want := request*0x9e3779b97f4a7c15 ^ uint64(layer)*0xbf58476d1ce4e5b9 ^ uint64(position)*0x94d049bb133111eb ^
							uint64(part)*0xd6e8feb86659fd93 ^ uint64(r.first+h)*0xa0761d6478bd642f ^ uint64(off)*0xe7037ed1a0b428db
						f(&block[(part*r.heads+h)*teamHeadBytes+off], byte(want>>56))
					}
				}
			}
		}
	}
}

func (m *team) fill(request uint64, blocks []uint32) {
	for _, r := range m.ranks {
		r.each(request, blocks, func(b *byte, want byte) { *b = want })
	}
}

// wrong counts the bytes of a request's blocks that are not its own, over all ranks.
func (m *team) wrong(request uint64, blocks []uint32) (bad int) {
	for _, r := range m.ranks {
		r.each(request, blocks, func(b *byte, want byte) {
			if *b != want {
				bad++
			}
		})
	}
	return bad
}

// turn steps every context once, and carries deltas.
func (f *fleet) turn() {
	f.t.Helper()
	f.ns.Add(int64(f.pass))
	for _, m := range f.teams {
		f.turnOf(m)
	}
}

func (f *fleet) turnOf(m *team) {
	f.t.Helper()
	if !m.stopped {
		f.stepOne(m.core)
		m.evs = drainEvents(m.host, m.evs, f.now())
	}
	for n, r := range m.ranks {
		if r.core == m.core || r.stopped {
			continue
		}
		if f.carrier == stream.KindDelta && !m.stopped {
			f.deliver(m.core, r.core, uint32(n))
			f.deliver(r.core, m.core, uint32(n))
		}
		f.stepOne(r.core)
		r.evs = drainEvents(r.host, r.evs, f.now())
	}
}

// stepOne steps a context, if nothing else does. One that is closed or broken is left to the test.
func (f *fleet) stepOne(c *Core) {
	f.t.Helper()
	if f.drive == "pump" {
		return
	}
	if err := c.Step(); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrPoisoned) {
		f.t.Fatal(err)
	}
}

func drainEvents(h *host.Host, evs []record.Event, now clock.Instant) []record.Event {
	var buf [16]record.Event
	for {
		k := h.Poll(buf[:], now)
		if evs = append(evs, buf[:k]...); k < len(buf) {
			return evs
		}
	}
}

// deliver carries what one end of a delta stream has to say.
func (f *fleet) deliver(from, to *Core, rank uint32) {
	if f.carry != nil {
		f.carry(from, to, rank)
		return
	}
	var buf [stream.MessageBytesMin]byte
	for range 64 {
		n, err := from.DeltaTake(rank, buf[:])
		if err != nil || n == 0 {
			return
		}
		to.DeltaPut(rank, buf[:n])
	}
}

// until turns until what holds. The time that the test allows is the machine's, not that of the leases.
func (f *fleet) until(what string, holds func() bool) {
	f.t.Helper()
	for end := time.Now().Add(teamWait); !holds(); time.Sleep(100 * time.Microsecond) {
		f.turn()
		if time.Now().After(end) {
			for _, m := range f.teams {
				f.t.Logf("%s: %+v\n%s", m.id, m.evs, m.core.brief())
				for n, r := range m.ranks {
					f.t.Logf("%s rank %d: %+v\n%s", m.id, n, r.evs, r.core.brief())
				}
			}
			f.t.Fatalf("never: %s", what)
		}
	}
}

// brief is the statistics that are not zero.
func (c *Core) brief() string {
	var all []string
	for k, v := range c.counters() {
		if rv := reflect.ValueOf(v); !rv.IsZero() {
			all = append(all, fmt.Sprint(k, "=", v))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// turns turns a number of times.
func (f *fleet) turns(n int) {
	f.t.Helper()
	for range n {
		f.turn()
		time.Sleep(20 * time.Microsecond)
	}
}

// connect lets reader know owner, over the side channel or by maps out of band.
func (f *fleet) connect(reader, owner *team) uint64 {
	f.t.Helper()
	e := f.name(reader, owner)
	f.until(fmt.Sprintf("%s is connected to %s", reader.id, owner.id), func() bool { return reader.connected(e) })
	return e
}

// name is connect without waiting.
func (f *fleet) name(reader, owner *team) uint64 {
	f.t.Helper()
	d := heartbeat.EngineDesc{ID: owner.id, TP: uint32(owner.tp), PP: uint32(owner.pp)}
	if f.side {
		e, err := reader.core.AddPeer(d, "127.0.0.1", owner.core.cfg.SideChannelPort)
		if err != nil {
			f.t.Fatal(err)
		}
		return e
	}
	e, err := reader.core.AddEngine(d)
	if err != nil {
		f.t.Fatal(err)
	}
	f.offer(reader, e, owner)
	return e
}

// offer hands the maps of an owner's ranks in.
func (f *fleet) offer(reader *team, e uint64, owner *team) {
	f.t.Helper()
	for r := range owner.ranks {
		m, err := owner.core.OwnHandshake(uint32(r))
		if err == nil {
			err = reader.core.Handshake(e, uint32(r), m)
		}
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

func (m *team) connected(e uint64) bool {
	m.core.mu.Lock()
	defer m.core.mu.Unlock()
	if m.core.hosted != nil {
		return m.core.hosted.group.View(e).State == heartbeat.Connected
	}
	return m.core.tracker.View(e).State == heartbeat.Connected
}

// grant fills and grants blocks, and tells what a reader needs.
func (m *team) grant(id string, request uint64, blocks []uint32) (record.Handle, *host.Remote) {
	m.f.t.Helper()
	m.fill(request, blocks)
	lease, err := m.host.Grant(host.Grant{ID: []byte(id), Blocks: uint32(len(blocks)), User: request}, m.f.now())
	if err != nil {
		m.f.t.Fatal(err)
	}
	return lease, m.remote(id, lease)
}

func (m *team) remote(id string, lease record.Handle) *host.Remote {
	epoch, key, ok := m.host.Era(lease)
	if !ok {
		m.f.t.Fatal("between two eras")
	}
	return &host.Remote{ID: []byte(id), Native: true, Epoch: epoch, Key: key, Slot: lease.Slot(), Generation: lease.Use()}
}

func (m *team) track(e uint64, r *host.Remote, user uint64) record.Handle {
	m.f.t.Helper()
	h, err := m.host.Track(e, r, []byte("local"), user, m.f.now())
	if err != nil {
		m.f.t.Fatal(err)
	}
	return h
}

func (m *team) read(track record.Handle, local, remote []uint32) {
	m.f.t.Helper()
	var runs []record.Run
	for i := range local {
		runs = append(runs, record.Run{Local: local[i], Remote: remote[i], N: 1})
	}
	if err := m.host.Read(track, runs); err != nil {
		m.f.t.Fatal(err)
	}
}

// of counts the events of a kind about a handle.
func (m *team) of(kind uint16, h record.Handle) (n int) {
	for _, e := range m.evs {
		if e.Kind == kind && e.Handle == uint64(h) {
			n++
		}
	}
	return n
}

// event gives the one event of a kind about a handle; more than one is a fault.
func (m *team) event(kind uint16, h record.Handle) record.Event {
	m.f.t.Helper()
	m.f.until(fmt.Sprintf("%s: event %d of %#x", m.id, kind, h), func() bool { return m.of(kind, h) > 0 })
	if n := m.of(kind, h); n != 1 {
		m.f.t.Fatalf("%d events of kind %d of %#x: %+v", n, kind, h, m.evs)
	}
	for _, e := range m.evs {
		if e.Kind == kind && e.Handle == uint64(h) {
			return e
		}
	}
	return record.Event{}
}

// kinds counts the events of a kind.
func kinds(evs []record.Event, kind uint16) (n int) {
	for _, e := range evs {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// eachRank is one reason of every rank.
func eachRank(n int, reason uint64) (all uint64) {
	for r := range n {
		all |= reason << (4 * r)
	}
	return all
}

// hostGrant is a grant whose blocks nobody reads.
func hostGrant(id string) host.Grant { return host.Grant{ID: []byte(id), Blocks: 1, User: 1} }
