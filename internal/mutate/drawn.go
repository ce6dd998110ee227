package mutate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Packages are those in whose files mutations are drawn, and the packages whose tests are asked next when their own did not notice:
// those that use them, nearest first.
var Packages = []struct {
	Name  string
	After []string
}{
	{"dataplane/lease", []string{"dataplane/group", "dataplane/core"}},
	{"dataplane/heartbeat", []string{"dataplane/group", "dataplane/core"}},
	{"dataplane/read", []string{"dataplane/heartbeat", "dataplane/group", "dataplane/core"}},
	{"dataplane/wire", []string{"dataplane/handshake", "dataplane/heartbeat", "dataplane/core"}},
	{"dataplane/handshake", []string{"dataplane/core"}},
	{"dataplane/zmtp", []string{"dataplane/handshake", "dataplane/core"}},
	{"dataplane/internal/due", []string{"dataplane/heartbeat"}},
	{"dataplane/internal/list", []string{"dataplane/group", "dataplane/core"}},
	{"ringbuf", []string{"ringbuf/internal/cring", "dataplane/submit", "dataplane/stream", "dataplane/core"}},
}

func after(pkg string) []string {
	for _, p := range Packages {
		if p.Name == pkg {
			return p.After
		}
	}
	return nil
}

// Drawn applies sites in their order until n of them have compiled, and runs the tests of their package, then those of After.
// stages bounds how many packages' tests are run for one site.
func (r *Runner) Drawn(ctx context.Context, sites []Site, n, stages int) ([]DrawnResult, error) {
	if err := r.measure(ctx, sites, stages); err != nil {
		return nil, err
	}
	var out []DrawnResult
	began, compiled, caught := time.Now(), 0, 0 // below, the lock is for these and the log
	for from := 0; compiled < n && from < len(sites); {
		// As many as are still wanted; those that do not compile are made up for by the next ones.
		batch := sites[from:min(from+n-compiled, len(sites))]
		from += len(batch)
		results := make([]DrawnResult, len(batch))
		err := r.each(ctx, len(batch), func(ctx context.Context, i int) error {
			one := time.Now()
			res, err := r.drawn(ctx, &batch[i], stages)
			if err != nil {
				return fmt.Errorf("%s: %w", batch[i].Where(), err)
			}
			res.Took = time.Since(one).Round(time.Millisecond)
			results[i] = DrawnResult{batch[i], res}
			r.mu.Lock()
			defer r.mu.Unlock()
			if res.Verdict == Broken {
				return nil
			}
			compiled++
			if res.Verdict.Caught() {
				caught++
			}
			left := time.Duration(float64(time.Since(began)) / float64(compiled) * float64(n-compiled)).Round(time.Minute)
			r.Log("%3d/%d  %2d%%  ~%v left  %-18s %s %s: %.60q %s", compiled, n, 100*caught/compiled, left, res.Verdict,
				batch[i].Where(), batch[i].Kind, batch[i].Old, res.Test)
			return nil
		})
		out = append(out, slices.DeleteFunc(results, func(d DrawnResult) bool { return d.Verdict == "" })...)
		if err != nil {
			return out, err
		}
	}
	return out, nil
}

// asked are the packages whose tests are run for a mutation in pkg, in their order.
func asked(pkg string, stages int) []string {
	all := append([]string{pkg}, after(pkg)...)
	return all[:min(stages, len(all))]
}

// measure notes what all tests of unchanged packages take, and that they pass.
func (r *Runner) measure(ctx context.Context, sites []Site, stages int) error {
	var packages []string
	for i := range sites {
		packages = append(packages, asked(sites[i].Package, stages)...)
	}
	slices.Sort(packages)
	packages = slices.Compact(packages)
	if r.Normal == nil {
		r.Normal = make(map[string]Cost)
	}
	for _, pkg := range packages {
		if r.Normal[pkg] != (Cost{}) {
			continue
		}
		dir, err := r.place()
		if err != nil {
			return err
		}
		b, _, err := buildTests(ctx, r.Root, pkg, "", filepath.Join(dir, "unchanged"))
		if err != nil {
			return err
		}
		res, err := r.twice(ctx, b, limit{10 * time.Minute, 20 * time.Minute})
		os.RemoveAll(dir)
		if err != nil {
			return err
		}
		if !res.ok {
			return fmt.Errorf("the tests of %s do not pass on the code as it is: %s", pkg, res.out)
		}
		r.Normal[pkg] = res.took
		r.Log("unchanged: %s passes in %.1fs", pkg, res.took.Wall.Seconds())
	}
	return nil
}

func (r *Runner) drawn(ctx context.Context, s *Site, stages int) (Result, error) {
	dir, err := r.place()
	if err != nil {
		return Result{}, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(r.Root, filepath.FromSlash(s.File))
	text, err := os.ReadFile(path)
	if err != nil {
		return Result{}, fmt.Errorf("%w: %w", ErrApply, err)
	}
	mutated, err := s.apply(text)
	if err != nil {
		return Result{}, err
	}
	overlay, err := writeOverlay(dir, map[string][]byte{path: mutated})
	if err != nil {
		return Result{}, err
	}
	for _, pkg := range asked(s.Package, stages) {
		b, ok, err := buildTests(ctx, r.Root, pkg, overlay, filepath.Join(dir, "tests"))
		if err != nil {
			return Result{}, err
		}
		if !ok {
			return Result{Verdict: Broken}, nil
		}
		res, err := r.twice(ctx, b, r.limitOf(r.Normal[pkg]))
		if err != nil {
			return Result{}, err
		}
		if !res.ok {
			return verdictOf(res, pkg), nil
		}
	}
	return Result{Verdict: Survived}, nil
}

// twice runs all tests. One that fails must fail again by itself: a test that a busy machine has upset has caught nothing. Of one
// that has used up its time of the processor a busy machine is not the reason.
func (r *Runner) twice(ctx context.Context, b tests, most limit) (ran, error) {
	skip := ""
	for {
		var more []string
		if skip != "" {
			more = append(more, "-test.skip="+skip)
		}
		res, err := b.run(ctx, "", most, more...)
		if err != nil || res.ok || res.test == "" || res.timedOut && res.took.Processor >= most.processor {
			return res, err
		}
		again, err := b.run(ctx, pattern(res.test), most)
		if err != nil || !again.ok {
			again.took = res.took
			return again, err
		}
		r.Log("     %s of %s failed once and then passed: not counted", res.test, b.pkg)
		if skip != "" {
			skip += "|"
		}
		skip += pattern(res.test)
	}
}
