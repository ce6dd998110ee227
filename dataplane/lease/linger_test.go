package lease

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestL9BlocksOfAStockReaderLinger(t *testing.T) {
	linger := func(c *Config) { c.StockLinger = 20 * time.Second }
	t.Run("a lease that nobody named does not linger", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
	})
	t.Run("one last renewed by a stock reader stays one extension longer and is counted", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(5))
		r.beat("a")
		r.run(at(49.9))
		r.wantHeld(a)
		if r.t.Lingering() != 1 || r.c.Lingered != 1 {
			t.Errorf("lingering %d, counted %d, want 1 and 1", r.t.Lingering(), r.c.Lingered)
		}
		r.run(at(50.2))
		r.wantEnded(record.FreedExpired, a)
		r.wantEmpty()
	})
	t.Run("one last renewed by ours does not", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a := r.grant("a")
		r.run(at(5))
		r.beat("a")
		r.run(at(6))
		r.t.Renew(r.entry(a), engineD, r.now)
		r.run(at(30.2))
		r.wantEnded(record.FreedExpired, a)
	})
	t.Run("a late completion ends it, a late heartbeat holds it", func(t *testing.T) {
		r := newRig(t, 4, linger)
		a, b := r.grant("a"), r.grant("b")
		r.run(at(5))
		r.beat("a")
		r.beat("b")
		r.run(at(40))
		r.want(r.done("a", "D.0", 1), Ended)
		r.want(r.beat("b"), Applied)
		r.wantEnded(record.FreedCompleted, a)
		r.run(at(79.9)) // 40 + 20 + 20
		r.wantHeld(b)
		r.wantCount("renewed while lingering", r.c.LingerHeld, 1)
		r.run(at(80.2))
		r.wantEnded(record.FreedExpired, b)
		r.wantEmpty()
	})
	t.Run("pressure takes it first", func(t *testing.T) {
		r := newRig(t, 4, linger)
		ours, stock := r.grant("ours", ttl(time.Minute)), r.grant("stock")
		r.t.Renew(r.entry(ours), engineD, r.now)
		r.run(at(5))
		r.beat("stock")
		r.run(at(35))
		if got := r.t.Pressure(1, r.now); got != 8 {
			t.Errorf("pressure freed %d blocks, want 8", got)
		}
		r.wantEnded(record.FreedRevoked, stock)
		r.wantHeld(ours)
	})
	for _, tc := range []struct {
		name string
		wait func(r *rig)
		ripe func(r *rig)
	}{
		{"whose deadline has only just passed", func(r *rig) { r.run(at(30.03)) }, func(r *rig) { r.run(at(30.1)) }},
		{"while messages wait to be applied", func(r *rig) {
			r.run(at(29.9))
			r.arrived = 1
			r.run(at(32))
		}, func(r *rig) {
			r.applied = 1
			r.step()
		}},
		{"whose deadline passed while the process stood still", func(r *rig) {
			r.run(at(20))
			r.now = at(31)
			r.step()
			r.run(at(35.9))
		}, func(r *rig) { r.run(at(36.1)) }},
	} {
		t.Run("pressure leaves one "+tc.name, func(t *testing.T) {
			r := newRig(t, 4, linger)
			stock := r.grant("stock")
			r.run(at(5))
			r.beat("stock")
			tc.wait(r)
			if r.t.Lingering() != 1 {
				t.Fatal("it does not linger")
			}
			if got := r.t.Pressure(1, r.now); got != 0 {
				t.Errorf("pressure freed %d blocks before the second look", got)
			}
			r.wantHeld(stock)
			tc.ripe(r)
			r.step()
			r.wantEnded(record.FreedRevoked, stock)
			r.wantEmpty()
		})
	}
	t.Run("pressure leaves one that was renewed meanwhile", func(t *testing.T) {
		r := newRig(t, 4, linger)
		stock := r.grant("stock")
		r.run(at(5))
		r.beat("stock")
		r.run(at(35))
		r.beat("stock")
		if got := r.t.Pressure(1, r.now); got != 0 {
			t.Errorf("pressure freed %d blocks, want 0", got)
		}
		r.wantHeld(stock)
		r.run(at(74.9)) // 35 + 20 + 20
		r.wantHeld(stock)
		r.run(at(75.2))
		r.wantEnded(record.FreedExpired, stock)
	})
	t.Run("pressure keeps what it wants until one is ripe, and no longer", func(t *testing.T) {
		r := newRig(t, 4, linger)
		r.grant("stock")
		r.run(at(5))
		r.beat("stock")
		r.run(at(30.03))
		r.t.Pressure(1, r.now)
		if due := r.t.NextDue(r.now); due <= r.now || due > at(30.15) {
			t.Errorf("next due at %v, want when it is ripe", time.Duration(due))
		}
		r.run(at(30.2))
		ours := r.grant("ours")
		r.t.Renew(r.entry(ours), engineD, r.now)
		r.run(at(31))
		r.wantHeld(ours)
		if r.t.wanted != 0 {
			t.Errorf("%d blocks are still wanted", r.t.wanted)
		}
	})
	t.Run("pressure leaves one with a linger shorter than settle until its second look", func(t *testing.T) {
		r := newRig(t, 4, func(c *Config) { c.StockLinger = 10 * time.Millisecond })
		stock := r.grant("stock")
		r.run(at(5))
		r.beat("stock") // its extension is over at 25, its first term at 30
		for r.now < at(30.04) {
			r.run(r.now.Add(tick))
			r.t.Pressure(1, r.now)
			r.wantHeld(stock)
		}
		r.want(r.beat("stock"), Applied) // as L8 lets it
		r.run(at(50))
		r.wantHeld(stock)
	})
	t.Run("pressure takes one between its two looks", func(t *testing.T) {
		r := newRig(t, 4, linger)
		stock := r.grant("stock")
		r.run(at(5))
		r.beat("stock")
		r.run(at(50.03))
		r.wantHeld(stock)
		if got := r.t.Pressure(1, r.now); got != 8 {
			t.Errorf("pressure freed %d blocks, want 8", got)
		}
		r.wantEnded(record.FreedRevoked, stock)
		r.wantEmpty()
	})
}

// One of ours renews it while it lingers, and what that gave has passed, too, when it is looked at next: the linger of the stock reader
// says nothing about that deadline.
func TestL9PressureLeavesOneThatOursRenewedLastUntilItsSecondLook(t *testing.T) {
	r := newRig(t, 4, func(c *Config) { c.StockLinger = time.Minute })
	a := r.grant("a")
	r.run(at(15))
	r.beat("a") // its extension is over at 35, its linger at 95
	r.run(at(95.02))
	r.want(r.t.Renew(r.entry(a), engineD, r.now), Applied)
	r.now = at(116) // a stall: its extension was over at 115.02
	r.step()
	if got := r.t.Pressure(1, r.now); got != 0 {
		t.Errorf("pressure freed %d blocks before the second look", got)
	}
	r.run(at(120.9))
	r.wantHeld(a)
	r.run(at(121.1)) // one interval after the first look
	r.wantEnded(record.FreedExpired, a)
	r.wantEmpty()
}
