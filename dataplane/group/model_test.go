package group_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane"
	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/group"
	"github.com/kvlease/kvlease/dataplane/host"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/stream"
	"github.com/kvlease/kvlease/dataplane/topology"
)

// modelled is what the test knows of one lease or request.
type modelled struct {
	handle   record.Handle
	lease    bool
	read     bool
	untrack  bool
	ends     int // events seen
	backs    int
	gone     int
	flag     bool
	over     bool
	expected bool
	long     bool // its id
}

type modelRun struct {
	t       *testing.T
	r       *rand.Rand
	now     clock.Instant
	mem     *record.Memory
	g       *group.Group
	h       *host.Host
	ranks   []*fakeRank
	leases  map[record.Handle]*modelled
	tracks  map[record.Handle]*modelled
	engine  uint64
	lossy   float64
	anyLost bool
	ids     int
}

func newModel(t *testing.T, seed uint64) *modelRun {
	m := &modelRun{t: t, r: rand.New(rand.NewPCG(seed, 3)), now: clock.Instant(time.Hour), mem: memory(t, 1, 1<<12),
		leases: map[record.Handle]*modelled{}, tracks: map[record.Handle]*modelled{}}
	m.mem.Slots, m.mem.Tracks = m.mem.Slots[:16], m.mem.Tracks[:16]
	m.mem.Control.BeginEra(9, [2]uint64{1, 2})
	out, err := dataplane.NewEvents(m.mem.Events, nil)
	must(t, err)
	n := 1 + m.r.IntN(4)
	var carriers []stream.Carrier
	for range n {
		w := &wireEnd{room: 9000 + m.r.IntN(4)*4000, gap: true}
		w.lose = func() bool { return m.r.Float64() < m.lossy }
		m.ranks = append(m.ranks, &fakeRank{w: w, leases: map[record.Handle]*fakeLease{}, tracks: map[record.Handle]*fakeTrack{}})
		carriers = append(carriers, w)
	}
	m.g, err = group.New(group.Config{
		Self: topology.Shape{TP: uint32(n), PP: 1}, Duration: duration, ExpectMax: time.Second, Engines: 4, RunsMax: 32 * 12, MapMax: 64,
		LongIDs: 3, EventsStepMax: 1 + m.r.IntN(8), Seed: seed,
	}, m.mem, carriers, out)
	must(t, err)
	m.h, err = host.New(m.mem, nil)
	must(t, err)
	m.engine, err = m.g.AddEngine(group.EngineDesc{ID: "peer", TP: uint32(n)})
	must(t, err)
	return m
}

func pick[K comparable, V any](r *rand.Rand, all map[K]V, ok func(K, V) bool) (k K, v V, found bool) {
	n := 0
	for key, val := range all { // any one: the order of a map is not the seed's, the events do not depend on which
		if ok(key, val) {
			if n++; r.IntN(n) == 0 {
				k, v, found = key, val, true
			}
		}
	}
	return k, v, found
}

func (m *modelRun) id() []byte {
	m.ids++
	id := fmt.Appendf(nil, "request-%d", m.ids)
	if m.r.IntN(8) == 0 {
		id = append(id, make([]byte, 200)...)
	}
	return id
}

// act does one random thing.
func (m *modelRun) act() {
	f := m.ranks[m.r.IntN(len(m.ranks))]
	switch m.r.IntN(14) {
	case 0, 1:
		if h, err := m.h.Grant(host.Grant{ID: m.id(), Blocks: 3, User: 7}, m.now); err == nil {
			m.begin(h)
		}
	case 2:
		if h, err := m.h.Expect(m.id()); err == nil {
			m.leases[h] = &modelled{handle: h, expected: true}
		}
	case 3:
		if h, k, ok := pick(m.r, m.leases, func(_ record.Handle, k *modelled) bool { return k.expected && !k.over }); ok {
			granted, err := m.h.Grant(host.Grant{ID: m.id(), Blocks: 3, User: 7, Expected: h}, m.now)
			if err == nil {
				if granted == h {
					k.over = true
				}
				m.begin(granted)
			}
		}
	case 4:
		if h, k, ok := pick(m.r, m.leases, func(_ record.Handle, k *modelled) bool { return !k.over }); ok {
			if m.h.Cancel(h) == nil && k.expected {
				k.over = true // no event follows, unless it has lapsed already
			}
		}
	case 5:
		if h, _, ok := pick(m.r, m.leases, func(_ record.Handle, k *modelled) bool { return !k.over && k.lease }); ok {
			_ = m.h.Revoke(h)
		}
	case 6, 7:
		id := m.id()
		if h, err := m.h.Track(m.engine, &host.Remote{ID: id}, nil, 8, m.now); err == nil {
			m.tracks[h] = &modelled{handle: h, long: len(id) > 96}
		}
	case 8, 9:
		if h, k, ok := pick(m.r, m.tracks, func(_ record.Handle, k *modelled) bool { return !k.over && !k.read && !k.untrack }); ok {
			if m.h.Read(h, []record.Run{{Local: 0, N: 1}}) == nil {
				k.read = true
			}
		}
	case 10:
		if h, k, ok := pick(m.r, m.tracks, func(_ record.Handle, k *modelled) bool { return !k.over && !k.untrack }); ok {
			if m.h.Untrack(h) == nil {
				k.untrack = true
			}
		}
	case 11:
		if f.lost {
			return
		}
		if h, _, ok := pick(m.r, f.leases, func(_ record.Handle, k *fakeLease) bool { return k.reason == 0 && !k.expected }); ok {
			f.end(h, []int32{record.FreedCompleted, record.FreedReleased, record.FreedExpired, record.FreedRevoked}[m.r.IntN(4)])
		}
	case 12:
		if f.lost {
			return
		}
		if h, k, ok := pick(m.r, f.tracks, func(_ record.Handle, k *fakeTrack) bool { return k.got > 0 && k.got == k.parts && k.outcome < 0 }); ok {
			outcome := int32(0)
			if m.r.IntN(3) == 0 {
				outcome = int32(m.r.IntN(7))
			}
			f.finish(h, k, outcome, outcome != 0 && m.r.IntN(2) == 0)
		}
	case 13:
		if f.lost {
			return
		}
		if h, k, ok := pick(m.r, f.tracks, func(_ record.Handle, k *fakeTrack) bool { return k.held && !k.back }); ok {
			f.back(h, k)
		}
	}
}

// begin notes a grant. L11: no rank that lives may still hold the slot's former use.
func (m *modelRun) begin(h record.Handle) {
	m.leases[h] = &modelled{handle: h, lease: true}
	for i, f := range m.ranks {
		for old, k := range f.leases {
			if old.Slot() == h.Slot() && old != h && k.reason == 0 && !k.expected && !f.lost {
				m.t.Fatalf("slot %d is granted again while rank %d holds use %d (L11)", h.Slot(), i, old.Use())
			}
		}
	}
}

func (m *modelRun) step() {
	m.now = m.now.Add(time.Duration(1+m.r.IntN(50)) * time.Millisecond)
	for _, f := range m.ranks {
		for n := m.r.IntN(30); n > 0 && len(f.w.down) > 0 && !f.lost; n-- {
			r := f.w.down[0]
			f.w.down = f.w.down[1:]
			f.take(m.t, r)
		}
	}
	m.g.Step(m.now)
	var buf [8]record.Event
	for {
		n := m.h.Poll(buf[:], m.now)
		for i := range buf[:n] {
			m.hear(&buf[i])
		}
		if n < len(buf) {
			return
		}
	}
}

var worstOf = map[int32]int{0: 0, record.ReadCancelled: 1, record.ReadTimeout: 2, record.ReadFailed: 3, record.ReadLost: 4, record.ReadUnproven: 5, record.ReadStale: 6}

func (m *modelRun) hear(ev *record.Event) {
	h := record.Handle(ev.Handle)
	switch ev.Kind {
	case record.EvFreed:
		k := m.leases[h]
		if k == nil || !k.lease || k.ends != 0 {
			m.t.Fatalf("freed %+v: unknown, or told before (L3)", ev)
		}
		k.ends, k.over = 1, true
		for i, f := range m.ranks {
			said := int32(ev.Reasons >> (4 * i) & 0xF)
			switch is := f.leases[h]; {
			case f.lost && said == record.FreedLost:
			case is == nil || is.reason == 0 || is.reason != said:
				m.t.Fatalf("freed %+v: reason %d of rank %d, which has %+v", ev, said, i, is)
			}
		}
	case record.EvExpectLapsed:
		k := m.leases[h]
		if k == nil || k.lease || k.ends != 0 {
			m.t.Fatalf("lapsed %+v: %+v", ev, k)
		}
		k.ends, k.over = 1, true
	case record.EvReadDone, record.EvReadFailed:
		k := m.tracks[h]
		if k == nil || k.ends != 0 || !k.read {
			m.t.Fatalf("outcome %+v: unknown, or told before: %+v", ev, k)
		}
		k.ends, k.over, k.flag = 1, true, ev.Flags != 0
		if (ev.Kind == record.EvReadDone) != (ev.Status == record.ReadOK) {
			m.t.Fatalf("outcome %+v", ev)
		}
		worst, held, told := int32(0), false, false
		for _, f := range m.ranks {
			is := f.tracks[h]
			status := int32(record.ReadLost)
			switch {
			case f.lost && (is == nil || is.outcome < 0):
			case is == nil:
				if ev.Status == record.ReadFailed || (k.long || m.anyLost) && ev.Status == record.ReadLost { // no room at the host: for its runs, for its id
					return
				}
				m.t.Fatalf("outcome %+v before a rank knew of it", ev)
			case is.outcome >= 0:
				status, told = is.outcome, true
			case is.retired:
				status = record.ReadCancelled
			default:
				if ev.Status == record.ReadFailed || m.anyLost && ev.Status == record.ReadLost {
					return
				}
				m.t.Fatalf("outcome %+v while a rank has none: %+v", ev, is)
			}
			held = held || !f.lost && is != nil && is.held && !is.back
			if worstOf[status] > worstOf[worst] {
				worst = status
			}
		}
		if ev.Status != worst && !m.anyLost && (told || ev.Status != record.ReadFailed) { // a read that the host refused has none
			m.t.Fatalf("outcome %+v, the worst of the ranks' is %d", ev, worst)
		}
		if held && ev.Flags == 0 {
			m.t.Fatalf("outcome %+v, and a rank holds blocks", ev)
		}
	case record.EvBlocksBack:
		k := m.tracks[h]
		if k == nil || !k.flag || k.backs != 0 {
			m.t.Fatalf("back %+v: %+v", ev, k)
		}
		k.backs++
		for _, f := range m.ranks {
			if is := f.tracks[h]; is != nil && is.held && !is.back && !f.lost {
				m.t.Fatalf("back %+v while a rank holds blocks", ev)
			}
		}
	case record.EvLeaseGone:
		if k := m.tracks[h]; k == nil || k.gone != 0 {
			m.t.Fatalf("gone %+v twice", ev)
		} else {
			k.gone++
		}
	case record.EvRankDown:
	default:
		m.t.Fatalf("event %+v", ev)
	}
}

// settle ends all that is alive and checks that nothing is left.
func (m *modelRun) settle() {
	m.lossy = 0
	for round := 0; round < 4000; round++ {
		for h, k := range m.leases {
			if !k.over {
				_ = m.h.Cancel(h)
				if k.expected {
					k.over = k.ends != 0 || k.over
				}
			}
		}
		for h, k := range m.tracks {
			if !k.over && !k.untrack && m.h.Untrack(h) == nil {
				k.untrack = true
			}
		}
		for _, f := range m.ranks {
			for h, k := range f.tracks {
				if k.held && !k.back && !f.lost {
					f.back(h, k)
				}
			}
		}
		m.step()
		if m.g.Alive() == 0 {
			break
		}
	}
	if m.g.Alive() != 0 {
		m.t.Fatalf("left: %+v", m.g.Gauges())
	}
	for h, k := range m.leases {
		if k.lease && k.ends != 1 {
			m.t.Errorf("lease %x has %d ends (L3)", uint64(h), k.ends)
		}
	}
	for h, k := range m.tracks {
		if k.read && k.ends != 1 || k.flag && k.backs != 1 {
			m.t.Errorf("request %x: %+v", uint64(h), k)
		}
	}
	if v := m.g.Gauges(); v.RunsLeft != 12 || v.LongIDsLeft != 3 || v.LongRemotes != 3 || v.BlocksHeld != 0 || v.Reading != 0 {
		m.t.Errorf("pools at the end: %+v", v)
	}
}

var modelRuns = flag.Int("group.runs", 300, "runs of the model")

func TestAModelOfHostAndRanksHoldsUnderLossesFullStreamsAndLostRanks(t *testing.T) {
	first := uint64(time.Now().UnixNano())
	runs := *modelRuns
	if testing.Short() {
		runs = 60
	}
	fulls := uint64(0)
	for i := range runs {
		seed := first + uint64(i)
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			m := newModel(t, seed)
			m.lossy = []float64{0, 0.003, 0.03, 0.2}[m.r.IntN(4)]
			lose := -1
			if m.r.IntN(3) == 0 {
				lose = m.r.IntN(600)
			}
			for n := range 600 {
				if n == lose {
					f := m.ranks[m.r.IntN(len(m.ranks))]
					f.lost, f.w.lost, m.anyLost = true, true, true
				}
				m.act()
				if m.r.IntN(3) == 0 {
					m.step()
				}
			}
			m.settle()
			fulls += m.g.Counters.FullStates
		})
		if !ok {
			return
		}
	}
	if fulls < uint64(runs) {
		t.Errorf("%d full states in %d runs: nothing was healed", fulls, runs)
	}
}
