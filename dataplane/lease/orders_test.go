package lease

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

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
		switch m.rng.IntN(3) {
		case 0:
			m.gone(d)
			return
		case 1:
			m.sayAgain(l, time.Duration(1+m.rng.IntN(8))*time.Second)
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
					m.stepAfter(100 * time.Millisecond) // shows C01.2
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
