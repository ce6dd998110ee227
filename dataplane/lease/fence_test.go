package lease

import (
	"testing"

	"github.com/kvlease/kvlease/dataplane/record"
)

func TestL10EveryEndRaisesTheFenceBeforeItIsSeen(t *testing.T) {
	ends := map[string]func(r *rig, h record.Handle){
		"completed": func(r *rig, h record.Handle) { r.done("a", "D", 1) },
		"released":  func(r *rig, h record.Handle) { r.t.Release(r.entry(h), engineD, r.now) },
		"cancelled": func(r *rig, h record.Handle) { r.t.Cancel(h, r.now) },
		"revoked": func(r *rig, h record.Handle) {
			r.t.Renew(r.entry(h), engineD, r.now)
			r.t.Revoke(h, r.now)
		},
		"expired":  func(r *rig, h record.Handle) { r.run(at(31)) },
		"closed":   func(r *rig, h record.Handle) { r.t.EndSome(record.FreedClosed, r.now) },
		"pressure": func(r *rig, h record.Handle) { r.t.Renew(r.entry(h), engineD, r.now); r.t.Pressure(1, r.now) },
		"gone": func(r *rig, h record.Handle) {
			r.t.Renew(r.entry(h), engineD, r.now)
			r.t.EngineGone(engineD.Engine, engineD.Epoch, r.now)
		},
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			for use := range uint32(3) { // the word is stored from base and use, never counted
				h := r.grant("a")
				r.wantFence(h, testBase+uint64(use))
				end(r, h)
				r.wantFence(h, testBase+uint64(use)+1)
				if len(r.ended(h)) != 1 {
					t.Fatal("not ended")
				}
				r.now, r.ends = 0, nil
				r.t.wheel.done = 0
			}
		})
	}
}

func TestL10ACancelledExpectationMovesTheRowToItsNextUse(t *testing.T) {
	r := newRig(t, 1)
	a := r.expect("a")
	r.t.Cancel(a, r.now)
	r.wantFence(a, testBase+1)
	b := r.grant("b")
	r.wantFence(b, testBase+1)
	if b.Use() != 1 {
		t.Errorf("use %d after a cancelled one, want 1", b.Use())
	}
}

func TestL10AGrantFillsTheRowForItsReaders(t *testing.T) {
	r := newRig(t, 1)
	h := r.mem.Header
	if h.Version != record.BoardVersion || h.Base != testBase || h.Epoch != testEpoch || h.DurationNs != 30e9 {
		t.Errorf("header %+v", *h)
	}
	r.wantFence(1<<32, testBase) // before the first grant: a read that comes early matches
	r.now = at(100)
	a := r.grant("a")
	row := &r.mem.Rows[a.Slot()]
	if row.DeadlineUs != 130e6 || row.GenBeats != 0 {
		t.Errorf("row %+v after the grant", *row)
	}
	r.now = at(105)
	r.beat("a")
	if row.DeadlineUs != 130e6 || row.GenBeats != 1<<32 {
		t.Errorf("row %+v after a heartbeat that moved nothing, want it counted", *row)
	}
	r.now = at(120)
	r.t.Renew(r.entry(a), engineD, r.now)
	if row.DeadlineUs != 140e6 || row.GenBeats != 2<<32 {
		t.Errorf("row %+v after a heartbeat that moved the deadline", *row)
	}
	r.t.Cancel(a, r.now)
	r.drain()
	b := r.grant("b")
	if row.GenBeats != 1 || b.Use() != 1 {
		t.Errorf("row %+v after the second grant, want generation 1 and no beats", *row)
	}
}

func TestL11ASlotIsGrantedAgainOnlyAfterItsEndWasTold(t *testing.T) {
	r := newRig(t, 1)
	a := r.grant("a")
	r.done("a", "D", 1)
	before := *r.c
	r.want(r.say(a, "b"), Ended) // the end waits in the slot
	r.want(r.say(record.NewHandle(0, 1), "b"), Misfit)
	if r.c.Grants != before.Grants || r.c.BadHandle != before.BadHandle+1 || r.c.Again != before.Again+1 {
		t.Errorf("counters %+v", *r.c)
	}
	r.wantEnded(record.FreedCompleted, a)
	r.grant("b")
}

func TestL11AGrantOfAUseThatEndedHereIsToldOnceMore(t *testing.T) {
	r := newRig(t, 2)
	a := r.grant("a")
	r.done("a", "D", 1)
	r.wantEnded(record.FreedCompleted, a)
	r.want(r.say(a, "a"), Late) // after a gap in the stream the host says it again
	r.wantCount("said again", r.c.Again, 1)

	// A rank whose row is already past the use that it is told of, by the state of its slot for the first time.
	r.mem.Rows[1].Fence = testBase + 5
	b := record.NewHandle(1, 4)
	r.want(r.say(b, "b"), Ended)
	r.wantEnded(record.FreedExpired, b)
	r.wantFence(b, testBase+5)
	r.wantEmpty()
}

func TestL11ARankFarBehindTakesTheUseThatItIsTold(t *testing.T) {
	r := newRig(t, 2)
	r.want(r.t.Renew(Entry{Slot: 1, Generation: 0, Key: Key(r.secret, 1, 0)}, engineD, r.now), Kept)
	b := record.NewHandle(1, 7) // uses 0 to 6 never came here
	r.want(r.say(b, "b"), Applied)
	r.wantFence(b, testBase+7)
	if r.t.hot[1].who != 0 {
		t.Error("a message kept for use 0 was applied to use 7")
	}
	r.want(r.t.Complete(r.entry(b), engineD, 1, r.now), Ended)
	r.wantEnded(record.FreedCompleted, b)
	r.wantFence(b, testBase+8)
}
