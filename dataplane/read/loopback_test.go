package read

import (
	"bytes"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

const (
	loopBlocks  = 32
	loopLen     = 256
	loopRegions = 3
)

// owner is a P on the loopback: KV memory and a board with one lease of use 0 in slot 0.
type owner struct {
	agent *loopback.Agent
	kv    []byte
	board []byte
	row   *record.Row
	base  uint64
}

func newOwner(t testing.TB, hub *loopback.Hub, name string, base uint64) *owner {
	t.Helper()
	a, err := hub.New(name, loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	o := &owner{agent: a, kv: make([]byte, loopRegions*loopBlocks*loopLen), board: make([]byte, record.BoardHeadLen+record.RowLen), base: base}
	o.fill(1)
	_, rows := record.Board(o.board)
	o.row = &rows[0]
	record.Raise(&o.row.Fence, base)
	for _, mem := range [][]byte{o.kv, o.board} {
		if err := a.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: uint64(len(mem))}}); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// fill writes content of a version into every block.
func (o *owner) fill(version byte) {
	for i := range o.kv {
		o.kv[i] = version*31 + byte(i/7) + byte(i>>8)
	}
}

func (o *owner) source(peer transport.Peer) from {
	return from{
		Source: Source{Peer: peer, Fence: Fence{Native: true, Addr: record.Addr(o.board) + record.BoardHeadLen, Want: o.base}},
		Remote: layoutAt(record.Addr(o.kv), loopRegions, loopBlocks, loopLen),
	}
}

// reader is a D on the loopback.
type reader struct {
	*bench
	agent *loopback.Agent
	kv    []byte
}

func newReader(t testing.TB, hub *loopback.Hub) *reader {
	t.Helper()
	a, err := hub.New("d", loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{ReadsMax: 8, RowsMax: 8, RunsMax: 4096, ReadTimeout: readTimeout, QuarantineErrorWait: errorWait}
	landing := make([]byte, LandingBytes(cfg))
	r := &reader{agent: a, kv: make([]byte, loopRegions*loopBlocks*loopLen)}
	for _, mem := range [][]byte{r.kv, landing} {
		if err := a.Register([]transport.Region{{Addr: record.Addr(mem), Bytes: uint64(len(mem))}}); err != nil {
			t.Fatal(err)
		}
	}
	m, err := New(cfg, a, landing, layoutAt(record.Addr(r.kv), loopRegions, loopBlocks, loopLen))
	if err != nil {
		t.Fatal(err)
	}
	r.bench = &bench{t: t, m: m}
	return r
}

func (r *reader) load(o *owner) transport.Peer {
	r.t.Helper()
	blob, err := o.agent.Metadata()
	if err != nil {
		r.t.Fatal(err)
	}
	p, err := r.agent.Load(blob)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// begin reads remote block i into local block i+1, for i in 0..7.
func (r *reader) begin(token uint64, s from) {
	r.t.Helper()
	j, st := r.m.Begin(token, r.now)
	r.ok(st)
	r.ok(add(r.m, j, s))
	r.ok(r.m.AddRuns(j, []record.Run{{Local: 1, Remote: 0, N: 8}}))
	r.ok(r.m.Commit(j, r.now))
}

// has reports that exactly those blocks stand here as they stand on o now.
func (r *reader) has(o *owner) bool {
	for g := range loopRegions {
		at := g * loopBlocks * loopLen
		if !bytes.Equal(r.kv[at+loopLen:at+9*loopLen], o.kv[at:at+8*loopLen]) || !zero(r.kv[at:at+loopLen]) || !zero(r.kv[at+9*loopLen:at+loopBlocks*loopLen]) {
			return false
		}
	}
	return true
}

func zero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func TestOverLoopbackEveryByteComesAndIsProven(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	d.begin(1, p.source(d.load(p)))
	d.step(0)
	if o := d.wantOutcome(1, record.ReadOK, false); !o.Proven || o.Bytes != 8*loopRegions*loopLen {
		t.Errorf("outcome %+v", o)
	}
	if !d.has(p) {
		t.Error("the bytes differ")
	}
	d.wantIdle()
}

// The third part of the first milestone: D is stopped past its lease while P writes over the freed blocks.
func TestOverLoopbackAReaderStoppedPastItsLeaseFindsItStale(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	s := p.source(d.load(p))
	d.agent.HoldReads(true)
	d.begin(1, s)
	d.step(0)
	d.wantNone()
	record.Raise(&p.row.Fence, p.base+1) // P: the end of the lease, then the blocks
	p.fill(2)
	d.agent.HoldReads(false)
	d.step(10 * readTimeout)                  // and past every time-out as well: what has arrived counts
	d.wantOutcome(1, record.ReadStale, false) // shows C26.2, C27.1, S20.1
	d.begin(2, s)
	d.step(0)
	d.wantOutcome(2, record.ReadStale, false)
	d.wantIdle()
}

func TestOverLoopbackAStoppedOwnerGetsNoBlockBackBeforeItsReadHasEnded(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	peer := d.load(p)
	hub.Stop("p")
	d.begin(1, p.source(peer))
	d.step(0)
	d.step(readTimeout)
	d.wantOutcome(1, record.ReadTimeout, true)
	d.step(time.Hour)
	d.wantNone()
	if d.agent.Drop(peer) == nil {
		t.Error("the agent was dropped under a read")
	}
	hub.Resume("p")
	d.step(0)
	d.wantBack(1)
	if !d.has(p) {
		t.Error("the read did not land after all: the test shows nothing")
	}
	d.wantIdle()
	if err := d.agent.Drop(peer); err != nil {
		t.Errorf("drop: %v", err)
	}
}

func TestOverLoopbackWhatLandsAfterAnErrorLandsInHeldBlocks(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	d.agent.FailNext(loopback.OpRead, nil)
	d.begin(1, p.source(d.load(p)))
	d.step(0)
	d.wantOutcome(1, record.ReadFailed, true)
	d.step(errorWait - 1)
	if d.agent.LandLate() != 1 || !d.has(p) {
		t.Error("nothing landed late: the test shows nothing")
	}
	d.wantNone()
	d.step(1)
	d.wantBack(1)
	if d.agent.LandLate() != 0 {
		t.Error("a block that was handed back was written")
	}
	d.wantIdle()
}

func TestOverLoopbackTheStockCompletionLeavesOnceWithTheRead(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	s := p.source(d.load(p))
	s.Fence, s.Notif = Fence{}, []byte("req-1:1")
	d.agent.HoldReads(true)
	d.begin(1, s)
	d.step(0)
	in := transport.NewInbox(4, 1024)
	if p.agent.Poll(in) != 0 {
		t.Error("told before the read")
	}
	d.agent.HoldReads(false)
	d.step(0)
	d.wantOutcome(1, record.ReadOK, false)
	p.agent.Poll(in)
	if _, body, ok := in.Next(); !ok || string(body) != "req-1:1" || in.Len() != 0 { // shows F1.1
		t.Errorf("notification %q, %v, %d more", body, ok, in.Len())
	}
}

// C46, as far as reads go: reads in flight to a peer that dies, and its successor.
func TestOverLoopbackAPeerThatComesBackIsReadOverTheNewConnection(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	old := d.load(p)
	d.agent.HoldReads(true)
	for i := range uint64(3) {
		d.begin(i, p.source(old))
	}
	d.step(0)
	hub.Kill("p")
	d.agent.HoldReads(false)
	d.step(time.Second)
	for range 3 {
		if o := d.outcome(); o == nil || o.Status != record.ReadFailed || !o.BlocksHeld || o.Peer != old { // shows C46.2
			t.Errorf("outcome %+v", o)
		}
	}
	q := newOwner(t, hub, "p of the next boot", 9000) // agent names are new with each boot
	d.begin(9, q.source(d.load(q)))
	d.step(time.Second)
	d.wantOutcome(9, record.ReadOK, false)
	if !d.has(q) { // shows C46.4
		t.Error("the bytes differ")
	}
	if pending, aside := d.m.InFlight(old); pending != 0 || aside != 3 {
		t.Errorf("to the dead peer: %d pending, %d aside", pending, aside)
	}
	d.step(errorWait)
	for range 3 {
		if _, ok := d.m.NextBack(); !ok {
			t.Error("blocks are missing")
		}
	}
	d.wantIdle()
}

func TestOverLoopbackRowsAndReadsAllocateNothing(t *testing.T) {
	hub := loopback.NewHub()
	p, d := newOwner(t, hub, "p", 7000), newReader(t, hub)
	s := d.mapped(p.source(d.load(p)))[0]
	runs := []record.Run{{Local: 1, N: 8}, {Local: 20, Remote: 9, N: 1}}
	row := 0
	n := testing.AllocsPerRun(200, func() {
		j, _ := d.m.Begin(1, d.now)
		d.m.AddSource(j, s)
		d.m.AddRuns(j, runs)
		d.m.Commit(j, d.now)
		d.m.ReadRow(2, s.Peer, s.Fence.Addr, 0, transport.DRAM, record.RowLen, d.now)
		d.step(1)
		d.step(1)
		if o, ok := d.m.NextOutcome(); !ok || o.Status != record.ReadOK {
			t.Fatalf("outcome %+v", o)
		}
		if r, ok := d.m.NextRow(); ok && r.OK && r.Row.Fence == p.base && r.Posted < clock.Never {
			row++
		}
	})
	if n != 0 || row != 201 {
		t.Errorf("%v allocations a read, %d rows", n, row)
	}
}
