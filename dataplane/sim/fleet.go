package sim

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Total is what came of many random runs.
type Total struct {
	Result
	Seeds     int
	Wrong     int      // seeds in which wrong data was accepted
	Broken    int      // seeds in which a rule was broken
	Bad       []uint64 // seeds of which that is so, in order; at most badMax
	Took      time.Duration
	ByRule    map[Rule]int // seeds by the rule that they broke first
	Violation []Violation  // the first of each of Bad
}

const badMax = 64

// Fleet runs n random schedules, with the seeds from first on, on all processors. tell, if not nil, hears of each run that broke a
// rule; it is called by one goroutine at a time.
func Fleet(first uint64, n int, faults Faults, tell func(seed uint64, r *Result)) (*Total, error) {
	var (
		next  atomic.Int64
		mu    sync.Mutex
		wait  sync.WaitGroup
		fails error
		begin = time.Now()
		sum   = &Total{Seeds: n, ByRule: map[Rule]int{}}
		found = map[uint64]*Result{}
	)
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				seed := first + uint64(i)
				r, err := Run(Random(seed, faults), Options{})
				mu.Lock()
				if err != nil {
					fails = err
					mu.Unlock()
					return
				}
				sum.add(r)
				if !r.OK() {
					found[seed] = r
					sum.Broken++
					sum.ByRule[r.Violations[0].Rule]++
					for _, v := range r.Violations {
						if v.Rule == WrongData {
							sum.Wrong++
							break
						}
					}
					if tell != nil {
						tell(seed, r)
					}
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	sum.Took = time.Since(begin)
	for i := range n {
		if r := found[first+uint64(i)]; r != nil && len(sum.Bad) < badMax {
			sum.Bad = append(sum.Bad, first+uint64(i))
			sum.Violation = append(sum.Violation, r.Violations[0])
		}
	}
	return sum, fails
}
