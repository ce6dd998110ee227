package trace

import "testing"

func TestWithoutSitesNobodyListens(t *testing.T) {
	var s *Sites
	for site := range Count {
		if s.On(site) || s.For(3) != nil || s.Ctx() != 0 {
			t.Errorf("%v of none", site)
		}
	}
}

func TestASiteIsOnWhileItsOwnWordIsNotNull(t *testing.T) {
	var words Words
	var got [5]uint64
	s := New(&words, func(site Site, a, b, c, d uint64) { got = [5]uint64{uint64(site), a, b, c, d} }).For(7)
	for site := range Count {
		words[site] = 0x10000 // of the upper half, too: the kernel counts in the lower one, and carries
		for other := range Count {
			if s.On(other) != (other == site) {
				t.Errorf("%v is on: %v, while %v is attached to", other, s.On(other), site)
			}
		}
		words[site] = 0
	}
	s.Fire(StallGap, s.Ctx(), 1, 2, 3)
	if want := [5]uint64{uint64(StallGap), 7, 1, 2, 3}; got != want {
		t.Errorf("fired %v, want %v", got, want)
	}
}

func TestEachSiteHasANameOfItsOwn(t *testing.T) {
	seen := map[string]bool{"": true}
	for site := range Count {
		if name := site.String(); seen[name] {
			t.Errorf("site %d is called %q", site, name)
		} else {
			seen[name] = true
		}
	}
	if Count.String() != "unknown" {
		t.Errorf("past the last one: %v", Count)
	}
}

func TestAskingAndFiringAllocateNothing(t *testing.T) {
	var words Words
	words[StepEnd] = 1
	n := 0
	s := New(&words, func(Site, uint64, uint64, uint64, uint64) { n++ }).For(1)
	if got := testing.AllocsPerRun(100, func() {
		for site := range Count {
			if s.On(site) {
				s.Fire(site, s.Ctx(), 1, 2, 3)
			}
		}
	}); got != 0 || n == 0 {
		t.Errorf("%v allocations, %d hits", got, n)
	}
}
