package lease

import (
	"time"

	"pgregory.net/rapid"

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
	looked    clock.Instant // step in which the table has looked first, and neither ended nor saved it since; -1 none
	checked   int           // when it became known that all its readers check the fence, in order
}

type model struct {
	t       rapid.TB
	r       *rig
	rng     choices
	cfg     Config
	live    map[record.Handle]*modelLease
	ids     int
	stalled clock.Instant // last step after a gap
	ended   map[uint16]int
	checks  int    // leases that became checked so far
	wanted  uint64 // blocks that pressure may still want
}

// choices decide what happens next: a generator with a seed, which is fast, or rapid, which shrinks.
type choices interface{ IntN(n int) int }

// drawn are choices of rapid's.
type drawn struct{ t *rapid.T }

func (d drawn) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(d.t, "choice") }

func newModel(t rapid.TB, rng choices, seed uint64, linger time.Duration) *model {
	m := &model{t: t, rng: rng, live: map[record.Handle]*modelLease{}, stalled: -1, ended: map[uint16]int{}}
	m.r = newRig(t, 12, func(c *Config) {
		c.Duration, c.Jitter, c.StockLinger, c.ExpectMax = 6*time.Second, 0, linger, time.Hour
		c.Seed = seed
	})
	m.cfg = m.r.t.cfg
	return m
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
	if e.Reason == record.FreedRevoked && l.granted && m.wanted > 0 {
		m.takenBack(l)
		return
	}
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

// takenBack asks whether pressure may have ended this lease now: one whose readers all check, the longest waiting first, or one
// that lingers and whose deadline has had its two looks.
func (m *model) takenBack(l *modelLease) {
	m.wanted -= min(m.wanted, 8)
	if d := m.deadline(l); l.unchecked {
		if l.fixed || l.stock < 0 || l.stock < l.native-nsPerUnit || m.r.now < d.Add(m.cfg.Settle) {
			m.t.Fatalf("lease %s was taken back at %v, deadline %v, though a reader may not check the fence", l.id, m.r.now, d)
		}
		return
	}
	for _, o := range m.live {
		if o.granted && !o.unchecked && o.checked < l.checked {
			m.t.Fatalf("lease %s was taken back before %s, which waits longer", l.id, o.id)
		}
	}
}

// pressure asks for blocks, and takes the ends.
func (m *model) pressure(blocks int) {
	lingering := m.r.t.Lingering()
	m.wanted = max(m.wanted, uint64(blocks))
	freed, got := m.r.t.Pressure(uint32(blocks), m.r.now), uint32(0)
	for {
		e, ok := m.r.t.NextEnd()
		if !ok {
			break
		}
		m.r.t.PopEnd()
		if e.Reason != record.FreedRevoked {
			m.t.Fatalf("pressure ended a lease with reason %d", e.Reason)
		}
		got += e.Blocks
		m.checkEnd(e)
	}
	if freed != got {
		m.t.Fatalf("pressure says %d blocks, its ends have %d", freed, got)
	}
	for _, l := range m.live {
		if l.granted && !l.unchecked && m.wanted > 0 {
			m.t.Fatalf("pressure wants %d blocks more and lease %s may be taken", m.wanted, l.id)
		}
	}
	if lingering == 0 {
		m.wanted = 0
	}
}

// check notes that all readers of a lease are now known to check the fence.
func (m *model) check(l *modelLease) {
	l.unchecked = false
	m.checks++
	l.checked = m.checks
}

// checkHeld asks, after a step, whether every lease past the bound of L4 has ended.
func (m *model) checkHeld() {
	for _, l := range m.live {
		if !l.granted {
			continue
		}
		k := &m.r.t.hot[l.handle.Slot()]
		switch {
		case !k.is(isDue | isNoted):
			l.looked = -1
		case l.looked < 0:
			l.looked = m.r.now
		}
		if k.is(isNoted) { // its second look waits for a backlog; if it is saved then, and is past again, it is looked at anew
			if m.r.applied >= k.end() {
				m.t.Fatalf("lease %s still held at %v though all that had arrived by its second look is applied", l.id, m.r.now)
			}
			l.look, l.noted = -1, false
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
		if l.look >= 0 && l.look < first { // a look at an earlier deadline
			l.look, l.noted = -1, false
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
	switch {
	case term == 0 && l.fixed:
		term = m.cfg.FixedTTL
	case term == 0:
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
	if l.unchecked = l.stockEver || !l.namedEver; !l.unchecked {
		m.check(l)
	}
	m.live[l.handle] = l
	switch {
	case l.released && !l.shared && !l.unchecked:
		m.takeEnd(l, record.FreedReleased)
	case l.done:
		m.takeEnd(l, record.FreedCompleted)
	}
}

// gone is the death wire's part of L12.
func (m *model) gone(d Reader) {
	d.Rank = 0
	m.r.t.EngineGone(d.Engine, d.Epoch, m.r.now)
	for s := range uint32(len(m.r.mem.Slots)) { // in the order in which the turn comes by
		for h, l := range m.live {
			switch {
			case h.Slot() != s || !l.granted || !l.named || l.by != d:
			case l.shared || l.unchecked:
				l.named = false
			default:
				m.takeEnd(l, record.FreedReleased)
			}
		}
	}
}

// sayAgain is a host's full state: a grant repeated for a lease that is held.
func (m *model) sayAgain(l *modelLease, left time.Duration) {
	changes := []func(*record.Grant){ttl(left)}
	if l.fixed {
		changes = append(changes, fixed)
	}
	m.want(l, "repeated grant", m.r.say(l.handle, l.id, changes...), Repeated)
	if l.looked >= 0 { // heartbeats that had passed at the first look count no more, so no stock one is the last
		for _, beat := range []*clock.Instant{&l.native, &l.stock} {
			if *beat >= 0 && beat.Add(m.cfg.Extension) <= l.looked {
				*beat = -1
			}
		}
		l.looked = -1
	}
	l.end = max(l.end, m.r.now.Add(left))
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
		m.check(l)
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
