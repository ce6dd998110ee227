package capacity

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var seeds = flag.Int("seeds", 24, "runs with faults at random")

// traceOf makes a trace of n requests that is not the same for two seeds.
func traceOf(seed uint64, n int) string {
	r := rand.New(rand.NewPCG(seed, 5))
	var b strings.Builder
	at := time.Duration(0)
	for range n {
		at += time.Duration(r.ExpFloat64() * float64(200*time.Millisecond))
		b.WriteString(line(at, 1+int(r.ExpFloat64()*2000), int(r.ExpFloat64()*200)))
	}
	return b.String()
}

// drawn is a fleet with many crashes and stalls, too small a cache at times, and a router of either kind.
func drawn(seed uint64) (Config, Setting) {
	r := rand.New(rand.NewPCG(seed, 6))
	c := Defaults()
	c.Seed, c.P, c.D, c.Slots = seed, 1+r.IntN(4), 1+r.IntN(5), 1+r.IntN(4)
	c.QueueMax = c.Slots + r.IntN(20)
	c.CacheBlocks = 600 + r.IntN(3000)
	c.Prefill, c.Decode = 3000+r.Float64()*20000, 50+r.Float64()*100
	c.CrashP, c.CrashD, c.Stalls = r.Float64()*40, r.Float64()*60, r.Float64()*100
	c.Wired, c.Restart = float64(r.IntN(3))/2, time.Duration(1+r.IntN(20))*time.Second
	c.LinkRate = 1e9 + r.Float64()*20e9
	c.Load = 0.5 + r.Float64()*2
	if r.IntN(2) == 0 {
		c.Router = RoundRobin
	}
	terms := []time.Duration{6 * time.Second, 12 * time.Second, 30 * time.Second, 60 * time.Second}
	return c, Setting{Term: terms[r.IntN(4)], Fixed: r.IntN(4) == 0}
}

// Every run checks that each request and each grant ends once, that no block is free twice or lost, and that no read is accepted
// whose lease had ended.
func TestNothingIsLostOrEndsTwiceWhateverCrashesAndStandsStill(t *testing.T) {
	var sum Result
	if testing.Short() {
		*seeds = min(*seeds, 8)
	}
	for seed := uint64(1); seed <= uint64(*seeds); seed++ {
		c, s := drawn(seed)
		r, err := Run(t.Context(), c, s, strings.NewReader(traceOf(seed, 300)))
		if err != nil {
			t.Fatalf("seed %d: %v\n%+v", seed, err, c)
		}
		sum.LostLease += r.LostLease
		sum.LostPCrash += r.LostPCrash
		sum.LostDCrash += r.LostDCrash
		sum.Refused += r.Refused
		sum.StaleReads += r.StaleReads
		sum.Expired += r.Expired
		sum.Crowded += r.Crowded
		sum.Finished += r.Finished
	}
	for what, n := range map[string]uint64{
		"attempts lost for their lease": sum.LostLease, "with their P": sum.LostPCrash, "with their D": sum.LostDCrash,
		"requests that found a full cache": sum.Refused, "stale reads": sum.StaleReads, "leases that expired": sum.Expired,
		"times that no D had room": sum.Crowded, "finished requests": sum.Finished,
	} {
		if n == 0 {
			t.Errorf("no %s in %d runs: they show nothing of it", what, *seeds)
		}
	}
	t.Logf("%d finished, %d lost for their lease, %d with P, %d with D, %d stale reads",
		sum.Finished, sum.LostLease, sum.LostPCrash, sum.LostDCrash, sum.StaleReads)
}

// timeless is a result without what this machine's clocks have measured.
func timeless(r *Result) string {
	c := *r
	c.CPUP, c.CPUD, c.StepMaxP, c.StepMaxD, c.BeatCPUP, c.BeatCPUD, c.Wall = 0, 0, 0, 0, 0, 0, 0
	return fmt.Sprintf("%+v", c)
}

func TestARunFollowsFromItsSeed(t *testing.T) {
	c, s := drawn(3)
	trace := traceOf(3, 200)
	play := func(c Config) string {
		r, err := Run(t.Context(), c, s, strings.NewReader(trace))
		if err != nil {
			t.Fatal(err)
		}
		return timeless(r)
	}
	first := play(c)
	if again := play(c); again != first {
		t.Errorf("two runs of one seed:\n%s\n%s", first, again)
	}
	if c.Seed++; play(c) == first {
		t.Error("another seed gives the same run")
	}
}

// A step in every pass of every engine comes to the same, to the nanosecond: what is skipped would have done nothing.
func TestOnlyStepsThatWouldDoNothingAreSkipped(t *testing.T) {
	runs := 6
	if testing.Short() {
		runs = 1
	}
	for seed := uint64(1); seed <= uint64(runs); seed++ {
		c, s := drawn(seed)
		c.Pass = 20 * time.Millisecond
		played := func(every bool) (*Result, uint64) {
			w := play(t, c, s, traceOf(seed, 60))
			for every && !w.rests() {
				for _, e := range w.all {
					if w.now >= e.stalledTill {
						w.wake(e)
					}
				}
				if err := w.turn(); err != nil {
					t.Fatal(err)
				}
			}
			r := w.rest(t)
			steps := r.StepsP + r.StepsD
			r.StepsP, r.StepsD = 0, 0
			return r, steps
		}
		some, n := played(false)
		all, m := played(true)
		if timeless(some) != timeless(all) {
			t.Errorf("seed %d, %s: with skipped steps\n%s\nand without\n%s", seed, s.Name(), timeless(some), timeless(all))
		}
		if m < 2*n {
			t.Errorf("seed %d: %d steps of %d were skipped", seed, m-n, m)
		}
	}
}

// The bound of L4, over many fleets whose owners never stand still: a first term with its spread, or an extension, two looks, two steps.
func TestNoLeaseOfADeadReaderIsHeldPastItsBound(t *testing.T) {
	n := uint64(0)
	for seed := uint64(100); seed < 100+uint64(min(*seeds, 12)); seed++ {
		c, s := drawn(seed)
		c.D, c.CrashD, c.CrashP, c.Stalls, c.Wired = 3, 200, 0, 0, 0
		r, err := Run(t.Context(), c, s, strings.NewReader(traceOf(seed, 150)))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		n += r.Reclaim.N
		spread := s.terms() * 2 / 3 / 8
		if bound := s.Term + spread + looks; r.Reclaim.N > 0 && time.Duration(r.Reclaim.Max) > bound {
			t.Errorf("seed %d, %s: held for %v after the crash, want at most %v", seed, s.Name(), time.Duration(r.Reclaim.Max), bound)
		}
	}
	if n == 0 {
		t.Error("no lease was reclaimed")
	}
	t.Logf("%d leases reclaimed", n)
}
