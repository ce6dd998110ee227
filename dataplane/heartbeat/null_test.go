package heartbeat

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/read"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// null is a transport that does nothing at once: for allocations and the cost of our own part.
type null struct {
	sends, bytes uint64
	next         transport.Peer
	xfer         transport.Xfer
}

func (n *null) Name() string                        { return "null" }
func (n *null) Agent() string                       { return "D" }
func (n *null) Register([]transport.Region) error   { return nil }
func (n *null) Unregister([]transport.Region) error { return nil }
func (n *null) Metadata() ([]byte, error)           { return []byte{1}, nil }
func (n *null) Load([]byte) (transport.Peer, error) { n.next++; return n.next, nil }
func (n *null) Drop(transport.Peer) error           { return nil }
func (n *null) Abandon(transport.Peer) error        { return nil }
func (n *null) Poll(*transport.Inbox) int           { return 0 }
func (n *null) Backlog() int                        { return 0 }
func (n *null) Release(transport.Xfer) error        { return nil }
func (n *null) FastFence() bool                     { return true }
func (n *null) Close() error                        { return nil }
func (n *null) Send(_ transport.Peer, m []byte) error {
	n.sends++
	n.bytes += uint64(len(m))
	return nil
}
func (n *null) PostRead(*transport.ReadSpec) (transport.Xfer, error) {
	n.xfer++
	return n.xfer, nil
}

func (n *null) PollReads(_ []transport.Xfer, out []transport.Status, _ int64) {
	for i := range out {
		out[i] = transport.Done
	}
}

// bulk is a tracker with many engines over null. Its rows show zeros, which is what base 0 and generation 0 want.
type bulk struct {
	k      *Tracker
	tr     *null
	now    clock.Instant
	events int
	tracks []record.Track
	ctl    record.Control
}

func (b *bulk) Put(*record.Event) bool { b.events++; return true }

func newBulk(t testing.TB, engines, requests int, stock bool) *bulk {
	return newBulkOf(t, engines, requests, 1, stock, false)
}

// newBulkOf makes engines of several ranks, or with leases that no heartbeat renews.
func newBulkOf(t testing.TB, engines, requests, ranks int, stock, fixed bool) *bulk {
	b := &bulk{tr: &null{}, now: sec(0), tracks: make([]record.Track, max(requests+16, 64))}
	rc := read.Config{RowsMax: 8192}
	kv, landing := words(blockLen*blockCount), words(read.LandingBytes(rc))
	local := &read.Layout{Regions: []read.Region{{Addr: record.Addr(kv), BlockLen: blockLen, BlockStride: blockLen, Blocks: blockCount}}}
	m, err := read.New(rc, b.tr, landing, local)
	must(t, err)
	b.ctl.TrackFree = record.None
	b.k, err = New(Config{Self: Identity{Epoch: 1}, Duration: 30 * time.Second, Tracks: len(b.tracks), Sites: attached(t)}, b.tr, m, b.tracks, &b.ctl, b)
	must(t, err)
	must(t, b.k.SetLocal(local))
	handles := make([]uint64, engines)
	for i := range handles {
		name := fmt.Sprint("P", i)
		handles[i], err = b.k.AddEngine(EngineDesc{ID: name, TP: uint32(ranks)})
		must(t, err)
		var all []PeerRank
		for k := range uint32(ranks) {
			all = append(all, PeerRank{k, &wire.Handshake{
				EngineID: name, AgentMetadata: []byte(fmt.Sprint(name, ".", k)), BaseAddrs: []uint64{4096}, NumBlocks: blockCount,
				BlockLens: []uint64{blockLen / uint64(ranks)}, BlockStrides: []uint64{blockLen / uint64(ranks)}, Native: !stock,
				Lease: wire.HandshakeLease{Version: 1, Epoch: 5, Board: 4096, Slots: 1 << 20, Duration: 30 * time.Second},
			}})
		}
		must(t, b.k.LoadEngine(handles[i], all))
		must(t, b.k.SetOffset(handles[i], known(b.now)))
	}
	for range engines*ranks + engines/newsStepMax + 2 {
		b.step(100 * time.Microsecond)
	}
	for i := range requests {
		req := record.TrackReq{Track: record.NewHandle(uint32(i), 0), Engine: handles[i%engines], SaidNs: uint64(b.now)}
		if !stock {
			req.Native, req.Epoch, req.Slot = 1, 5, uint32(i)
		}
		if fixed {
			req.ExpiresNs = 500_000e9 // never, as far as the test goes
		}
		b.k.Track(&req, []byte(fmt.Sprintf("cmpl-%032d-0", i)), nil, b.now)
	}
	for range 2000 {
		b.step(time.Millisecond)
	}
	if g := b.k.Gauges(); g.Connected != engines || g.Tracked != requests {
		t.Fatalf("%+v", g)
	}
	return b
}

// attached are sites that somebody is attached to; none in a benchmark.
func attached(t testing.TB) *trace.Sites {
	if _, bench := t.(*testing.B); bench {
		return nil
	}
	rec := new(tracetest.Recorder)
	rec.AttachAll()
	rec.Room()
	return rec.Sites()
}

func (b *bulk) step(d time.Duration) {
	b.now = b.now.Add(d)
	b.k.Step(b.now)
}

func TestStepsAllocateNothing(t *testing.T) {
	for _, tc := range []struct {
		name     string
		engines  int
		requests int
		stock    bool
		step     time.Duration
		sends    bool
		ranks    int
		fixed    bool
	}{
		{"idle, 10,000 tracked", 10, 10000, false, time.Microsecond, false, 1, false},
		{"1,000 engines due, native", 1000, 10000, false, 10 * time.Millisecond, true, 1, false},
		{"1,000 engines due, stock", 1000, 10000, true, 10 * time.Millisecond, true, 1, false},
		{"one engine with 10,000 due", 1, 10000, false, 100 * time.Millisecond, true, 1, false},
		{"250 engines of four ranks, native", 250, 10000, false, 10 * time.Millisecond, true, 4, false},
		{"250 engines of four ranks, stock", 250, 10000, true, 10 * time.Millisecond, true, 4, false},
		{"10,000 fixed leases, native", 10, 10000, false, 10 * time.Millisecond, false, 1, true},
		{"10,000 fixed leases, stock, two ranks", 10, 10000, true, 10 * time.Millisecond, false, 2, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBulkOf(t, tc.engines, tc.requests, tc.ranks, tc.stock, tc.fixed)
			before := b.tr.sends
			if n := testing.AllocsPerRun(700, func() { b.step(tc.step) }); n != 0 {
				t.Errorf("%v allocations a step", n)
			}
			if sent := b.tr.sends > before; sent != tc.sends {
				t.Errorf("messages sent: %v, want %v", sent, tc.sends)
			}
		})
	}
}

func TestARequestFromTrackToTheEndAllocatesNothing(t *testing.T) {
	for _, ranks := range []int{1, 4} {
		requestAllocatesNothing(t, newBulkOf(t, 1, 1, ranks, false, false))
	}
}

func requestAllocatesNothing(t *testing.T, b *bulk) {
	use, engine := uint32(0), uint64(record.NewHandle(0, 0))
	remote, local := []byte("remote"), []byte("local")
	runs := []record.Run{{Local: 1, Remote: 2, N: 3}}
	one := func(read bool) {
		req := &record.TrackReq{Track: record.NewHandle(20, use), Engine: engine, Native: 1, Epoch: 5, Slot: 50, SaidNs: uint64(b.now)}
		b.k.Track(req, remote, local, b.now)
		b.step(time.Millisecond)
		if read {
			b.k.ReadPart(&record.Read{Track: req.Track, Parts: 1, N: 1}, runs, b.now)
		} else {
			b.k.Untrack(req.Track, b.now)
			b.k.Reject(&record.TrackReq{Engine: engine, Native: 1, Epoch: 5, Slot: 51}, remote, b.now)
		}
		for range 3 {
			b.step(time.Millisecond)
		}
		use++
		if s := b.tracks[20].State; s != record.State(use, record.Free) {
			t.Fatalf("slot state %#x after use %d", s, use)
		}
	}
	for _, read := range []bool{false, true} {
		if n := testing.AllocsPerRun(200, func() { one(read) }); n != 0 {
			t.Errorf("read %v: %v allocations", read, n)
		}
	}
}

func BenchmarkIdleStep10kTracked(b *testing.B) {
	k := newBulk(b, 10, 10000, false)
	b.ReportAllocs()
	for b.Loop() {
		k.step(1)
	}
}

// Rounds of engines with 10 requests each, in steps of 10 ms: the cost of the steps that send.
func BenchmarkRound1000Engines(b *testing.B) { roundOf(b, 1000) }
func BenchmarkRound4096Engines(b *testing.B) { roundOf(b, 4096) }

func roundOf(b *testing.B, engines int) {
	for _, stock := range []bool{false, true} {
		b.Run(map[bool]string{false: "native", true: "stock"}[stock], func(b *testing.B) {
			k := newBulk(b, engines, 10*engines, stock)
			busy := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				for range 500 { // one interval
					before, start := k.tr.sends, time.Now()
					k.step(10 * time.Millisecond)
					if took := time.Since(start); k.tr.sends > before && len(busy) < cap(busy) {
						busy = append(busy, took)
					}
				}
			}
			slices.Sort(busy)
			b.ReportMetric(float64(busy[len(busy)/2]), "ns/step-p50")
			b.ReportMetric(float64(busy[len(busy)*99/100]), "ns/step-p99")
			b.ReportMetric(float64(busy[len(busy)-1]), "ns/step-worst")
		})
	}
}

func BenchmarkRoundOneEngine10k(b *testing.B) {
	for _, stock := range []bool{false, true} {
		b.Run(map[bool]string{false: "native", true: "stock"}[stock], func(b *testing.B) {
			k := newBulk(b, 1, 10000, stock)
			b.ReportAllocs()
			for b.Loop() {
				k.step(5 * time.Second)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10000, "ns/request")
		})
	}
}

func BenchmarkTrackUntrack(b *testing.B) {
	k := newBulk(b, 1, 10000, false)
	use := uint32(0)
	remote := []byte("cmpl-remote-id-of-a-usual-length-0123456789")
	b.ReportAllocs()
	for b.Loop() {
		h := record.NewHandle(10001, use)
		k.k.Track(&record.TrackReq{Track: h, Engine: uint64(record.NewHandle(0, 0)), Native: 1, Epoch: 5, Slot: 20000}, remote, nil, k.now)
		k.k.Untrack(h, k.now)
		use++
		k.k.forgetOwed(k.k.owedOrder.head)
	}
}
