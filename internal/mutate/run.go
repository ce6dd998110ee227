package mutate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Runner applies mutations, each in a folder of its own below Dir.
//
// Threads: its methods are called by one; they use Workers goroutines.
type Runner struct {
	Root    string // of the repository
	Dir     string // for overlays and binaries; whatever lies there goes with the caller
	Workers int
	Slack   time.Duration // what mutated tests may take beside twice what they take otherwise; 5 s
	Log     func(format string, args ...any)

	Normal map[string]Cost // of all tests of a package, what is known already; what is missing is measured

	mu        sync.Mutex
	binN      int
	namedCost map[string]Cost // of the tests of a package that named mutations ask
}

// Result is what became of one mutation.
type Result struct {
	Verdict Verdict       `json:"verdict"`
	Package string        `json:"caught_in,omitempty"` // whose tests noticed
	Test    string        `json:"test,omitempty"`      // the first that did; empty: the process ended
	Took    time.Duration `json:"took"`
	Commit  string        `json:"commit,omitempty"` // of the tree that was mutated
	Late    bool          `json:"late,omitempty"`   // it had survived before: a test was written for it
}

// NamedResult is that of a named mutation.
type NamedResult struct {
	Name string `json:"name"`
	Result
}

// DrawnResult is that of a drawn one.
type DrawnResult struct {
	Site
	Result
}

// place makes a folder for one build.
func (r *Runner) place() (string, error) {
	r.mu.Lock()
	r.binN++
	dir := filepath.Join(r.Dir, fmt.Sprint("m", r.binN))
	r.mu.Unlock()
	return dir, os.MkdirAll(dir, 0o755)
}

// Named checks that the tests pass without the mutations, then applies one after the other and runs the test that is to notice.
func (r *Runner) Named(ctx context.Context, all []Mutation) ([]NamedResult, error) {
	for _, m := range all {
		if err := m.Check(r.Root); err != nil {
			return nil, err
		}
	}
	if err := r.unchanged(ctx, all); err != nil {
		return nil, err
	}
	out := make([]NamedResult, len(all))
	done := 0
	err := r.each(ctx, len(all), func(ctx context.Context, i int) error {
		m := &all[i]
		began := time.Now()
		res, err := r.named(ctx, m)
		if err != nil {
			return fmt.Errorf("mutation %q: %w", m.Name, err)
		}
		res.Took = time.Since(began).Round(time.Millisecond)
		out[i] = NamedResult{m.Name, res}
		r.mu.Lock()
		done++
		r.Log("%3d/%d  %-18s %s (%s, %.1fs)", done, len(all), res.Verdict, m.Name, m.Caught.Test, res.Took.Seconds())
		r.mu.Unlock()
		return nil
	})
	return out, err
}

// unchanged runs the tests that are to notice on the code as it is.
func (r *Runner) unchanged(ctx context.Context, all []Mutation) error {
	r.namedCost = make(map[string]Cost)
	byPackage := make(map[string]map[string]bool)
	for _, m := range all {
		if byPackage[m.Caught.Package] == nil {
			byPackage[m.Caught.Package] = make(map[string]bool)
		}
		byPackage[m.Caught.Package][m.Caught.Test] = true
	}
	packages := slices.Sorted(maps.Keys(byPackage))
	return r.each(ctx, len(packages), func(ctx context.Context, i int) error {
		pkg := packages[i]
		names := slices.Sorted(maps.Keys(byPackage[pkg]))
		dir, err := r.place()
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if (Caught{Package: pkg}).IsC() {
			for _, name := range names {
				bin, _, err := buildC(ctx, r.Root, pkg, name, dir, nil)
				if err != nil {
					return err
				}
				if res, err := limited(ctx, dir, limit{2 * time.Minute, 4 * time.Minute}, bin); err != nil || !res.ok {
					return errors.Join(fmt.Errorf("%s of %s fails on the code as it is: %s", name, pkg, res.out), err)
				}
				os.RemoveAll(filepath.Join(dir, filepath.Dir(pkg)))
			}
			return nil
		}
		b, _, err := buildTests(ctx, r.Root, pkg, "", filepath.Join(dir, "unchanged"))
		if err != nil {
			return err
		}
		res, err := b.run(ctx, pattern(names...), limit{5 * time.Minute, 10 * time.Minute})
		if err != nil {
			return err
		}
		for _, m := range passLine.FindAllSubmatch(res.out, -1) {
			names = slices.DeleteFunc(names, func(n string) bool { return n == string(m[1]) })
		}
		if !res.ok || len(names) > 0 {
			return fmt.Errorf("tests of %s do not pass on the code as it is: %s\n%s", pkg, strings.Join(names, ", "), res.out)
		}
		r.mu.Lock()
		r.namedCost[pkg] = res.took
		r.mu.Unlock()
		return nil
	})
}

func pattern(names ...string) string {
	for i := range names {
		names[i] = regexp.QuoteMeta(names[i])
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

func (r *Runner) named(ctx context.Context, m *Mutation) (Result, error) {
	dir, err := r.place()
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	var res ran
	if m.Caught.IsC() {
		bin, ok, err := buildC(ctx, r.Root, m.Caught.Package, m.Caught.Test, dir, m.Changes())
		if err != nil || !ok {
			return Result{Verdict: Broken}, err
		}
		if res, err = limited(ctx, dir, limit{20 * time.Second, time.Minute}, bin); err != nil {
			return Result{}, err
		}
		res.test = m.Caught.Test
	} else {
		overlay, err := Overlay(r.Root, dir, m.Changes()...)
		if err != nil {
			return Result{}, err
		}
		b, ok, err := buildTests(ctx, r.Root, m.Caught.Package, overlay, filepath.Join(dir, "tests"))
		if err != nil || !ok {
			return Result{Verdict: Broken}, err
		}
		if res, err = b.run(ctx, pattern(m.Caught.Test), r.limitOf(r.namedCost[m.Caught.Package])); err != nil {
			return Result{}, err
		}
	}
	return verdictOf(res, m.Caught.Package), nil
}

func verdictOf(res ran, pkg string) Result {
	switch {
	case res.ok:
		return Result{Verdict: Survived}
	case res.timedOut:
		return Result{Verdict: TimedOut, Package: pkg, Test: res.test}
	}
	return Result{Verdict: WasCaught, Package: pkg, Test: res.test}
}

// each calls do for 0..n-1 on Workers goroutines, in order. The first error ends it.
func (r *Runner) each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range max(r.Workers, 1) {
		wg.Go(func() {
			for i := range next {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
feed:
	for i := range n {
		select {
		case next <- i:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}
