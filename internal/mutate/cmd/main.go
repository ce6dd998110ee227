// Command cmd is `make mutate`: it applies the named mutations and those that a seed draws, and writes docs/mutations.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvlease/kvlease/internal/mutate"
	"github.com/kvlease/kvlease/internal/output"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var (
		root    = flag.String("root", ".", "the repository")
		what    = flag.String("what", "all", "named, drawn, all, or page: only write the page")
		n       = flag.Int("n", 300, "drawn mutations that compile")
		seed    = flag.Uint64("seed", 1, "of what is drawn")
		stages  = flag.Int("stages", 10, "packages whose tests are asked about one drawn mutation")
		workers = flag.Int("workers", runtime.NumCPU(), "mutations at a time")
		only    = flag.String("only", "", "of the named ones, those that match; of the drawn ones, those whose place does")
		again   = flag.Bool("again", false, "run only what was not caught the last time")
		goOn    = flag.Bool("continue", false, "go on with a run that was interrupted")
		results = flag.String("results", "build/mutate.json", "where results are kept")
		page    = flag.String("page", "docs/mutations.md", "what is written")
	)
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	named, err := mutate.LoadNamed(*root)
	if err != nil {
		return err
	}
	equal, err := mutate.LoadEqual(*root)
	if err != nil {
		return err
	}
	last, err := mutate.LoadRun(*results)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	r := &mutate.Runner{Root: *root, Dir: dir, Workers: *workers, Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) }}
	if *again || *goOn {
		r.Normal = last.Normal
	}
	partly := *again || *only != ""
	now := commit(*root)
	if *what != "page" {
		last.Date = time.Now().UTC().Format(time.DateOnly)
		if !partly && !*goOn {
			last.Seed, last.Commit = *seed, now
		}
	}

	if *what == "named" || *what == "all" {
		want := slices.DeleteFunc(slices.Clone(named), func(m mutate.Mutation) bool {
			return !match.MatchString(m.Name) || *again && slices.ContainsFunc(last.Named, func(n mutate.NamedResult) bool {
				return n.Name == m.Name && n.Verdict.Caught()
			})
		})
		got, err := r.Named(ctx, want)
		if err != nil {
			return err
		}
		for i := range got {
			got[i].Commit = now
		}
		last.Named = mergeNamed(named, last.Named, got)
		if err := last.Save(*results); err != nil {
			return err
		}
	}
	if *what == "drawn" || *what == "all" {
		var names []string
		for _, p := range mutate.Packages {
			names = append(names, p.Name)
		}
		sites, err := mutate.Draw(*root, names, *seed)
		if err != nil {
			return err
		}
		last.Forget(sites)
		want, count := sites, *n
		if partly {
			want = slices.DeleteFunc(slices.Clone(sites), func(s mutate.Site) bool {
				at := find(last.Drawn, &s)
				return at < 0 || !match.MatchString(s.Where()) || *again && last.Drawn[at].Verdict != mutate.Survived
			})
			count = len(want)
		} else if *goOn {
			want = slices.DeleteFunc(slices.Clone(sites), func(s mutate.Site) bool { return find(last.Drawn, &s) >= 0 })
			for _, d := range last.Drawn {
				if d.Verdict != mutate.Broken {
					count--
				}
			}
		} else {
			last.Drawn = nil
		}
		got, err := r.Drawn(ctx, want, count, *stages)
		last.Normal, last.Stages = r.Normal, *stages
		for _, g := range got {
			g.Commit = now
			if at := find(last.Drawn, &g.Site); at >= 0 {
				g.Late = last.Drawn[at].Late || last.Drawn[at].Verdict == mutate.Survived && g.Verdict.Caught()
				last.Drawn[at] = g
			} else {
				last.Drawn = append(last.Drawn, g)
			}
		}
		if saved := last.Save(*results); err != nil || saved != nil {
			return errors.Join(err, saved)
		}
	}
	text := last.Page(named, equal)
	if err := output.WriteFile(filepath.Join(*root, filepath.FromSlash(*page)), "name another file by -page", []byte(text)); err != nil {
		return err
	}
	_, sum, _ := strings.Cut(text, "**")
	sum, _, _ = strings.Cut(sum, "**")
	fmt.Println(strings.ReplaceAll(sum, "\n", " "))
	for _, res := range last.Named {
		if !res.Verdict.Caught() {
			return fmt.Errorf("mutation %q: %s", res.Name, res.Verdict)
		}
	}
	return nil
}

func find(all []mutate.DrawnResult, s *mutate.Site) int {
	return slices.IndexFunc(all, func(d mutate.DrawnResult) bool { return d.Same(s) })
}

// mergeNamed gives the results of all named mutations there are now, new ones first.
func mergeNamed(all []mutate.Mutation, last, got []mutate.NamedResult) (out []mutate.NamedResult) {
	for _, m := range all {
		for _, from := range [][]mutate.NamedResult{got, last} {
			if at := slices.IndexFunc(from, func(n mutate.NamedResult) bool { return n.Name == m.Name }); at >= 0 {
				out = append(out, from[at])
				break
			}
		}
	}
	return out
}

func commit(root string) string {
	cmd := exec.Command("git", "rev-parse", "--short=10", "HEAD")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
