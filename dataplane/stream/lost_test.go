package stream

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/await"
)

func TestALostEndIsNoticedAndWhatCameBeforeIsRead(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		for _, hostCloses := range []bool{true, false} {
			g := attached(t, kind)
			stays, goes, fd := g.h, g.r, g.hostFd
			if hostCloses {
				stays, goes, fd = g.r, g.h, g.rankFd
			}
			for i := range uint64(100) {
				putNumbered(goes.Reserve(7, 64), i)
			}
			goes.Publish()
			for woken(fd, 0) {
			}
			stays.Sleeping(true)
			if hostCloses {
				g.host.Close()
			} else {
				goes.Close()
			}
			if !woken(fd, 10*time.Second) {
				t.Fatal("the loss woke nobody")
			}
			await.True(t, "lost", func() bool { return stays.State() == Lost })
			if stays.Reserve(7, 8) != nil || stays.Fits(8) || stays.Gap() {
				t.Error("there is room to a lost end, or a gap that nobody can heal")
			}
			if _, ok := stays.Begin(); ok {
				t.Error("a full state began for a lost end")
			}
			for i := range uint64(100) {
				if _, rec, ok := stays.Next(); !ok || checkNumbered(rec, i) != nil {
					t.Fatalf("record %d of 100 is gone", i)
				}
				stays.Release()
			}
			if _, _, ok := stays.Next(); ok || stays.Pending() {
				t.Error("more came than was sent")
			}
			if err := stays.Err(); !errors.Is(err, ErrGone) || errors.Is(err, ErrEnded) {
				t.Errorf("reason %v, want %v and not that its process has ended", err, ErrGone)
			}
		}
	})
}

func TestARankThatWasAttachedOnceIsRefused(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := attached(t, kind)
		second := g.openRank(0, -1)
		taken := func() bool { return errors.Is(second.Err(), ErrTaken) }
		await.True(t, "the second rank 0 is refused", taken)
		if second.State() != Waiting || !strings.Contains(second.Err().Error(), g.cfg.EngineID) {
			t.Errorf("%v: %v", second.State(), second.Err())
		}
		g.full() // the first goes on
		g.r.Close()
		await.True(t, "lost", func() bool { return g.h.State() == Lost })
		third := g.openRank(0, -1)
		await.True(t, "the one that was started again is refused", func() bool { return errors.Is(third.Err(), ErrTaken) })
		if second.State() != Waiting || g.h.State() != Lost {
			t.Errorf("second %v, host %v", second.State(), g.h.State())
		}
	})
}

func TestARankWaitsForItsHostAndForTheNextOne(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := attached(t, kind)
		early := g.openRank(0, -1)
		await.True(t, "refused by the first host", func() bool { return errors.Is(early.Err(), ErrTaken) })
		g.host.Close()
		await.True(t, "lost", func() bool { return g.r.State() == Lost })
		var err error
		if g.host, err = OpenHost(kind, g.cfg); err != nil {
			t.Fatal(err)
		}
		defer g.host.Close()
		g.h, g.r, g.ranks[0] = g.host.End(0), early, early
		g.meet()
		if early.Err() != nil {
			t.Errorf("attached, and still: %v", early.Err())
		}
		g.full()
	})
}

func TestAHostThatLivesIsNotReplaced(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := attached(t, kind)
		h, err := OpenHost(kind, g.cfg)
		if err == nil {
			h.Close()
			t.Fatal("two hosts of one engine")
		}
		if !errors.Is(err, ErrTaken) && !errors.Is(err, ErrPath) || !strings.Contains(err.Error(), g.cfg.EngineID) {
			t.Errorf("%v: want a sentinel and the engine_id", err)
		}
		if kind == KindShm && (!strings.Contains(err.Error(), g.cfg.Path) || !strings.Contains(err.Error(), "carrier_path")) {
			t.Errorf("%v: does not name the path and its key", err)
		}
		g.full()
	})
}

func TestARankOfAnotherShapeIsRefused(t *testing.T) {
	forAll(t, []string{KindProcess, KindShm}, func(t *testing.T, kind string) {
		g := newRig(t, kind, func(c *Config) { c.TP = 2 })
		g.cfg.TP, g.cfg.PP = 1, 2
		other := g.openRank(1, -1)
		await.True(t, "refused", func() bool { return errors.Is(other.Err(), ErrInvalid) })
		if !strings.Contains(other.Err().Error(), "tp_size 2") {
			t.Errorf("%v: does not say what the host has", other.Err())
		}
		g.meet()
	})
}
