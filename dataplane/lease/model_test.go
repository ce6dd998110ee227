package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/record"
)

// modelLease is what a plain map knows of a lease or an expectation.
type modelLease struct {
	id        string
	handle    record.Handle
	granted   bool
	fixed     bool
	end       clock.Instant // of the first term
	native    clock.Instant // last heartbeats, -1 none
	stock     clock.Instant
	by        Reader // last engine of ours
	named     bool   // by ours
	namedEver bool
	shared    bool
	unchecked bool
	stockEver bool
	revoked   bool // revoke was said and waits
	released  bool // kept
	done      bool // kept
	sets      map[string]map[string]bool
	need      map[string]uint32
	look      clock.Instant // first step that must have looked at it, -1 none
	note      uint64        // arrivals at the step of the second look
	noted     bool
}

type model struct {
	t       *testing.T
	r       *rig
	rng     *rand.Rand
	cfg     Config
	live    map[record.Handle]*modelLease
	ids     int
	stalled clock.Instant // last step after a gap
	ended   map[uint16]int
}

// rounding is what units may add to a deadline and the looks to a wait.
const rounding = 4 * nsPerUnit

func (m *model) deadline(l *modelLease) clock.Instant {
	d := l.end
	if l.fixed {
		return d
	}
	if l.native >= 0 {
		d = max(d, l.native.Add(m.cfg.Extension))
	}
	if l.stock >= 0 {
		d = max(d, l.stock.Add(m.cfg.Extension))
	}
	return d
}

// checkEnd asks whether an end may have this reason now.
func (m *model) checkEnd(e End) {
	l := m.live[e.Handle]
	if l == nil {
		m.t.Fatalf("end of %#x, which is not alive: a second end, or never granted", uint64(e.Handle))
	}
	delete(m.live, e.Handle)
	if e.Lapsed {
		m.t.Fatalf("expectation %s lapsed before its bound", l.id)
	}
	m.ended[e.Reason]++
	if e.Reason != record.FreedExpired {
		m.t.Fatalf("lease %s ended with reason %d out of the blue", l.id, e.Reason)
	}
	d := m.deadline(l)
	if m.r.now < d.Add(m.cfg.Settle) {
		m.t.Fatalf("lease %s expired at %v, deadline %v", l.id, m.r.now, d)
	}
	if !l.fixed && l.stock >= 0 && l.stock > l.native+nsPerUnit && m.r.now < d.Add(m.cfg.StockLinger) {
		m.t.Fatalf("lease %s expired at %v within the linger after %v", l.id, m.r.now, d)
	}
}

// checkHeld asks, after a step, whether every lease past the bound of L4 has ended.
func (m *model) checkHeld() {
	for _, l := range m.live {
		if !l.granted {
			continue
		}
		first := m.deadline(l).Add(m.cfg.Jitter + tick + rounding)
		if l.stock >= 0 && l.stock >= l.native-nsPerUnit {
			first = first.Add(m.cfg.StockLinger)
		}
		if m.r.now < first {
			l.look, l.noted = -1, false
			continue
		}
		if l.look < 0 { // at the latest this step has looked first
			l.look = m.r.now
		}
		second := l.look.Add(m.cfg.Settle + rounding)
		if m.stalled >= m.deadline(l) {
			second = l.look.Add(m.cfg.Interval + rounding)
		}
		if m.r.now < second {
			continue
		}
		if !l.noted {
			l.noted, l.note = true, m.r.arrived
		}
		if m.r.applied >= l.note {
			m.t.Fatalf("lease %s still held at %v, deadline %v, first look %v", l.id, m.r.now, m.deadline(l), l.look)
		}
	}
}

// takeEnd takes the end that a message or submission just caused.
func (m *model) takeEnd(l *modelLease, reason uint16) {
	e, ok := m.r.t.NextEnd()
	if !ok || e.Handle != l.handle || e.Reason != reason || e.Lapsed {
		m.t.Fatalf("after the last word about %s the next end is %+v (%v), want its own with reason %d", l.id, e, ok, reason)
	}
	m.r.t.PopEnd()
	delete(m.live, l.handle)
	m.ended[reason]++
}

func (m *model) pick() *modelLease {
	// By handle order, so that a seed gives one order.
	var best *modelLease
	n := m.rng.IntN(max(len(m.live), 1))
	for s := range uint32(len(m.r.mem.Slots)) {
		for h, l := range m.live {
			if h.Slot() == s {
				if best = l; n == 0 {
					return best
				}
				n--
			}
		}
	}
	return best
}

func (m *model) grantNew(l *modelLease) {
	ttls := []time.Duration{0, time.Second, 3 * time.Second, 40 * time.Second}
	term := ttls[m.rng.IntN(len(ttls))]
	changes := []func(*record.Grant){ttl(term)}
	if m.rng.IntN(10) == 0 {
		l.fixed = true
		changes = append(changes, fixed)
	}
	if term == 0 {
		term = m.cfg.Duration
	}
	if l.handle == 0 {
		h, ok := m.r.take(record.Granted)
		if !ok {
			return
		}
		l.handle = h
		m.r.say(h, l.id, changes...)
	} else if !m.r.grantExpected(l.handle, l.id, changes...) {
		m.t.Fatalf("expectation %s is gone", l.id)
	}
	l.granted, l.end = true, m.r.now.Add(term)
	l.unchecked = l.stockEver || !l.namedEver
	m.live[l.handle] = l
	switch {
	case l.released && !l.shared && !l.unchecked:
		m.takeEnd(l, record.FreedReleased)
	case l.done:
		m.takeEnd(l, record.FreedCompleted)
	}
}

func (m *model) want(l *modelLease, what string, got, want Outcome) {
	if got != want {
		m.t.Fatalf("at %v %s of %s: outcome %d, want %d (%+v)", m.r.now, what, l.id, got, want, *l)
	}
}

// name is L12; it reports whether a waiting revoke went through.
func (m *model) name(l *modelLease, d Reader) bool {
	d.Rank = 0
	if l.named && l.by != d {
		l.shared = true
	}
	first := !l.namedEver
	l.by, l.named, l.namedEver = d, true, true
	if l.granted && first && !l.stockEver {
		l.unchecked = false
		if l.revoked {
			return true
		}
	}
	return false
}

// report is L5.
func (m *model) report(l *modelLease, group, reader string, n uint32) (complete, repeated bool) {
	if l.sets == nil {
		l.sets, l.need = map[string]map[string]bool{}, map[string]uint32{}
	}
	if l.sets[group] == nil {
		l.sets[group] = map[string]bool{}
	}
	repeated = l.sets[group][reader]
	l.sets[group][reader] = true
	l.need[group] = max(l.need[group], n)
	return len(l.sets[group]) >= int(l.need[group]), repeated
}

func (m *model) reported(l *modelLease, what string, got Outcome, complete, repeated bool) {
	switch {
	case l.done:
		m.want(l, what, got, Repeated)
	case complete && l.granted:
		m.want(l, what, got, Ended)
		m.takeEnd(l, record.FreedCompleted)
	case complete:
		m.want(l, what, got, Kept)
		l.done = true
	case repeated:
		m.want(l, what, got, Repeated)
	case l.granted:
		m.want(l, what, got, Applied)
	default:
		m.want(l, what, got, Kept)
	}
}

func (m *model) op() {
	r := m.r
	d := []Reader{engineD, engineE, {Engine: 0xD, Epoch: 2}}[m.rng.IntN(3)].at(uint32(m.rng.IntN(3)))
	switch k := m.rng.IntN(20); k {
	case 0, 1: // grant
		m.ids++
		m.grantNew(&modelLease{id: fmt.Sprint("r", m.ids), native: -1, stock: -1, look: -1})
		return
	case 2: // expect
		h, ok := r.take(record.Expected)
		if !ok {
			return
		}
		m.ids++
		l := &modelLease{id: fmt.Sprint("r", m.ids), handle: h, native: -1, stock: -1, look: -1}
		r.t.Expect(h, []byte(l.id), r.now)
		m.live[h] = l
		return
	case 3, 4, 5, 6, 7: // a step
		gap := time.Duration(m.rng.IntN(300)) * time.Millisecond
		if m.rng.IntN(30) == 0 {
			gap = m.cfg.StallGap + time.Duration(m.rng.IntN(2000))*time.Millisecond
		}
		m.stepAfter(gap)
		return
	}
	l := m.pick()
	if l == nil {
		return
	}
	switch m.rng.IntN(12) {
	case 0, 1, 2:
		want := Applied
		if !l.granted {
			want = Kept
		} else if l.fixed {
			want = Fixed
		}
		var got Outcome
		if m.rng.IntN(2) == 0 {
			got = r.beat(l.id)
		} else {
			out := make([]Outcome, 1)
			r.t.RenewIDs([][]byte{[]byte(l.id)}, r.now, out)
			got = out[0]
		}
		m.want(l, "stock heartbeat", got, want)
		l.stock, l.stockEver = r.now, true
		l.unchecked = l.unchecked || l.granted
	case 3, 4, 5:
		got := r.t.Renew(r.entry(l.handle), d, r.now)
		if m.name(l, d) {
			m.want(l, "native heartbeat", got, Ended)
			m.takeEnd(l, record.FreedRevoked)
			return
		}
		want := Applied
		if !l.granted {
			want = Kept
		} else if l.fixed {
			want = Fixed
		}
		m.want(l, "native heartbeat", got, want)
		l.native = r.now
	case 6, 7:
		agent, n := fmt.Sprint("agent", m.rng.IntN(4)), uint32(1+m.rng.IntN(3))
		got := r.done(l.id, agent, n)
		l.stockEver = true
		l.unchecked = l.unchecked || l.granted
		if l.namedEver {
			m.want(l, "stock completion", got, Refused)
			return
		}
		complete, repeated := m.report(l, "stock", agent, n)
		m.reported(l, "stock completion", got, complete, repeated)
	case 8:
		n := uint32(1 + m.rng.IntN(3))
		got := r.t.Complete(r.entry(l.handle), d, uint16(n), r.now)
		if m.name(l, d) {
			m.want(l, "native completion", got, Ended)
			m.takeEnd(l, record.FreedRevoked)
			return
		}
		complete, repeated := m.report(l, fmt.Sprint(d.Engine, d.Epoch), fmt.Sprint(d.Rank), n)
		m.reported(l, "native completion", got, complete, repeated)
	case 9:
		got := r.t.Release(r.entry(l.handle), d, r.now)
		switch {
		case m.name(l, d):
			m.want(l, "release", got, Ended)
			m.takeEnd(l, record.FreedRevoked)
		case !l.granted:
			m.want(l, "release", got, Kept)
			l.released = true
		case l.shared || l.unchecked:
			m.want(l, "release", got, Refused)
			l.named = false
		default:
			m.want(l, "release", got, Ended)
			m.takeEnd(l, record.FreedReleased)
		}
	case 10:
		if m.rng.IntN(2) == 0 {
			r.t.Revoke(l.handle, r.now)
			switch {
			case !l.granted:
				delete(m.live, l.handle)
			case l.unchecked:
				l.revoked = true
			default:
				m.takeEnd(l, record.FreedRevoked)
			}
			return
		}
		r.t.Cancel(l.handle, r.now)
		if l.granted {
			m.takeEnd(l, record.FreedRevoked)
		} else {
			delete(m.live, l.handle)
		}
	case 11:
		if !l.granted {
			m.grantNew(l)
			return
		}
		// The same id once more, while it is held.
		h, ok := r.take(record.Granted)
		if !ok {
			return
		}
		r.say(h, l.id)
		m.takeEnd(&modelLease{id: l.id, handle: h}, record.FreedDuplicate)
	}
}

func (m *model) stepAfter(gap time.Duration) {
	r := m.r
	r.now = r.now.Add(gap)
	if gap > m.cfg.StallGap {
		m.stalled = r.now
	}
	r.arrived += uint64(m.rng.IntN(50))
	r.applied = min(r.arrived, r.applied+uint64(m.rng.IntN(60)))
	r.t.Sweep(r.now, gap, r.arrived, r.applied)
	for {
		e, ok := r.t.NextEnd()
		if !ok {
			break
		}
		r.t.PopEnd()
		m.checkEnd(e)
	}
	m.checkHeld()
	held, blocks := 0, uint64(0)
	for _, l := range m.live {
		if l.granted {
			held++
			blocks += 8
		}
		if l.granted {
			if got := r.mem.Slots[l.handle.Slot()].Flags&record.Unchecked != 0; got != l.unchecked {
				m.t.Fatalf("slot of %s shows unchecked=%v, want %v", l.id, got, l.unchecked)
			}
			if got := r.mem.Rows[l.handle.Slot()].Fence; got != testBase+uint64(l.handle.Use()) {
				m.t.Fatalf("fence of %s is %#x while it is held", l.id, got)
			}
		}
	}
	if r.t.Held() != held || r.t.Blocks() != blocks || r.t.Expected() != len(m.live)-held {
		m.t.Fatalf("gauges %d held, %d blocks, %d expected; want %d, %d, %d", r.t.Held(), r.t.Blocks(), r.t.Expected(), held, blocks, len(m.live)-held)
	}
}

// TestTenThousandOrders runs random orders of everything that can happen against the map: no lease outlives its bound of
// L4, none ends early, every one ends once, and each message has the outcome that the rules give it.
func TestTenThousandOrders(t *testing.T) {
	orders := 10000
	if testing.Short() {
		orders = 500
	}
	for _, linger := range []time.Duration{0, 2 * time.Second} {
		t.Run(fmt.Sprint("linger=", linger), func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			m := &model{t: t, rng: rand.New(rand.NewPCG(seed, 4)), live: map[record.Handle]*modelLease{}, stalled: -1, ended: map[uint16]int{}}
			m.r = newRig(t, 12, func(c *Config) {
				c.Duration, c.Jitter, c.StockLinger, c.ExpectMax = 6*time.Second, 0, linger, time.Hour
				c.Seed = seed
			})
			m.cfg = m.r.t.cfg
			for range orders / 2 {
				for range 40 {
					m.op()
				}
				// Let all end by themselves: expectations by the host, leases by their deadlines.
				for h, l := range m.live {
					if !l.granted {
						m.r.t.Cancel(h, m.r.now)
						delete(m.live, h)
					}
				}
				for i := 0; len(m.live) > 0; i++ {
					if i > 2000 {
						t.Fatalf("%d leases do not end", len(m.live))
					}
					m.stepAfter(100 * time.Millisecond)
				}
				m.r.wantEmpty()
			}
			for _, reason := range []uint16{record.FreedCompleted, record.FreedReleased, record.FreedRevoked, record.FreedExpired, record.FreedDuplicate} {
				if m.ended[reason] < orders/50 {
					t.Errorf("only %d ends with reason %d in %d orders", m.ended[reason], reason, orders)
				}
			}
			t.Logf("ends by reason: %v, saved between the looks %d, linger held %d", m.ended, m.r.c.DueSaved, m.r.c.LingerHeld)
		})
	}
}
