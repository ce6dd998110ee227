package read

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/trace/tracetest"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// quiet is a transport that allocates nothing and whose reads end at the first poll, or when told to.
type quiet struct {
	fake
	next transport.Xfer
	hold bool
	want uint64
}

func (q *quiet) PostRead(s *transport.ReadSpec) (transport.Xfer, error) {
	q.next++
	if d := &s.Descs[0]; d.Remote >= boardBase {
		*wordAt(d.Local) = q.want
	}
	return q.next, nil
}

func (q *quiet) PollReads(xs []transport.Xfer, out []transport.Status, spin int64) {
	st := transport.Done
	if q.hold {
		st = transport.Pending
	}
	for i := range xs {
		out[i] = st
	}
}

func (q *quiet) Release(transport.Xfer) error { return nil }

func newQuiet(t testing.TB, cfg Config, blocks uint32, regions int) (*bench, *quiet) {
	q := &quiet{want: want}
	f := &fake{t: t, remote: map[uint64]uint64{}}
	return newBenchOver(t, cfg, q, f, layoutAt(0x4000_0000, regions, blocks, 16384)), q
}

func TestNoCallAfterNewAllocates(t *testing.T) {
	var attached tracetest.Recorder
	attached.AttachAll()
	attached.Room()
	b, q := newQuiet(t, Config{RowTimeout: time.Second, PostBudget: time.Millisecond, Sites: attached.Sites()}, 1024, 4)
	f := b.source(1, 0, 4)
	f.Remote = layoutAt(kvBase, 4, 1024, 16384)
	s := b.mapped(f)[0]
	stock := s
	stock.Fence, stock.Notif = Fence{}, []byte("req-1:1")
	runs := make([]record.Run, 200)
	for i := range runs {
		runs[i] = record.Run{Local: uint32(i * 2), Remote: uint32(i * 3), N: 1}
	}
	drain := func() {
		for _, ok := b.m.NextOutcome(); ok; _, ok = b.m.NextOutcome() {
		}
		for _, ok := b.m.NextBack(); ok; _, ok = b.m.NextBack() {
		}
		for _, ok := b.m.NextRow(); ok; _, ok = b.m.NextRow() {
		}
	}
	halves := b.halves()
	readAll := func(s []Source) Job {
		j, st := b.m.Begin(1, b.now)
		b.ok(st)
		for k := range s {
			b.ok(b.m.AddSource(j, s[k]))
		}
		b.ok(b.m.AddRuns(j, runs))
		b.ok(b.m.Commit(j, b.now))
		return j
	}
	read := func(s Source) Job { return readAll([]Source{s}) }
	for _, tc := range []struct {
		name string
		call func()
	}{
		{"an idle step", func() { b.step(1) }},
		{"a read of ours", func() { read(s); b.step(1); b.step(1); drain() }},
		{"a stock read", func() { read(stock); b.step(1); drain() }},
		{"a read from two ranks, each with half of the heads", func() { readAll(halves); b.step(1); b.step(1); drain() }},
		{"an abort", func() {
			j, _ := b.m.Begin(1, b.now)
			b.ok(b.m.AddSource(j, s))
			b.ok(b.m.AddRuns(j, runs))
			b.ok(b.m.Abort(j))
		}},
		{"an invalid run", func() {
			j, _ := b.m.Begin(1, b.now)
			b.ok(b.m.AddSource(j, s))
			if b.m.AddRuns(j, []record.Run{{Local: 4000, N: 1}}) != Invalid {
				t.Error("taken")
			}
			b.ok(b.m.Abort(j))
		}},
		{"a cancelled read", func() {
			q.hold = true
			j := read(s)
			b.step(1)
			b.ok(b.m.Cancel(j, b.now))
			q.hold = false
			b.step(1)
			drain()
		}},
		{"a time-out", func() {
			q.hold = true
			read(s)
			b.step(1)
			b.step(readTimeout)
			q.hold = false
			b.step(1)
			drain()
		}},
		{"rows", func() {
			for range 8 {
				b.ok(b.m.ReadRow(1, 3, rowAddr(3, 1), 0, transport.DRAM, 32, b.now))
			}
			b.step(1)
			drain()
		}},
		{"questions", func() { b.m.InFlight(1); b.m.NeedsStep(); b.m.NextDue(); b.m.Gauges(); b.m.Open() }},
	} {
		if n := testing.AllocsPerRun(100, tc.call); n != 0 {
			t.Errorf("%s: %v allocations", tc.name, n)
		}
	}
	b.wantIdle()
}

// per step, 1,000 reads of one part each in flight.
func BenchmarkStepInFlight1000(b *testing.B) {
	w, q := newQuiet(b, Config{ReadsMax: 1000, RowsMax: 16, RunsMax: 1000 * runsPiece}, 64, 1)
	q.hold = true
	s := w.source(1, 0, 1)
	s.Remote.Regions[0].BlockLen, s.Remote.Regions[0].BlockStride = 16384, 16384
	for i := range uint64(1000) {
		w.commit(i, 4, s)
	}
	for range 8 {
		w.step(1)
	}
	if w.m.Gauges().Pending != 1000 {
		b.Fatal(w.m.Gauges())
	}
	b.ReportAllocs()
	for b.Loop() {
		w.m.Step(w.now)
	}
}

// per step, nothing to do.
func BenchmarkStepIdle(b *testing.B) {
	w, _ := newQuiet(b, Config{ReadsMax: 1024, RowsMax: 4096}, 64, 1)
	b.ReportAllocs()
	for b.Loop() {
		w.m.Step(w.now)
	}
}

// per read of 16,384 blocks in 64 regions: build, plan and post over as many steps as it takes, fence, outcome.
func benchPlan(b *testing.B, runs []record.Run, stride uint64, halves bool) {
	const regions, blocks = 64, 65536
	w, _ := newQuiet(b, Config{ReadsMax: 16, RowsMax: 16, RunsMax: 1 << 16}, blocks, regions)
	f := w.source(1, 0, regions)
	f.Remote = layoutAt(kvBase, regions, blocks, 16384)
	for i := range f.Remote.Regions {
		f.Remote.Regions[i].BlockStride += stride
	}
	s := w.mapped(f)
	if halves {
		s = w.halves()
	}
	w.m.Counters = Counters{}
	b.ReportAllocs()
	for b.Loop() {
		j, _ := w.m.Begin(1, w.now)
		for k := range s {
			w.ok(w.m.AddSource(j, s[k]))
		}
		for at := 0; at < len(runs); at += record.RunsMax {
			w.ok(w.m.AddRuns(j, runs[at:min(at+record.RunsMax, len(runs))]))
		}
		w.ok(w.m.Commit(j, w.now))
		for {
			if o, ok := w.m.NextOutcome(); ok {
				if o.Status != record.ReadOK {
					b.Fatal(o)
				}
				break
			}
			w.step(1)
		}
	}
	descs := float64(w.m.Counters.Descs) / float64(b.N)
	b.ReportMetric(descs, "descs/read")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/descs, "ns/desc")
}

func BenchmarkPlanContiguous16k(b *testing.B) {
	runs := make([]record.Run, 16384)
	for i := range runs {
		runs[i] = record.Run{Local: uint32(i), Remote: uint32(i + 100), N: 1}
	}
	benchPlan(b, runs, 0, false)
}

func BenchmarkPlanContiguousStrided16k(b *testing.B) {
	benchPlan(b, []record.Run{{N: 16384}}, 64, false)
}

func BenchmarkPlanScattered16k(b *testing.B) {
	runs := make([]record.Run, 16384)
	for i := range runs {
		runs[i] = record.Run{Local: uint32(i * 3), Remote: uint32(i*7) % 65536, N: 1}
	}
	benchPlan(b, runs, 0, false)
}

// The same from two ranks with half of the heads each, keys and values in one block.
func BenchmarkPlanTwoRanks16k(b *testing.B) {
	benchPlan(b, []record.Run{{N: 16384}}, 0, true)
}
