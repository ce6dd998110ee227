// Command run checks every model and every edge, and writes the table of what came out.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/kvlease/kvlease/dataplane/models"
	"github.com/kvlease/kvlease/internal/output"
	"github.com/kvlease/kvlease/internal/weakmem/edges"
)

func main() {
	dir := flag.String("dir", "dataplane/models", "where the models are")
	out := flag.String("o", "", "the file for the table; none if empty")
	jobs := flag.Int("jobs", 2, "runs at the same time")
	only := flag.String("only", "", "only models whose name begins so, and no edges unless it is edges")
	limit := flag.Duration("limit", 10*time.Minute, "of one run")
	flag.Parse()
	if err := run(*dir, *out, *only, *jobs, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		os.Exit(1)
	}
}

func run(dir, out, only string, jobs int, limit time.Duration) error {
	began := time.Now()
	results, err := runModels(dir, only, jobs, limit)
	if err != nil {
		return err
	}
	ofEdges := ""
	if only == "" || only == "edges" {
		if ofEdges, err = runEdges(); err != nil {
			return err
		}
	}
	fmt.Printf("all as expected, %s\n", time.Since(began).Round(time.Second))
	if out == "" || only != "" {
		return nil
	}
	return output.WriteFile(out, "name another file by -o", []byte(page(results, ofEdges)))
}

// runModels runs spin, and gives what came of each of models.Runs.
func runModels(dir, only string, jobs int, limit time.Duration) ([]models.Outcome, error) {
	results := make([]models.Outcome, len(models.Runs))
	var bad []error
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, max(jobs, 1))
	for i := range models.Runs {
		r := &models.Runs[i]
		if !strings.HasPrefix(r.Model, only) {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			o, err := r.Check(ctx, dir)
			mu.Lock()
			defer mu.Unlock()
			results[i] = o
			if err == nil && !r.OK(o) {
				err = fmt.Errorf("%s %s: found %q, expected %q", r.Model, r.Name(), o.Found, r.Violates)
			}
			if err != nil {
				bad = append(bad, err)
			}
			fmt.Printf("%-15s %-22s %-8s %10d states %8s  %s\n", r.Model, r.Name(), verdict(o.Found), o.States, took(o.Took), r.What)
		})
	}
	wg.Wait()
	return results, errors.Join(bad...)
}

// runEdges explores every scene, and gives the tables of what came of them.
func runEdges() (string, error) {
	var b strings.Builder
	var bad []error
	for _, s := range edges.Scenes() {
		fmt.Fprintf(&b, "\n**%s**: %s.\n\n| change | outcome | executions | time |\n|---|---|---:|---:|\n", title(s.Name), s.What)
		at := time.Now()
		s.Run(func(r edges.Run) {
			d := time.Since(at)
			change, found, n := r.Change, "", r.Graphs
			if change == "" {
				change = "none"
			}
			if r.Bad != nil {
				found = strings.TrimPrefix(r.Bad.Why, s.Name+": ")
			}
			fmt.Printf("%-62.62s %-54.54s %-8s %8d %8s\n", s.Name, change, verdict(found), n, took(d))
			outcome := "holds"
			if found != "" {
				outcome = "refuted: " + strings.ReplaceAll(found, "|", "\\|")
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %s |\n", change, outcome, n, took(d))
			if !r.OK() {
				bad = append(bad, fmt.Errorf("%s, change %s: found %q", s.Name, change, found))
			}
			at = time.Now()
		})
	}
	return b.String(), errors.Join(bad...)
}

func title(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

func verdict(found string) string {
	if found == "" {
		return "holds"
	}
	return "refuted"
}

func took(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return "<10 ms"
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func page(results []models.Outcome, ofEdges string) string {
	var b strings.Builder
	b.WriteString(head)
	for _, m := range models.Ideas {
		fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n| run | what | outcome | states | time |\n|---|---|---|---:|---:|\n", m.Model, m.Idea)
		for i := range models.Runs {
			r, o := &models.Runs[i], results[i]
			if r.Model != m.Model {
				continue
			}
			outcome := "holds"
			if r.Violates != "" {
				outcome = "refuted: " + r.Rule
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %s |\n", r.Name(), r.What, outcome, o.States, took(o.Took))
		}
	}
	b.WriteString(edgesHead)
	b.WriteString(ofEdges)
	return b.String()
}

const head = `<!-- Written by dataplane/models/run (make models). -->

# Models

What the fencing argument, the rules of a lease and the lock-free edges rest on, run through every order in which things can
happen. Each model holds as it is, and each variant that is broken on purpose is refuted: so the model can tell. ` + "`make models`" + `
runs all of it and writes this page; states and times are those of its last run, on a shared machine with two cores.

## The protocol

The models are in ` + "`dataplane/models`" + `, for spin. Searches are complete: no bitstate hashing, and no bound but the numbers of uses,
losses and reads that a run names. Liveness is checked under weak fairness.
`

const edgesHead = `
## The edges between threads

` + "`internal/weakmem`" + ` runs small programs in every execution that C11's memory model allows, as repaired since (RC11, with the release
sequences of C++20): late and reordered visibility, reads of old values, races. The scenes in ` + "`internal/weakmem/edges`" + ` are the code around each edge
that the sources name (P1, C1, ...), with the weakest orders that are enough; a test keeps the names together. Executions are counted
where the search branches, up to the first bad one.
`
