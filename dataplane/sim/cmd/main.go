// Command sim runs random schedules of the simulation over all processors, and its positive controls.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim"
	"github.com/kvlease/kvlease/internal/mutate"
	"github.com/kvlease/kvlease/internal/output"
)

func main() {
	var (
		seeds    = flag.Int("seeds", 1000, "random runs")
		first    = flag.Uint64("first", 0, "seed of the first one; 0: by the clock")
		faults   = flag.String("faults", "", "kinds of faults, with commas; empty: a part of all in each run")
		controls = flag.Int("controls", 0, "runs of each positive control; 0: none")
		only     = flag.String("control", "", "only this one")
		root     = flag.String("root", ".", "of the repository, for the controls")
		out      = flag.String("out", "", "folder for the case files of runs that break a rule; empty: none is written")
		asJSON   = flag.Bool("json", false, "only the totals, as JSON")
	)
	flag.Parse()
	kinds, err := sim.ParseFaults(*faults)
	if err != nil {
		fail(err)
	}
	if *first == 0 {
		*first = uint64(time.Now().UnixNano())
	}
	if *asJSON {
		t, err := sim.Fleet(*first, *seeds, kinds, nil)
		if err != nil {
			fail(err)
		}
		json.NewEncoder(os.Stdout).Encode(t)
		return
	}
	ok := random(*first, *seeds, kinds, *out)
	if *controls > 0 && !control(*root, *first, *controls, *only) {
		ok = false
	}
	if !ok {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "sim:", err)
	os.Exit(2)
}

// random runs the real code.
func random(first uint64, n int, kinds sim.Faults, out string) bool {
	if n == 0 {
		return true
	}
	fmt.Printf("%d runs, seeds from %d on\n", n, first)
	t, err := sim.Fleet(first, n, kinds, func(seed uint64, r *sim.Result) {
		fmt.Printf("seed %d: %v\n", seed, r.Violations[0])
	})
	if err != nil {
		fail(err)
	}
	fmt.Printf("%.1f seeds a second; %d steps\n", float64(n)/t.Took.Seconds(), t.Steps)
	fmt.Printf("%d leases granted, freed: %s\n", t.Granted, counts(t.Freed[:], sim.FreedNames()))
	fmt.Printf("%d reads accepted (%d blocks compared), not accepted: %s\n", t.Done, t.Compared, counts(t.Failed[:], sim.ReadNames()))
	fmt.Printf("wrong data accepted in %d runs; %d by stock engines, which have no fence\n", t.Wrong, t.StockWrong)
	fmt.Printf("a rule broken in %d runs\n", t.Broken)
	for i, seed := range t.Bad {
		if i == 3 || out == "" {
			break
		}
		small, r := sim.Shrink(sim.Random(seed, kinds), 30*time.Second, nil)
		name := filepath.Join(out, fmt.Sprintf("seed-%d.yaml", seed))
		if err := output.WriteFile(name, "name another folder by -out", small.Print()); err != nil {
			fail(err)
		}
		what := t.Violation[i]
		if r != nil && len(r.Violations) > 0 {
			what = r.Violations[0]
		}
		fmt.Printf("seed %d is %s with %d actions: %v\n", seed, name, len(small.Actions), what)
	}
	return t.Broken == 0
}

func counts(n []int, names []string) string {
	var all []string
	for i, k := range n {
		if k > 0 {
			all = append(all, fmt.Sprintf("%d %s", k, names[i]))
		}
	}
	return strings.Join(all, ", ")
}

// control builds this command with each control's changes, and has it accept wrong data.
func control(root string, first uint64, n int, only string) bool {
	list, err := sim.Controls()
	if err != nil {
		fail(err)
	}
	ok := true
	for _, c := range list {
		if only != "" && c.Name != only {
			continue
		}
		t, err := runControl(root, c, first, n)
		if err != nil {
			fail(fmt.Errorf("control %q: %w", c.Name, err))
		}
		verdict := "as it must"
		if t.Wrong*100 < n {
			verdict, ok = "TOO FEW", false
		}
		fmt.Printf("control %-50q wrong data in %4d of %d seeds (%.1f %%), a rule broken in %d: %s\n", c.Name, t.Wrong, n, 100*float64(t.Wrong)/float64(n), t.Broken, verdict)
	}
	return ok
}

func runControl(root string, c sim.Control, first uint64, n int) (*sim.Total, error) {
	dir, err := os.MkdirTemp("", "kvlease-sim-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var changes []mutate.Change
	for _, e := range c.Edits {
		changes = append(changes, mutate.Change{File: e.File, Old: e.Old, New: e.New})
	}
	overlay, err := mutate.Overlay(root, dir, changes...)
	if err != nil {
		return nil, err
	}
	bin := filepath.Join(dir, "sim")
	build := exec.Command("go", "build", "-overlay", overlay, "-o", bin, "./dataplane/sim/cmd")
	build.Dir, build.Stderr, build.Env = root, os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	run := exec.Command(bin, "-json", "-seeds", fmt.Sprint(n), "-first", fmt.Sprint(first))
	run.Stderr = os.Stderr
	text, err := run.Output()
	if err != nil {
		return nil, fmt.Errorf("run: %w", err)
	}
	t := new(sim.Total)
	return t, json.Unmarshal(text, t)
}
