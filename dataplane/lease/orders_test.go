package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kvlease/kvlease/dataplane/record"
)

// acts are what can happen, each as often as it stands here. Those that need a lease get one that is alive, or do nothing.
var acts = []struct {
	name  string
	often int
	do    func(*model)
}{
	{"grant", 20, (*model).grantFresh},
	{"expect", 10, (*model).expectFresh},
	{"step", 50, (*model).step},
	{"stock heartbeat", 30, onLease((*model).beatStock)},
	{"native heartbeat", 30, onLease((*model).beatNative)},
	{"stock completion", 20, onLease((*model).completeStock)},
	{"native completion", 10, onLease((*model).completeNative)},
	{"release", 10, onLease((*model).release)},
	{"revoke", 5, onLease((*model).revoke)},
	{"cancel", 5, onLease((*model).cancel)},
	{"grant what is expected", 4, onLease((*model).grantExpected)},
	{"a reader is gone", 3, func(m *model) { m.gone(m.reader()) }},
	{"grant said again", 3, onLease((*model).repeat)},
	{"grant of an id that is held", 3, onLease((*model).duplicate)},
	{"pressure", 3, func(m *model) { m.pressure(1 + m.rng.IntN(40)) }},
}

func onLease(do func(*model, *modelLease)) func(*model) {
	return func(m *model) {
		if l := m.pick(); l != nil {
			do(m, l)
		}
	}
}

// op does one of acts.
func (m *model) op() {
	all := 0
	for _, a := range acts {
		all += a.often
	}
	n := m.rng.IntN(all)
	for _, a := range acts {
		if n -= a.often; n < 0 {
			a.do(m)
			return
		}
	}
}

func (m *model) reader() Reader {
	return []Reader{engineD, engineE, {Engine: 0xD, Epoch: 2}}[m.rng.IntN(3)].at(uint32(m.rng.IntN(3)))
}

func (m *model) fresh() *modelLease {
	m.ids++
	return &modelLease{id: fmt.Sprint("r", m.ids), native: -1, stock: -1, look: -1, looked: -1}
}

func (m *model) grantFresh() { m.grantNew(m.fresh()) }

func (m *model) expectFresh() {
	h, ok := m.r.take(record.Expected)
	if !ok {
		return
	}
	l := m.fresh()
	l.handle = h
	m.r.t.Expect(h, []byte(l.id), m.r.now)
	m.live[h] = l
}

func (m *model) step() {
	gap := time.Duration(m.rng.IntN(300)) * time.Millisecond
	if m.rng.IntN(30) == 0 {
		gap = m.cfg.StallGap + time.Duration(m.rng.IntN(2000))*time.Millisecond
	}
	m.stepAfter(gap)
}

// renewed is the outcome of a heartbeat that is heard.
func (l *modelLease) renewed() Outcome {
	switch {
	case !l.granted:
		return Kept
	case l.fixed:
		return Fixed
	}
	return Applied
}

func (m *model) beatStock(l *modelLease) {
	m.want(l, "stock heartbeat", m.r.beat(l.id), l.renewed())
	l.stock, l.stockEver = m.r.now, true
	l.unchecked = l.unchecked || l.granted
}

// native says a native message about a lease by its slot. It reports whether that let a revoke through that waited for it.
func (m *model) native(l *modelLease, d Reader, what string, got func() Outcome) (o Outcome, over bool) {
	o = got()
	if over = m.name(l, d); over {
		m.want(l, what, o, Ended)
		m.takeEnd(l, record.FreedRevoked)
	}
	return o, over
}

func (m *model) beatNative(l *modelLease) {
	d, e := m.reader(), m.r.entry(l.handle)
	many := m.rng.IntN(2) == 0
	got, over := m.native(l, d, "native heartbeat", func() Outcome {
		if !many {
			return m.r.t.Renew(e, d, m.r.now)
		}
		out := make([]Outcome, 1)
		m.r.t.RenewEntries([]Entry{e}, d, m.r.now, out)
		return out[0]
	})
	if !over {
		m.want(l, "native heartbeat", got, l.renewed())
		l.native = m.r.now
	}
}

func (m *model) completeStock(l *modelLease) {
	agent, n := fmt.Sprint("agent", m.rng.IntN(4)), uint32(1+m.rng.IntN(3))
	got := m.r.done(l.id, agent, n)
	l.stockEver = true
	l.unchecked = l.unchecked || l.granted
	if l.namedEver {
		m.want(l, "stock completion", got, Refused)
		return
	}
	complete, repeated := m.report(l, "stock", agent, n)
	m.reported(l, "stock completion", got, complete, repeated)
}

func (m *model) completeNative(l *modelLease) {
	d, n := m.reader(), uint32(1+m.rng.IntN(3))
	got, over := m.native(l, d, "native completion", func() Outcome { return m.r.t.Complete(m.r.entry(l.handle), d, uint16(n), m.r.now) })
	if !over {
		complete, repeated := m.report(l, fmt.Sprint(d.Engine, d.Epoch), fmt.Sprint(d.Rank), n)
		m.reported(l, "native completion", got, complete, repeated)
	}
}

func (m *model) release(l *modelLease) {
	d := m.reader()
	got, over := m.native(l, d, "release", func() Outcome { return m.r.t.Release(m.r.entry(l.handle), d, m.r.now) })
	switch {
	case over:
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
}

func (m *model) revoke(l *modelLease) {
	m.r.t.Revoke(l.handle, m.r.now)
	switch {
	case !l.granted:
		delete(m.live, l.handle)
	case l.unchecked:
		l.revoked = true
	default:
		m.takeEnd(l, record.FreedRevoked)
	}
}

func (m *model) cancel(l *modelLease) {
	m.r.t.Cancel(l.handle, m.r.now)
	if l.granted {
		m.takeEnd(l, record.FreedRevoked)
	} else {
		delete(m.live, l.handle)
	}
}

func (m *model) grantExpected(l *modelLease) {
	if !l.granted {
		m.grantNew(l)
	}
}

func (m *model) repeat(l *modelLease) {
	if l.granted {
		m.sayAgain(l, time.Duration(1+m.rng.IntN(8))*time.Second)
	}
}

func (m *model) duplicate(l *modelLease) {
	if !l.granted {
		return
	}
	if h, ok := m.r.take(record.Granted); ok {
		m.r.say(h, l.id)
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
	lingering := r.t.Lingering()
	r.t.Sweep(r.now, gap, r.arrived, r.applied)
	for {
		e, ok := r.t.NextEnd()
		if !ok {
			break
		}
		r.t.PopEnd()
		m.checkEnd(e)
	}
	if lingering == 0 {
		m.wanted = 0
	}
	m.checkHeld()
	m.r.checkAccounts()
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
			m := newModel(t, rand.New(rand.NewPCG(seed, 4)), seed, linger)
			for range orders / 2 {
				for range 40 {
					m.op()
				}
				m.settle() // shows C01.2
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

// settle lets all end by themselves: expectations by the host, leases by their deadlines.
func (m *model) settle() {
	for s := range m.r.mem.Slots { // in order, so that a seed gives one order
		for h, l := range m.live {
			if int(h.Slot()) == s && !l.granted {
				m.r.t.Cancel(h, m.r.now)
				delete(m.live, h)
			}
		}
	}
	for i := 0; len(m.live) > 0; i++ {
		if i > 2000 {
			m.t.Fatalf("%d leases do not end", len(m.live))
		}
		m.stepAfter(100 * time.Millisecond)
	}
	m.r.wantEmpty()
}

// TestAnyOrderAgainstTheMap is the same with orders that rapid makes: one that breaks a rule shrinks to the few acts that it takes.
func TestAnyOrderAgainstTheMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		linger := time.Duration(rapid.IntRange(0, 1).Draw(t, "linger")) * 2 * time.Second
		m := newModel(t, drawn{t}, 1, linger)
		doing := map[string]func(*rapid.T){}
		for _, a := range acts {
			doing[a.name] = func(*rapid.T) {
				for range 1 + m.rng.IntN(3) {
					a.do(m)
				}
			}
		}
		t.Repeat(doing)
		m.settle()
	})
}
