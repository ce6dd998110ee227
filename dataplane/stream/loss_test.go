package stream

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// wire is one direction of what an engine carries, and what happens to it.
type wire struct {
	t        testing.TB
	from, to Delta
	buf      [MessageBytesMin + 2000]byte
	n        int                         // messages so far
	fault    func(n int) (f wireFault)   // of message n
	late     [][]byte                    // delivered behind the next
	stats    struct{ faults, bytes int } //
}

type wireFault int

const (
	good wireFault = iota
	drop
	double
	swap
	faults
)

var faultNames = [...]string{"good", "dropped", "doubled", "swapped"}

func (w *wire) turn() {
	n, err := w.from.Take(w.buf[:])
	if err != nil {
		w.t.Fatal(err)
	}
	if n == 0 {
		w.flush()
		return
	}
	w.stats.bytes += n
	f := good
	if w.fault != nil {
		f = w.fault(w.n)
	}
	w.n++
	if f != good {
		w.stats.faults++
	}
	switch f {
	case drop:
	case double:
		w.put(w.buf[:n])
		w.put(w.buf[:n])
		w.flush()
	case swap:
		w.late = append(w.late, append([]byte(nil), w.buf[:n]...))
	default:
		w.put(w.buf[:n])
		w.flush()
	}
}

func (w *wire) put(msg []byte) {
	if err := w.to.Put(msg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) flush() {
	for _, msg := range w.late {
		w.put(msg)
	}
	w.late = nil
}

// lossy runs a host and a rank for a while over wires with faults, then lets them come to rest.
type lossy struct {
	h        *testHost
	r        *testRank
	down, up *wire
}

func newLossy(t testing.TB, seed uint64) *lossy {
	g := newRig(t, KindDelta, func(c *Config) { c.WakeFd = -1 })
	l := &lossy{}
	l.h, l.r = newPlane(t, g.h, g.r, seed)
	l.down = &wire{t: t, from: g.h.(Delta), to: g.r.(Delta)}
	l.up = &wire{t: t, from: g.r.(Delta), to: g.h.(Delta)}
	t.Cleanup(func() { g.host.Close(); g.r.Close() })
	return l
}

func (l *lossy) tick() {
	l.h.step()
	l.down.turn()
	l.r.step()
	l.up.turn()
}

// rest runs without faults and new work until both agree.
func (l *lossy) rest() error {
	l.h.quiet, l.r.quiet = true, true
	l.down.fault, l.up.fault = nil, nil
	for range 100 {
		if l.tick(); converged(l.h, l.r) && l.down.n+l.up.n > 0 {
			silent := l.down.n + l.up.n
			for range 3 {
				l.tick()
			}
			if converged(l.h, l.r) && l.down.n+l.up.n <= silent+2 {
				return nil
			}
		}
	}
	return fmt.Errorf("no rest: host at full state %d, gap %v, %d ends to tell, rank has full state %d", l.h.number, l.h.c.Gap(), len(l.r.tells), l.r.taken)
}

func TestASingleMessageThatIsLostDoubledOrSwappedDoesNoHarm(t *testing.T) {
	const ticks, seed = 60, 11
	t.Logf("seed %d", seed)
	base := newLossy(t, seed)
	for range ticks {
		base.tick()
	}
	down, up := base.down.n, base.up.n
	if err := base.rest(); err != nil {
		t.Fatal(err)
	}
	if base.h.fulls != 1 || down < ticks/2 || up < ticks/2 {
		t.Fatalf("without faults: %d full states, %d and %d messages", base.h.fulls, down, up)
	}
	healed := 0
	for _, dir := range []string{"to the rank", "to the host"} {
		n := down
		if dir == "to the host" {
			n = up
		}
		for k := range n {
			for f := drop; f < faults; f++ {
				l := newLossy(t, seed)
				w := l.down
				if dir == "to the host" {
					w = l.up
				}
				w.fault = func(n int) wireFault {
					if n == k {
						return f
					}
					return good
				}
				for range ticks {
					l.tick()
				}
				if err := l.rest(); err != nil {
					t.Fatalf("message %d %s, %s: %v", k, dir, faultNames[f], err)
				}
				if w.stats.faults != 1 {
					t.Fatalf("message %d %s, %s: never came to that", k, dir, faultNames[f])
				}
				if f == double && l.h.fulls != 1 {
					t.Errorf("message %d %s, doubled: %d full states, want the first alone", k, dir, l.h.fulls)
				}
				if l.h.fulls > 1 {
					healed++
				}
				l.h.c.Close()
				l.r.c.Close()
			}
		}
	}
	t.Logf("%d messages to the rank, %d to the host; %d runs were healed by a full state", down, up, healed)
	if healed < (down+up)/2 {
		t.Errorf("only %d runs needed to be healed: the faults hit nothing", healed)
	}
}

func TestTheLastMessageThatIsLostIsMissed(t *testing.T) {
	for _, up := range []bool{false, true} {
		l := newLossy(t, 3)
		for range 40 {
			l.tick()
		}
		if err := l.rest(); err != nil {
			t.Fatal(err)
		}
		if up {
			for slot, use := range l.r.held {
				if use != 0 {
					l.r.end(uint32(slot))
				}
			}
			l.r.step()
			l.up.fault = func(int) wireFault { return drop }
			l.up.turn()
		} else {
			for slot := range l.h.live {
				if l.h.live[slot] && !l.h.cancelled[slot] {
					l.h.cancelled[slot] = true
					l.h.cancel(uint32(slot))
				}
			}
			l.h.step()
			l.down.fault = func(int) wireFault { return drop }
			l.down.turn()
		}
		if l.up.stats.faults+l.down.stats.faults != 1 || converged(l.h, l.r) {
			t.Fatalf("up %v: nothing was lost", up)
		}
		if err := l.rest(); err != nil {
			t.Errorf("up %v: %v", up, err)
		}
	}
}

func TestHeavyLossConvergesOnceItStops(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 2))
			l := newLossy(t, seed)
			bad := func(int) wireFault {
				switch rng.IntN(10) {
				case 0, 1, 2:
					return drop
				case 3:
					return double
				case 4:
					return swap
				}
				return good
			}
			l.down.fault, l.up.fault = bad, bad
			for range 1500 {
				l.tick()
			}
			if l.down.stats.faults < 200 || l.up.stats.faults < 200 {
				t.Fatalf("%d and %d faults", l.down.stats.faults, l.up.stats.faults)
			}
			if err := l.rest(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where only seldom a message is lost, full states get through and the two agree again and again while it goes on.
func TestSeldomLossIsHealedWhileItGoesOn(t *testing.T) {
	rng := rng(t, 5)
	l := newLossy(t, 5)
	bad := func(int) wireFault {
		if rng.IntN(100) == 0 {
			return drop
		}
		return good
	}
	l.down.fault, l.up.fault = bad, bad
	for range 4000 {
		l.tick()
	}
	if l.h.fulls < 20 || l.r.taken < 20 {
		t.Errorf("%d full states begun, the last taken whole is %d", l.h.fulls, l.r.taken)
	}
	if err := l.rest(); err != nil {
		t.Error(err)
	}
}

// A rank that steps seldom overflows its ring again and again.
func TestAnOverflowIsHealedByAFullStateOnEveryKind(t *testing.T) {
	forAll(t, kinds, func(t *testing.T, kind string) {
		g := newRig(t, kind, func(c *Config) { c.RingBytes = RingBytesMin })
		g.meet()
		rng := rng(t, 6)
		h, r := newPlane(t, g.h, g.r, 6)
		h.bytes, r.ends = bigGrantBytes, 2*planeSlots
		for range 20_000 {
			h.step()
			if rng.IntN(30) == 0 {
				if rng.IntN(2) == 0 {
					g.carry()
				}
				r.step()
			}
		}
		h.quiet, r.quiet = true, true
		for i := 0; !converged(h, r); i++ {
			if i == 1000 {
				t.Fatalf("no rest: gap %v, full state %d, rank has %d", g.h.Gap(), h.number, r.taken)
			}
			h.step()
			g.carry()
			r.step()
			g.carry()
		}
		if c := g.h.Counters(); c.Gaps < 10 {
			t.Errorf("%d gaps: the run shows nothing", c.Gaps)
		}
	})
}
