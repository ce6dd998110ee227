package group_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

const (
	chunk  = 4
	chunks = blocksN / chunk
)

// truth is an owner and readers under faults. An owner's blocks are written anew in the moment in which they are freed, a
// reader's in which they are given back: whatever is reported as read must still be what was granted.
type truth struct {
	t       *testing.T
	l       *lab
	r       *rand.Rand
	p       *engine
	readers []*truthReader
	free    []uint32 // chunks of the owner
	leases  map[record.Handle]*truthLease
	open    []*truthLease // granted, in order
	ids     int
	junk    uint64
	loss    float64
	quiet   bool
	deadly  bool
	done    int
	failed  [8]int
}

type truthLease struct {
	h      record.Handle
	remote *host.Remote
	req    uint64
	chunk  uint32
	freed  bool
}

type truthReader struct {
	e     *engine
	peer  uint64
	free  []uint32
	marks [chunks]uint64 // what a free chunk holds
	reqs  map[record.Handle]*truthReq
	kept  []*truthReq
}

type truthReq struct {
	lease         *truthLease
	chunk         uint32
	read, untrack bool
	outcome, held bool
	until         int
}

func (m *truth) write(e *engine, c uint32) (mark uint64) {
	m.junk++
	for _, r := range e.ranks {
		for off := int(c) * chunk * blockLen; off < int(c+1)*chunk*blockLen; off += 8 {
			binary.LittleEndian.PutUint64(r.kv[off:], 0xdead<<48|m.junk)
		}
	}
	return 0xdead<<48 | m.junk
}

func holds(r *rank, c uint32, mark uint64) bool {
	for off := int(c) * chunk * blockLen; off < int(c+1)*chunk*blockLen; off += 8 {
		if binary.LittleEndian.Uint64(r.kv[off:]) != mark {
			return false
		}
	}
	return true
}

func isRequest(r *rank, c uint32, request uint64) bool {
	for b := uint32(0); b < chunk; b++ {
		for off := 0; off < blockLen; off += 8 {
			if binary.LittleEndian.Uint64(r.kv[int(c*chunk+b)*blockLen+off:]) != request<<32^uint64(off)<<8^uint64(b) {
				return false
			}
		}
	}
	return true
}

func newTruth(t *testing.T, seed uint64) *truth {
	m := &truth{t: t, l: newLab(t), r: rand.New(rand.NewPCG(seed, 5)), leases: map[record.Handle]*truthLease{}}
	shapes := []topology.Shape{{TP: 1, PP: 1}, {TP: 2, PP: 1}, {TP: 4, PP: 1}}
	pick := func() topology.Shape { return shapes[m.r.IntN(len(shapes))] }
	kinds := []string{stream.KindProcess, stream.KindDelta}
	m.p = m.l.engine("P", pick(), kinds[m.r.IntN(2)], nil)
	for n := range 1 + m.r.IntN(2) {
		d := &truthReader{e: m.l.engine(fmt.Sprint("D", n), pick(), kinds[m.r.IntN(2)], nil), reqs: map[record.Handle]*truthReq{}}
		m.readers = append(m.readers, d)
		for c := range uint32(chunks) {
			d.free = append(d.free, c)
			d.marks[c] = m.write(d.e, c)
		}
	}
	for c := range uint32(chunks) {
		m.free = append(m.free, c)
		m.write(m.p, c)
	}
	for _, e := range m.l.engines {
		e.ready()
		for _, r := range e.ranks {
			r.fault = func(_ bool, _ int, msg []byte) [][]byte {
				if m.r.Float64() < m.loss {
					return nil
				}
				return [][]byte{msg}
			}
		}
	}
	for _, d := range m.readers {
		d.peer = d.e.know(m.p)
	}
	return m
}

// knowClock tells a reader how the owner's clock stands; here all engines have one.
func (m *truth) knowClock(d *truthReader) {
	var off clock.Offset
	off.Observe(clock.Sample{Sent: m.l.now, Received: m.l.now, Stamp: clock.RemoteInstant(m.l.now)})
	must(m.t, d.e.group.SetOffset(d.peer, off))
}

func (m *truth) anyRank(e *engine) *rank { return e.ranks[m.r.IntN(len(e.ranks))] }

// handles are in order, so that a seed is one run.
func (d *truthReader) handles() []record.Handle { return slices.Sorted(maps.Keys(d.reqs)) }

func (m *truth) step(d time.Duration) {
	m.l.step(d)
	for _, ev := range m.p.evs {
		if ev.Kind != record.EvFreed {
			continue
		}
		k := m.leases[record.Handle(ev.Handle)]
		if k == nil || k.freed {
			m.t.Fatalf("freed %+v: unknown, or told before (L3)", ev)
		}
		k.freed = true
		for _, r := range m.p.ranks {
			if r.fence(k.h) == 0 {
				m.t.Fatalf("freed as %d (%x) while the row of rank %d says that it may be read (L10)", ev.Status, ev.Reasons, r.n)
			}
		}
		m.write(m.p, k.chunk)
		m.free = append(m.free, k.chunk)
		for i, o := range m.open {
			if o == k {
				m.open = append(m.open[:i], m.open[i+1:]...)
				break
			}
		}
		if len(m.open) < 20 { // still known to readers
			m.open = append([]*truthLease{k}, m.open...)
		}
		if len(m.open) > 40 {
			m.open = m.open[1:]
		}
	}
	m.p.evs = nil
	for _, d := range m.readers {
		m.hear(d)
	}
}

func (m *truth) hear(d *truthReader) {
	for _, ev := range d.e.evs {
		q := d.reqs[record.Handle(ev.Handle)]
		switch ev.Kind {
		case record.EvReadDone:
			if q == nil || !q.read || q.outcome {
				m.t.Fatalf("%s: done %+v of nothing", d.e.id, ev)
			}
			m.done++
			q.outcome, q.until = true, 1+m.r.IntN(10)
			d.kept = append(d.kept, q)
			delete(d.reqs, record.Handle(ev.Handle))
		case record.EvReadFailed:
			if q == nil || !q.read || q.outcome {
				m.t.Fatalf("%s: failed %+v of nothing", d.e.id, ev)
			}
			m.failed[ev.Status]++
			q.outcome, q.held = true, ev.Flags&record.FlagBlocksHeld != 0
			if !q.held {
				m.give(d, q)
				delete(d.reqs, record.Handle(ev.Handle))
			}
		case record.EvBlocksBack:
			if q == nil || !q.held {
				m.t.Fatalf("%s: back %+v of nothing", d.e.id, ev)
			}
			m.give(d, q)
			delete(d.reqs, record.Handle(ev.Handle))
		}
	}
	d.e.evs = nil
	var kept []*truthReq
	for _, q := range d.kept {
		for _, r := range d.e.ranks {
			if !r.gone && !isRequest(r, q.chunk, q.lease.req) {
				m.t.Fatalf("%s rank %d: request %d was reported as read, and its blocks are not what was granted", d.e.id, r.n, q.lease.req)
			}
		}
		if q.until--; q.until > 0 {
			kept = append(kept, q)
			continue
		}
		m.give(d, q)
	}
	d.kept = kept
}

func (m *truth) give(d *truthReader, q *truthReq) {
	d.marks[q.chunk] = m.write(d.e, q.chunk)
	d.free = append(d.free, q.chunk)
}

// settle takes the faults away: everything must come to its end.
func (m *truth) settle() {
	m.loss, m.quiet = 0, true
	for _, d := range m.readers {
		m.knowClock(d)
	}
	for _, e := range m.l.engines {
		for _, r := range e.ranks {
			r.stopped = r.gone
			r.agent.HoldReads(false)
			r.agent.FailNone()
		}
	}
	end := m.l.now.Add(20 * duration)
	for m.l.now < end {
		for _, d := range m.readers {
			for _, h := range d.handles() {
				q := d.reqs[h]
				if !q.untrack && !q.outcome && d.e.host.Untrack(h) == nil {
					q.untrack = true
					if !q.read {
						delete(d.reqs, h)
					}
				}
			}
		}
		m.step(500 * time.Millisecond)
		if m.l.idle() == "" {
			break
		}
	}
	if what := m.l.idle(); what != "" {
		m.t.Errorf("left after %v: %s", 20*duration, what)
		for _, e := range m.l.engines {
			m.t.Logf("%s over %s, %v", e.id, e.kind, e.shape)
			for _, r := range e.ranks {
				m.t.Logf("rank %d stopped %v broken %v: %+v, tracks %+v", r.n, r.stopped, r.broken, e.group.Rank(int(r.n)), r.plane.Tracker.Gauges())
			}
		}
	}
	for _, d := range m.readers {
		if len(d.reqs) != 0 {
			m.t.Errorf("%s: %d requests without an end", d.e.id, len(d.reqs))
		}
		for _, c := range d.free {
			for _, r := range d.e.ranks {
				if !r.gone && !holds(r, c, d.marks[c]) {
					m.t.Errorf("%s rank %d: something wrote to chunk %d while it was free", d.e.id, r.n, c)
				}
			}
		}
	}
}

var truthRuns = flag.Int("group.truths", 40, "runs of the simulation of data")

func TestWhatIsReportedAsReadIsWhatWasGrantedUnderFaults(t *testing.T) {
	first := uint64(time.Now().UnixNano())
	done := 0
	var failed [8]int
	for i := range *truthRuns {
		seed := first + uint64(i)
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newTruth(t, seed)
			m.deadly = m.r.IntN(3) == 0
			m.loss = []float64{0, 0, 0.02, 0.2}[m.r.IntN(4)]
			runTruth(m)
			done += m.done
			for k, n := range m.failed {
				failed[k] += n
			}
		})
		if !ok {
			return
		}
	}
	t.Logf("%d reads done, failed by status %v", done, failed)
}

func runTruth(m *truth) {
	for range 800 {
		m.act()
		if m.r.IntN(3) == 0 {
			m.step(time.Duration(1+m.r.IntN([]int{5, 100, 3000}[m.r.IntN(3)])) * time.Millisecond)
		}
	}
	m.settle()
}
