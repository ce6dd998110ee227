package sim

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// What is looked for here is no broken rule but a read that was refused as stale: whatever can be found can be made smaller.
func TestAScheduleIsMadeAsSmallAsWhatItShows(t *testing.T) {
	stale := func(s *Schedule) *Result {
		if err := s.check(); err != nil {
			return nil
		}
		if res, err := runOrBreak(*s, Options{}); err == nil && res.Failed[1] > 0 {
			return res
		}
		return nil
	}
	found := 0
	for seed := uint64(1); found < 3 && seed < 200; seed++ {
		s := Random(seed, nil)
		res := stale(&s)
		if res == nil {
			continue
		}
		found++
		k := &shrinker{best: s, res: res, breaks: stale, until: time.Now().Add(time.Minute)}
		k.run()
		t.Logf("seed %d: %d actions of %d engines became %d of %d in %d runs\n%s", seed, len(s.Actions), len(s.Engines), len(k.best.Actions), len(k.best.Engines), k.runs, k.best.Print())
		if stale(&k.best) == nil {
			t.Errorf("seed %d: what is left shows it no more", seed)
		}
		// A stale read takes a grant, a track, a read, and something that ends the lease, such as another reader of it, a third engine, or one that comes late.
		if n := len(k.best.Actions); n > 8 || len(k.best.Engines) > 3 {
			t.Errorf("seed %d: %d actions of %d engines are left", seed, n, len(k.best.Engines))
		}
		for i := range k.best.Engines {
			if less := withoutEngine(k.best, i); stale(&less) != nil {
				t.Errorf("seed %d: engine %s is not needed", seed, k.best.Engines[i].ID)
			}
		}
		for i := range k.best.Actions {
			less := k.best
			less.Actions = slices.Delete(slices.Clone(less.Actions), i, i+1)
			if stale(&less) != nil {
				t.Errorf("seed %d: action %d is not needed: %+v", seed, i, k.best.Actions[i])
			}
		}
		c, err := ParseCase("left.yaml", k.best.Print())
		if err != nil || stale(&c.Schedule) == nil {
			t.Errorf("seed %d: what was printed shows it no more: %v", seed, err)
		}
	}
	if found < 3 {
		t.Errorf("only %d of 200 seeds have a stale read", found)
	}
}

func TestMakingSmallerEndsInTime(t *testing.T) {
	s := Random(1, nil)
	n := 0
	k := &shrinker{best: s, res: &Result{}, until: time.Now().Add(-time.Second), breaks: func(*Schedule) *Result { n++; return &Result{} }}
	k.run()
	if n != 0 || len(k.best.Actions) != len(s.Actions) {
		t.Errorf("%d runs behind the end of the time", n)
	}
	if got, res := Shrink(s, time.Second, nil); !res.OK() || len(got.Actions) != len(s.Actions) {
		t.Error("a schedule that breaks nothing was made smaller")
	}
}

func TestWhatIsCalledOffEndsAtOnceAndGivesNoResult(t *testing.T) {
	s := Random(1, nil)
	asked := 0
	after := func(n int) func() bool {
		asked = 0
		return func() bool { asked++; return asked > n }
	}
	if _, err := Run(s, Options{Stop: after(1 << 40)}); err != nil {
		t.Fatal(err)
	}
	whole := asked
	for _, n := range []int{0, 1, whole / 2, whole - 1} { // the last ones while all comes to its end
		if res, err := Run(s, Options{Stop: after(n)}); !errors.Is(err, ErrStopped) || res != nil || asked > n+3 {
			t.Errorf("stopped after %d of %d: %v, %v, asked %d times", n, whole, res, err, asked)
		}
	}
	c := Case{Schedule: s, Seeds: 5}
	if _, err := c.Run(Options{Stop: after(whole + 1)}); !errors.Is(err, ErrStopped) {
		t.Errorf("a case: %v", err)
	}
	if _, res := Shrink(s, time.Minute, after(5)); res != nil {
		t.Errorf("made smaller: %v", res)
	}
	k := &shrinker{best: s, res: &Result{}, stop: after(0), until: time.Now().Add(time.Minute), breaks: func(*Schedule) *Result { return &Result{} }}
	if k.run(); len(k.best.Actions) != len(s.Actions) {
		t.Error("went on when it was called off")
	}
}
