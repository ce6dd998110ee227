package heartbeat

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log/logtest"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// sec is a point on the test clock, which starts late enough that 0 means nothing.
func sec(s float64) clock.Instant { return clock.Instant(1e12 + s*1e9) }

func words(bytes int) []byte {
	w := make([]uint64, (bytes+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(w)*8)
}

const (
	blockLen   = 64
	blockCount = 32
	boardRows  = 4096
)

// owner is the prefill side of a test: it keeps what it hears, and rows that a test moves or that follow its heartbeats.
type owner struct {
	t          rapid.TB
	hub        *loopback.Hub
	agent      *loopback.Agent
	name       string
	board      []byte
	rows       []record.Row
	kv         []byte
	epoch      uint64
	base       uint64
	l          time.Duration
	stock      bool
	engine     string // its id, if it is not name
	rank       uint32
	blockBytes uint64 // of its blocks
	deaf       bool   // does not apply heartbeats

	heard    []heard // but for hellos
	hellos   []wire.HelloBody
	hellosAt []int                    // messages heard before each
	deadline map[string]clock.Instant // stock ids
	inbox    *transport.Inbox
}

// heard is one message.
type heard struct {
	at   clock.Instant
	what string // renew, complete, release, leaving, HB, done
	n    int
	size int
	ids  []string
	h    wire.Header
}

type rig struct {
	t       rapid.TB
	hub     *loopback.Hub
	d       *loopback.Agent
	tr      transport.Transport
	reads   *read.Machine
	k       *Tracker
	tracks  []record.Track
	control record.Control
	kv      []byte
	landing []byte
	owners  []*owner
	now     clock.Instant

	events []record.Event
	times  []clock.Instant
	full   bool // refuse events
	book   *logtest.Book
	uses   []uint32
	next   []uint32 // free slots of the host
}

func (r *rig) Put(e *record.Event) bool {
	if r.full {
		return false
	}
	r.events = append(r.events, *e)
	r.times = append(r.times, r.now)
	return true
}

func newRig(t rapid.TB, change func(*Config)) *rig { return newRigOver(t, change, nil) }

func newRigOver(t rapid.TB, change func(*Config), machine func(*read.Config)) *rig {
	t.Helper()
	return newRigOf(t, change, machine, 1)
}

// newRigOf makes a rig whose cache has so many layers, and with something in front of the reader's transport.
func newRigOf(t rapid.TB, change func(*Config), machine func(*read.Config), layers int, front ...func(transport.Transport) transport.Transport) *rig {
	t.Helper()
	r := &rig{t: t, hub: loopback.NewHub(), now: sec(0), book: logtest.New()}
	d, err := r.hub.New("D", loopback.Config{ReadsMax: 8192})
	must(t, err)
	r.d, r.tr = d, d
	for _, f := range front {
		r.tr = f(r.tr)
	}
	cfg := Config{
		Self: Identity{EngineHash: wire.EngineHash([]byte("D")), Epoch: 77}, Duration: 30 * time.Second,
		Tracks: 1024, Engines: 16, Seed: 1, Log: r.book.Log.Step,
	}
	if change != nil {
		change(&cfg)
	}
	r.kv = words(blockLen * blockCount * layers)
	rc := read.Config{ReadsMax: 64, ReadTimeout: 4 * cfg.Duration, QuarantineErrorWait: cfg.Duration}
	if machine != nil {
		machine(&rc)
	}
	r.landing = words(read.LandingBytes(rc))
	must(t, d.Register([]transport.Region{
		{Addr: record.Addr(r.kv), Bytes: uint64(len(r.kv))}, {Addr: record.Addr(r.landing), Bytes: uint64(len(r.landing))},
	}))
	local := &read.Layout{}
	for i := range layers {
		local.Regions = append(local.Regions, read.Region{
			Addr: record.Addr(r.kv) + uint64(i*blockLen*blockCount), BlockLen: blockLen, BlockStride: blockLen, Blocks: blockCount,
		})
	}
	r.reads, err = read.New(rc, r.tr, r.landing, local)
	must(t, err)
	r.tracks = make([]record.Track, cfg.Tracks)
	r.uses = make([]uint32, cfg.Tracks)
	for i := cfg.Tracks - 1; i >= 0; i-- {
		r.next = append(r.next, uint32(i))
	}
	r.control.TrackFree = record.None
	r.k, err = New(cfg, r.tr, r.reads, r.tracks, &r.control, r)
	must(t, err)
	must(t, r.k.SetLocal(local))
	return r
}

func must(t rapid.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// owner adds a prefill engine. Its handshake comes with connect.
func (r *rig) owner(name string, stock bool) *owner {
	r.t.Helper()
	return r.begin(&owner{name: name, epoch: 1000 + uint64(len(r.owners)), base: 1 << 40, stock: stock, blockBytes: blockLen})
}

func (r *rig) begin(o *owner) *owner {
	r.t.Helper()
	o.t, o.hub, o.l = r.t, r.hub, 30*time.Second
	o.deadline, o.inbox = map[string]clock.Instant{}, transport.NewInbox(256, 1<<20)
	o.boot()
	r.owners = append(r.owners, o)
	return o
}

// boot starts the owner's process anew.
func (o *owner) boot() {
	name := o.name
	if o.agent != nil {
		name = fmt.Sprint(o.name, "/", o.epoch)
	}
	a, err := o.hub.New(name, loopback.Config{})
	must(o.t, err)
	o.agent = a
	o.board = words(record.BoardHeadLen + boardRows*record.RowLen)
	_, o.rows = record.Board(o.board)
	for i := range o.rows {
		o.rows[i].Fence = o.base
	}
	o.kv = words(int(o.blockBytes) * blockCount)
	for i := range o.kv {
		o.kv[i] = byte(i/int(o.blockBytes) + 1)
	}
	must(o.t, a.Register([]transport.Region{
		{Addr: record.Addr(o.kv), Bytes: uint64(len(o.kv))}, {Addr: record.Addr(o.board), Bytes: uint64(len(o.board))},
	}))
}

// reboot kills the owner and starts it under another epoch.
func (o *owner) reboot() {
	o.hub.Kill(o.agent.Agent())
	o.epoch += 100
	o.boot()
}

func (o *owner) handshake() *wire.Handshake {
	blob, err := o.agent.Metadata()
	must(o.t, err)
	n := o.blockBytes
	h := &wire.Handshake{
		EngineID: o.name, AgentMetadata: blob, BaseAddrs: []uint64{record.Addr(o.kv)}, NumBlocks: blockCount,
		BlockLens: []uint64{n}, BlockStrides: []uint64{n}, RegionMemTypes: []wire.RegionMem{transport.DRAM},
	}
	if o.engine != "" {
		h.EngineID = o.engine
	}
	if !o.stock {
		h.Native = true
		h.Lease = wire.HandshakeLease{
			Version: 1, Epoch: o.epoch, Base: o.base, Board: record.Addr(o.board), Slots: boardRows, Duration: o.l, Agent: o.name,
			Rank: o.rank,
		}
	}
	return h
}

// poll lets the owner read its notifications: heartbeats move rows of the generation that stands there.
func (o *owner) poll(now clock.Instant) {
	o.inbox.Reset()
	o.agent.Poll(o.inbox)
	for {
		_, body, ok := o.inbox.Next()
		if !ok {
			return
		}
		m := heard{at: now, size: len(body)}
		if h, entries, st := wire.ParseNative(body); st == wire.OK {
			m.what = [...]string{"", "hello", "renew", "complete", "release", "leaving"}[h.Kind]
			m.h, m.n = h, int(h.Count)
			if h.Kind == wire.Hello {
				b, st := wire.ParseHello(entries)
				if st != wire.OK {
					o.t.Errorf("hello: %v", st)
				}
				o.hellos = append(o.hellos, b)
				o.hellosAt = append(o.hellosAt, len(o.heard))
				continue
			}
			for i := range m.n {
				slot, gen, key := wire.Entry(entries, i)
				if want := keyOf(slot, gen); key != want {
					o.t.Errorf("entry of slot %d use %d has key %#x, want %#x", slot, gen, key, want)
				}
				m.ids = append(m.ids, fmt.Sprint(slot))
				if row := &o.rows[slot]; h.Kind == wire.Renew && !o.deaf && row.Fence == o.base+uint64(gen) {
					row.GenBeats = (row.GenBeats>>32+1)<<32 | uint64(gen)
				}
			}
		} else if s, st := wire.ParseStock(body); st != wire.OK {
			o.t.Errorf("message %q: %v", body, st)
		} else if s.Kind == wire.Heartbeat {
			m.what = "HB"
			m.ids = strings.Split(string(s.Body), ",")
			m.n = len(m.ids)
		} else {
			m.what, m.ids, m.n = "done", []string{string(s.ID)}, int(s.N)
		}
		o.heard = append(o.heard, m)
	}
}

// count is the number of messages of a kind, and ids all that they name.
func (o *owner) count(what string) int { return len(o.ids(what, true)) }

func (o *owner) ids(what string, messages bool) []string {
	var ids []string
	for _, m := range o.heard {
		if m.what == what {
			if messages {
				ids = append(ids, what)
			} else {
				ids = append(ids, m.ids...)
			}
		}
	}
	return ids
}

func keyOf(slot, gen uint32) uint64 { return uint64(slot)*1000003 ^ uint64(gen)<<40 ^ 0xabc }

func (r *rig) add(o *owner) uint64 {
	r.t.Helper()
	h, err := r.k.AddEngine(EngineDesc{ID: o.name, User: 7})
	must(r.t, err)
	return h
}

// connect adds an owner's engine and hands in its handshake.
func (r *rig) connect(o *owner) uint64 {
	r.t.Helper()
	h := r.add(o)
	must(r.t, r.k.LoadHandshake(h, 0, o.handshake()))
	return h
}

func (r *rig) slot() record.Handle {
	if len(r.next) == 0 {
		for i := record.TakeFree(&r.control.TrackFree); i != record.None; i = r.tracks[i].Next {
			r.next = append(r.next, i)
			r.uses[i] = uint32(r.tracks[i].State >> 32)
		}
	}
	if len(r.next) == 0 {
		r.t.Fatal("no tracking slot")
	}
	i := r.next[len(r.next)-1]
	r.next = r.next[:len(r.next)-1]
	r.tracks[i].State = record.State(r.uses[i], record.Tracked)
	return record.NewHandle(i, r.uses[i])
}

// track tracks use gen of a slot at a native owner.
func (r *rig) track(engine uint64, o *owner, slot, gen uint32) record.Handle {
	h := r.slot()
	r.k.Track(o.req(h, engine, slot, gen, r.now), []byte(fmt.Sprintf("p-%d-%d", slot, gen)), []byte("local"), r.now)
	return h
}

func (o *owner) req(h record.Handle, engine uint64, slot, gen uint32, said clock.Instant) *record.TrackReq {
	return &record.TrackReq{
		Track: h, Engine: engine, Epoch: o.epoch, Key: keyOf(slot, gen), Slot: slot, Generation: gen, Native: 1,
		User: uint64(h.Slot()) + 500, SaidNs: uint64(said),
	}
}

func (r *rig) trackStock(engine uint64, id string) record.Handle {
	h := r.slot()
	r.k.Track(&record.TrackReq{Track: h, Engine: engine, SaidNs: uint64(r.now)}, []byte(id), []byte("local-of-"+id), r.now)
	return h
}

// trackOf tracks one request of an owner of either kind.
func (r *rig) trackOf(engine uint64, o *owner) record.Handle {
	r.t.Helper()
	if o.stock {
		return r.trackStock(engine, "x")
	}
	return r.track(engine, o, 1, 0)
}

func (r *rig) read(h record.Handle, runs ...record.Run) {
	r.k.ReadPart(&record.Read{Track: h, Part: 0, Parts: 1, N: uint32(len(runs))}, runs, r.now)
}

// step moves the clock and runs one step of everything.
func (r *rig) step(at clock.Instant) {
	r.now = at
	r.k.Step(at)
	for _, o := range r.owners {
		o.poll(at)
	}
}

// run steps until a point in time.
func (r *rig) run(until clock.Instant, every time.Duration) {
	for r.now.Add(every) <= until {
		r.step(r.now.Add(every))
	}
}

var kindNames = map[uint16]string{
	record.EvReadDone: "done", record.EvReadFailed: "failed", record.EvBlocksBack: "back", record.EvLeaseGone: "gone",
	record.EvAtRisk: "risk", record.EvEngineUp: "up", record.EvEngineDown: "down",
}

// said are the events of a request, as words.
func (r *rig) said(h record.Handle) string { return r.words(uint64(h), false) }

func (r *rig) words(handle uint64, engine bool) string {
	var s []string
	for _, e := range r.events {
		if e.Handle != handle || engine != (e.Kind == record.EvEngineUp || e.Kind == record.EvEngineDown) {
			continue
		}
		w := kindNames[e.Kind]
		if e.Kind == record.EvReadFailed {
			w += fmt.Sprintf("(%d)", e.Status)
		}
		if e.Flags&record.FlagBlocksHeld != 0 {
			w += "+held"
		}
		s = append(s, w)
	}
	return strings.Join(s, " ")
}

func (r *rig) wantSaid(h record.Handle, want string) {
	r.t.Helper()
	if got := r.said(h); got != want {
		r.t.Errorf("events of %#x: %q, want %q", h, got, want)
	}
}

func (r *rig) wantEngine(engine uint64, want string) {
	r.t.Helper()
	if got := r.words(engine, true); got != want {
		r.t.Errorf("events of the engine: %q, want %q", got, want)
	}
}

// wantRest checks that nothing is left of any request: every slot went back, no remote, no message, no event.
func (r *rig) wantRest() {
	r.t.Helper()
	g := r.k.Gauges()
	if g.Tracked+g.Remotes+g.Owed+g.Reading+g.Waiting+g.Events+g.BlocksHeld != 0 {
		r.t.Errorf("left over: %+v", g)
	}
	for i := range r.tracks {
		if s := r.tracks[i].State; s&record.Mask != record.Free {
			r.t.Errorf("slot %d did not go back: state %#x", i, s)
		}
	}
	for i := range r.k.engines {
		if e := &r.k.engines[i]; e.fixed.n != 0 || e.requests != 0 || e.native.n != 0 || e.stock.n != 0 || e.strange.n+e.aside.n != 0 || e.owedN != 0 || e.open != 0 {
			r.t.Errorf("engine %d: %d requests, %d+%d in heartbeats, %d strange, %d owed, %d open", i, e.requests, e.native.n, e.stock.n, e.strange.n, e.owedN, e.open)
		}
	}
	if r.k.runs.free.Used() != 0 {
		r.t.Errorf("%d of %d run chunks free", r.k.runs.free.Left(), len(r.k.runs.chunks))
	}
}
