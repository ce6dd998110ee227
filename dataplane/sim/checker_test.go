package sim

import (
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/lease"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/wire"
)

// A checker that never speaks proves nothing: each of these is done to a run in which all is well.
func TestTheCheckerSpeaksOfWhatIsBrokenByHand(t *testing.T) {
	for _, tc := range []struct {
		name string
		rule Rule
		hand func(w *World)
	}{
		{"a row whose deadline goes back", "L1", func(w *World) {
			g := w.grants["QD"]
			_, rows := record.Board(g.life.ranks[0].mem.Board)
			rows[g.handle.Slot()].DeadlineUs -= 1e6
		}},
		{"a slot that goes back to a use that has ended", "L2", func(w *World) {
			r := w.byID["Q"].life.ranks[0]
			r.view.slots[w.grants["QD"].handle.Slot()].use = 7
		}},
		{"an end that is told while the row says that it may be read", "L10", func(w *World) {
			g := w.grants["QD"]
			g.life.ranks[0].view.freed(g, record.FreedRevoked)
		}},
		{"a lease that is told as ended twice", "L3", func(w *World) {
			g := w.grants["QD"]
			ev := record.Event{Kind: record.EvFreed, Status: record.FreedCompleted, Handle: uint64(g.handle), Reasons: record.FreedCompleted}
			g.life.app.told(&ev)
		}},
		{"an outcome of nothing", OneEnd, func(w *World) {
			ev := record.Event{Kind: record.EvReadDone, Handle: 1 << 40}
			w.byID["D"].life.app.told(&ev)
		}},
		{"a free block that is written to", Aside, func(w *World) {
			a := w.byID["D"].life.app
			a.give(a.take(1, blockKept))
			a.life.ranks[0].cache.mark(a.free[len(a.free)-1], 1)
		}},
		{"blocks of a lease that are written to before they are read", WrongData, func(w *World) {
			g := w.grants["QD"]
			g.life.ranks[0].cache.mark(g.blocks[0], 1)
		}},
		{"a lease that its engine has cancelled, and that is held", "L12", func(w *World) {
			w.grants["QD"].cancel = true
		}},
		{"a lease that its only reader has released, and that is held", "L12", func(w *World) {
			g := w.grants["QD"]
			g.life.ranks[0].view.slots[g.handle.Slot()].fair = true
		}},
		{"an end of a broken core that readers without a fence get no time for", "L12", func(w *World) {
			g := w.grants["QD"]
			r := g.life.ranks[0]
			r.brokeAt, r.view.slots[g.handle.Slot()].loose = w.now, r.now()
			r.view.freed(g, record.FreedPoisoned)
		}},
		{"an expiry while a heartbeat waits that had arrived before", "L8", func(w *World) {
			g := w.grants["QD"]
			r, s := g.life.ranks[0], g.handle.Slot()
			e := &r.view.slots[s]
			e.least, e.lastBeat, e.passed = 0, 0, r.now().Add(-time.Second)
			msg := wire.AppendHeader(nil, &wire.Header{Kind: wire.Renew, Epoch: 1, Count: 1})
			r.tap.left = []tapped{{body: wire.AppendEntry(msg, s, g.handle.Use(), lease.Key(r.secret, s, g.handle.Use())), at: e.passed}}
			r.view.atEnd(e, r.now())
			r.tap.left = nil
			r.view.freed(g, record.FreedExpired)
		}},
		{"engines that stay apart when all faults are over", Live, func(w *World) {
			w.net.Partition(w.byID["Q"].life.ranks[0].agent.Agent(), w.byID["D"].life.ranks[0].agent.Agent(), true)
		}},
		{"a request that nobody ends", Leak, func(w *World) {
			q := w.requests["D/QD"]
			q.read, q.of = true, w.grants["QD"]
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, err := Run(plain(), Options{Probes: []Probe{{At: 10 * time.Second, Look: tc.hand}}})
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range r.Violations {
				if v.Rule == tc.rule {
					return
				}
			}
			t.Errorf("violations %v, want one of %s", r.Violations, tc.rule)
		})
	}
}

func TestRunsOnAllProcessorsAreTheSameRuns(t *testing.T) {
	total, err := Fleet(70, 6, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var sum Result
	for seed := range uint64(6) {
		r, err := Run(Random(70+seed, nil), Options{})
		if err != nil {
			t.Fatal(err)
		}
		sum.add(r)
	}
	if total.Done != sum.Done || total.Granted != sum.Granted || total.Freed != sum.Freed || total.Failed != sum.Failed || total.Steps != sum.Steps {
		t.Errorf("all together %+v, one after the other %+v", total.Result, sum)
	}
}
