package read

import (
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/topology"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// fakeXfer is one posted read. The test decides what lands when and what the transport says about it.
type fakeXfer struct {
	id       transport.Xfer
	spec     transport.ReadSpec
	status   transport.Status
	released bool
}

// fake is a transport that does nothing until the test says so.
type fake struct {
	t       testing.TB
	posted  []*fakeXfer
	postErr error
	keep    error // what Release answers
	fast    bool
	polls   int
	spins   []int64
	onPost  func(*fakeXfer)
	onPoll  func(spin int64)
	remote  map[uint64]uint64 // words of the peers' boards by address

	takes func(*transport.ReadSpec) time.Duration // what a post that is timed says of itself; nil: 0
}

func (f *fake) Name() string                        { return "fake" }
func (f *fake) Agent() string                       { return "fake" }
func (f *fake) Register([]transport.Region) error   { return nil }
func (f *fake) Unregister([]transport.Region) error { return nil }
func (f *fake) Metadata() ([]byte, error)           { return nil, nil }
func (f *fake) Load([]byte) (transport.Peer, error) { return 0, transport.ErrUnavailable }
func (f *fake) Drop(transport.Peer) error           { return nil }
func (f *fake) Abandon(transport.Peer) error        { return nil }
func (f *fake) Send(transport.Peer, []byte) error   { return nil }
func (f *fake) Poll(*transport.Inbox) int           { return 0 }
func (f *fake) Backlog() int                        { return 0 }
func (f *fake) FastFence() bool                     { return f.fast }
func (f *fake) Close() error                        { return nil }
func (f *fake) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	if f.postErr != nil {
		return 0, f.postErr
	}
	x := &fakeXfer{id: transport.Xfer(len(f.posted) + 1), spec: *s}
	x.spec.Descs = append([]transport.Desc(nil), s.Descs...)
	x.spec.Notif = append([]byte(nil), s.Notif...)
	if f.posted = append(f.posted, x); f.takes != nil && s.Timed {
		s.Took = f.takes(s)
	}
	if f.onPost != nil {
		f.onPost(x)
	}
	return x.id, nil
}

func (f *fake) PollReads(xs []transport.Xfer, out []transport.Status, spin int64) {
	f.polls++
	f.spins = append(f.spins, spin)
	if f.onPoll != nil {
		f.onPoll(spin)
	}
	for i, x := range xs {
		p := f.posted[x-1]
		if p.released {
			f.t.Errorf("transfer %d polled after its release", x)
		}
		out[i] = p.status
	}
}

func (f *fake) Release(x transport.Xfer) error {
	p := f.posted[x-1]
	if f.keep != nil {
		return f.keep
	}
	if p.status == transport.Pending {
		f.t.Errorf("transfer %d released while it is pending", x)
		return transport.ErrInvalid
	}
	if p.released {
		f.t.Errorf("transfer %d released twice", x)
	}
	p.released = true
	return nil
}

// land lets a read of a word or a row bring what stands on the peer's board now, and reports it DONE.
func (f *fake) land(x *fakeXfer) {
	for _, d := range x.spec.Descs {
		if d.Len > record.RowLen || d.Remote < boardBase {
			continue
		}
		for at := uint64(0); at < d.Len; at += 8 {
			*wordAt(d.Local + at) = f.remote[d.Remote+at]
		}
	}
	x.status = transport.Done
}

// wordAt views test memory by its address.
func wordAt(addr uint64) *uint64 { return (*uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))) }

const (
	boardBase = 0xB000_0000_0000 // rows of peers in these tests; KV blocks are far below
	kvBase    = 0x1000_0000
)

func rowAddr(peer transport.Peer, slot int) uint64 {
	return boardBase + uint64(peer)<<24 + uint64(slot)*record.RowLen
}

const (
	readTimeout = 60 * time.Second
	errorWait   = 30 * time.Second
)

// bench is a machine over a fake with one dense region of 64 blocks for each source.
type bench struct {
	t   rapid.TB
	m   *Machine
	f   *fake
	now clock.Instant
}

func newBench(t testing.TB, cfg Config, regions int) *bench {
	t.Helper()
	f := &fake{t: t, remote: map[uint64]uint64{}}
	return newBenchOver(t, cfg, f, f, layoutAt(0x4000_0000, regions, 64, 4096))
}

func newBenchOver(t testing.TB, cfg Config, tr transport.Transport, f *fake, local *Layout) *bench {
	t.Helper()
	if cfg.ReadsMax == 0 {
		cfg.ReadsMax = 8
	}
	if cfg.RowsMax == 0 {
		cfg.RowsMax = 16
	}
	if cfg.RunsMax == 0 {
		cfg.RunsMax = 4096
	}
	if cfg.ReadTimeout == 0 {
		cfg.ReadTimeout = readTimeout
	}
	cfg.QuarantineErrorWait = errorWait
	m, err := New(cfg, tr, make([]byte, LandingBytes(cfg)), local)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, m: m, f: f}
}

// layoutAt makes regions of n blocks of the given length, one block after the other.
func layoutAt(addr uint64, regions int, n uint32, blockLen uint64) *Layout {
	l := &Layout{}
	for i := range regions {
		l.Regions = append(l.Regions, Region{
			Addr: addr + uint64(i)*uint64(n)*blockLen, BlockLen: blockLen, BlockStride: blockLen, Blocks: n, Group: -1,
		})
	}
	return l
}

const want = 1000 // the fence word of every lease in the scripted tests

// from is a source before its map is made: the regions from First on are filled from Remote, as from a pipeline stage.
type from struct {
	Source
	First  int
	Remote *Layout
}

// mapped makes the maps of all sources of one read.
func mapped(local *Layout, sources ...from) ([]Source, error) {
	remotes := make([]Remote, len(sources))
	for i, s := range sources {
		for _, o := range sources {
			if o.First < s.First {
				remotes[i].Rank++
			}
		}
		remotes[i].Layout = s.Remote
	}
	one := topology.Shape{TP: 1, PP: 1}
	maps, err := NewMaps(local, one, 0, topology.Shape{TP: 1, PP: uint32(len(sources))}, 0, remotes)
	if err != nil {
		return nil, err
	}
	out := make([]Source, len(sources))
	for i, s := range sources {
		out[i] = s.Source
		out[i].Map = maps[i]
	}
	return out, nil
}

// add gives the sources of a read to the machine. Layouts that do not fit are Invalid.
func add(m *Machine, j Job, sources ...from) Status {
	all, err := mapped(&m.local, sources...)
	if err != nil {
		return m.invalid(err.Error())
	}
	for _, s := range all {
		if st := m.AddSource(j, s); st != OK {
			return st
		}
	}
	return OK
}

func (b *bench) mapped(sources ...from) []Source {
	b.t.Helper()
	out, err := mapped(&b.m.local, sources...)
	if err != nil {
		b.t.Fatal(err)
	}
	return out
}

// halves are two native source ranks with half of the heads of every block each, keys and values one after the other.
func (b *bench) halves() []Source {
	b.t.Helper()
	remotes := make([]Remote, 2)
	out := make([]Source, 2)
	for i := range remotes {
		l := &Layout{}
		for k, r := range b.m.local.Regions {
			r.Addr = kvBase*uint64(i+1) + uint64(k)<<34
			r.BlockLen /= 2
			r.BlockStride = r.BlockLen
			r.Parts = 2
			l.Regions = append(l.Regions, r)
		}
		remotes[i] = Remote{uint32(i), l}
		peer := transport.Peer(i + 1)
		b.f.remote[rowAddr(peer, 0)] = want
		out[i] = Source{Peer: peer, Fence: Fence{Native: true, Addr: rowAddr(peer, 0), Want: want}}
	}
	maps, err := NewMaps(&b.m.local, topology.Shape{TP: 1, PP: 1}, 0, topology.Shape{TP: 2, PP: 1}, 0, remotes)
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range out {
		out[i].Map = maps[i]
	}
	return out
}

// source is a native source rank with the i-th region; its word stands at want.
func (b *bench) source(peer transport.Peer, first, regions int) from {
	b.f.remote[rowAddr(peer, 0)] = want
	return from{
		Source: Source{Peer: peer, Fence: Fence{Native: true, Addr: rowAddr(peer, 0), Want: want}},
		First:  first, Remote: layoutAt(kvBase*uint64(peer), regions, 64, 4096),
	}
}

// commit builds a read of blocks 0..n-1 from sources.
func (b *bench) commit(token uint64, n uint32, sources ...from) Job {
	b.t.Helper()
	j, st := b.m.Begin(token, b.now)
	b.ok(st)
	b.ok(add(b.m, j, sources...))
	b.ok(b.m.AddRuns(j, []record.Run{{N: n}}))
	b.ok(b.m.Commit(j, b.now))
	return j
}

func (b *bench) ok(st Status) {
	b.t.Helper()
	if st != OK {
		b.t.Fatalf("status %v: %s", st, b.m.Why())
	}
}

func (b *bench) step(d time.Duration) {
	b.now = b.now.Add(d)
	b.m.Step(b.now)
}

func (b *bench) outcome() *Outcome {
	if o, ok := b.m.NextOutcome(); ok {
		return &o
	}
	return nil
}

// wantOutcome takes the next outcome and compares what matters.
func (b *bench) wantOutcome(token uint64, status uint8, held bool) Outcome {
	b.t.Helper()
	o := b.outcome()
	if o == nil {
		b.t.Fatalf("no outcome of %d", token)
	}
	if o.Token != token || o.Status != status || o.BlocksHeld != held {
		b.t.Fatalf("outcome %+v, want token %d status %d held %v", *o, token, status, held)
	}
	return *o
}

func (b *bench) wantNone() {
	b.t.Helper()
	if o := b.outcome(); o != nil {
		b.t.Fatalf("outcome %+v, want none", *o)
	}
	if tok, ok := b.m.NextBack(); ok {
		b.t.Fatalf("blocks of %d are back, want none", tok)
	}
}

func (b *bench) wantBack(token uint64) {
	b.t.Helper()
	if tok, ok := b.m.NextBack(); !ok || tok != token {
		b.t.Fatalf("NextBack gives %d, %v, want %d", tok, ok, token)
	}
}

// posts gives how many posts there were so far.
func (b *bench) posts() int { return len(b.f.posted) }

// wantIdle checks that nothing is left anywhere.
func (b *bench) wantIdle() {
	b.t.Helper()
	g := b.m.Gauges()
	g.RunsFree = 0
	if g != (Gauges{}) || b.m.NeedsStep() || b.m.NextDue() != clock.Never || b.m.Open() != 0 || b.m.peers.n != 0 {
		b.t.Fatalf("not idle: %+v, needs step %v, due %d, peers %d", g, b.m.NeedsStep(), b.m.NextDue(), b.m.peers.n)
	}
	if b.m.runs.free.Used()+b.m.freeJob.Used()+b.m.freeXfer.Used()+b.m.freeRow.Used() != 0 {
		b.t.Fatal("a pool is not whole again")
	}
}

func addrOf(words []uint64) uint64 { return uint64(uintptr(unsafe.Pointer(&words[0]))) }
