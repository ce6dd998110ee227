package capacity

import (
	"context"
	"io"
	"runtime/debug"
	"slices"
	"sync"
)

// Check says what cannot be, before anything is played: an error that wraps ErrConfig.
func Check(cfg Config, sets []Setting) error {
	if err := cfg.check(); err != nil {
		return err
	}
	for _, s := range sets {
		if err := s.check(cfg.Pass); err != nil {
			return err
		}
	}
	return nil
}

// Compare runs the same load with each of several settings, at most workers at once, and gives the results in order, with an error
// those that there are. Each run opens
// the trace anew. done hears of each result as it comes, from one goroutine at a time; nil: nobody. The first error ends it all
// as soon as the runs under way have ended; the end of ctx ends these, too.
func Compare(ctx context.Context, cfg Config, sets []Setting, open func() (io.ReadCloser, error), workers int, done func(*Result)) ([]*Result, error) {
	if err := Check(cfg, sets); err != nil {
		return nil, err
	}
	results := make([]*Result, len(sets))
	var mu sync.Mutex
	var failed error
	next := 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil || next == len(sets) {
			return -1
		}
		next++
		return next - 1
	}
	var all sync.WaitGroup
	for range min(max(workers, 1), len(sets)) {
		all.Go(func() {
			for i := take(); i >= 0; i = take() {
				r, err := runOpened(ctx, cfg, sets[i], open)
				mu.Lock()
				if err != nil && failed == nil {
					failed = err
				}
				if results[i] = r; r != nil && done != nil {
					done(r)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return slices.DeleteFunc(results, func(r *Result) bool { return r == nil }), failed
}

func runOpened(ctx context.Context, cfg Config, set Setting, open func() (io.ReadCloser, error)) (*Result, error) {
	in, err := open()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	defer debug.FreeOSMemory() // a fleet takes gigabytes, most of them never touched, and the next one comes
	return Run(ctx, cfg, set, in)
}
