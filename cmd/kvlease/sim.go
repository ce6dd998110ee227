package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim"
)

type simCmd struct {
	Case   string        `help:"Run a case and check what it expects: a file, or one that is built in, such as C26; list for those." placeholder:"CASE"`
	Replay string        `help:"Run a case file as it stands, whatever it expects." placeholder:"FILE"`
	Seed   string        `help:"Draw a fleet and its faults from this number and run them." placeholder:"N"`
	Faults string        `help:"With --seed: the kinds of faults, with commas between, or all, or none; a part of them drawn by the seed if empty." placeholder:"LIST"`
	Log    bool          `help:"Print every event of the run."`
	SVG    string        `help:"Draw a timeline into this file." placeholder:"FILE"`
	Out    string        `help:"With --seed: write what was drawn as a case file; if a rule is broken, made as small as possible." placeholder:"FILE"`
	Shrink time.Duration `help:"With --seed: how long a failing schedule is made smaller." default:"30s"`

	simTrace `embed:""`
}

func (simCmd) Help() string {
	return `Whole fleets of the real lease, heartbeat and read code on a virtual clock, over a network that loses, delays, repeats and breaks. Nothing is measured; the same input gives the same run on every machine.

Every run is watched: no wrong data may be handed out, no lease end twice, late or early, no block be given out while a transfer may write it, and nothing be left at the end. A case file says besides what has to be so at which time (docs/case-files.md). The exit status is 1 if a rule was broken or an expectation was not met.

  $ kvlease sim --case C26                                 one fault case, with what is right
  $ kvlease sim --seed 7 --log                             a fleet and faults by chance, every event
  $ kvlease sim --seed 7 --out drawn.yaml                  the same as a case file, to change and to run again
  $ kvlease sim --replay drawn.yaml --svg drawn.svg        a picture of it

Kinds of faults: ` + strings.Join(sim.FaultKinds(), ", ") + ".\n\n" + simTraceHelp
}

// way is one of the things that the command can do: one flag chooses it.
type way struct {
	flag  string
	given bool
	do    func(*world) error
}

// ways are all of them.
func (c *simCmd) ways() []way {
	return []way{
		{"--case", c.Case != "", c.runCase},
		{"--replay", c.Replay != "", c.replay},
		{"--trace", c.Trace != "", func(w *world) error { return c.simTrace.run(w, c.Seed, c.SVG) }},
		{"--seed", c.Seed != "" && c.Trace == "", c.random},
	}
}

func (c *simCmd) Run(w *world) error {
	var chosen []way
	var names []string
	for _, y := range c.ways() {
		names = append(names, y.flag)
		if y.given {
			chosen = append(chosen, y)
		}
	}
	switch {
	case len(chosen) == 0:
		return usageError{fmt.Errorf("what shall be run? say one of %s", strings.Join(names, ", "))}
	case len(chosen) > 1:
		return usageError{fmt.Errorf("%s and %s: say one of them", chosen[0].flag, chosen[1].flag)}
	case c.Seed == "" && c.Faults != "":
		return usageError{errors.New("--faults goes with --seed")}
	case c.Seed == "" && c.Out != "":
		return usageError{errors.New("--out goes with --seed")}
	case c.Shrink < 0 || c.Shrink > time.Hour:
		return usageError{fmt.Errorf("--shrink is %v, allowed: 0s to 1h", c.Shrink)}
	}
	return chosen[0].do(w)
}

// errBroken is the end of a run that went wrong, told already.
var errBroken = errors.New("the run went wrong")

func (c *simCmd) runCase(w *world) error {
	if c.Case == "list" {
		return c.list(w)
	}
	k, err := c.load(c.Case)
	if err != nil {
		return err
	}
	if len(k.Expect) == 0 {
		return fmt.Errorf("%s expects nothing: list it under expect, or use --replay", c.Case)
	}
	out, err := k.Run(c.Log || c.SVG != "")
	if err != nil {
		return err
	}
	c.print(w, out.Result)
	failed := 0
	for _, f := range out.Findings {
		verdict := "ok    "
		if !f.OK {
			verdict = "FAILED"
			failed++
		}
		fmt.Fprintf(w.stdout, "%s line %-3d %s%s\n", verdict, f.Expectation.Line(), f.Expectation, shown(f.Expectation.Shows))
		if !f.OK {
			fmt.Fprintf(w.stdout, "       at %v: %s\n", f.At, f.Got)
		}
	}
	s := k.Schedule
	s.Seed = out.Seed
	if err := c.draw(&s, out.Result); err != nil {
		return err
	}
	c.summary(w, out.Result)
	if failed > 0 {
		fmt.Fprintf(w.stdout, "%d of %d expectations not met, with seed %d\n", failed, len(out.Findings), out.Seed)
	}
	if !out.OK() {
		return errBroken
	}
	return nil
}

// list tells which cases are built in.
func (c *simCmd) list(w *world) error {
	for _, name := range sim.BuiltIn() {
		k, err := sim.LoadCase(name)
		if err != nil {
			return err
		}
		fmt.Fprintf(w.stdout, "%-4s %-58s %s\n", name, k.Name, strings.Join(k.Covers, " "))
	}
	return nil
}

// shown names the right lines that an expectation shows.
func shown(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "    (shows " + strings.Join(lines, ", ") + ")"
}

func (c *simCmd) replay(w *world) error {
	k, err := c.load(c.Replay)
	if err != nil {
		return err
	}
	return c.run(w, k.Schedule)
}

func (c *simCmd) random(w *world) error {
	var seed uint64
	if n, err := fmt.Sscan(c.Seed, &seed); n != 1 || err != nil || fmt.Sprint(seed) != c.Seed {
		return usageError{fmt.Errorf("--seed is %q, allowed: a whole number from 0", c.Seed)}
	}
	faults, err := sim.ParseFaults(c.Faults)
	if err != nil {
		return usageError{fmt.Errorf("--faults: %w", err)}
	}
	s := sim.Random(seed, faults)
	err = c.run(w, s)
	if errors.Is(err, errBroken) && c.Shrink > 0 {
		fmt.Fprintf(w.stderr, "making it smaller, for at most %v\n", c.Shrink)
		var res *sim.Result
		s, res = sim.Shrink(s, c.Shrink)
		if !res.OK() {
			fmt.Fprintf(w.stdout, "%d actions of %d engines do it: %v\n", len(s.Actions), len(s.Engines), res.Violations[0])
		}
	}
	switch {
	case c.Out != "":
		if werr := os.WriteFile(c.Out, s.Print(), 0o644); werr != nil {
			return werr
		}
		fmt.Fprintln(w.stdout, "written to", c.Out)
	case err != nil:
		fmt.Fprintf(w.stdout, "\n%s", s.Print())
	}
	return err
}

// run carries a schedule out and tells what came of it.
func (c *simCmd) run(w *world, s sim.Schedule) error {
	res, err := sim.Run(s, sim.Options{Log: c.Log || c.SVG != ""})
	if err != nil {
		return err
	}
	c.print(w, res)
	if err := c.draw(&s, res); err != nil {
		return err
	}
	c.summary(w, res)
	if !res.OK() {
		return errBroken
	}
	return nil
}

func (c *simCmd) load(path string) (*sim.Case, error) {
	k, err := sim.LoadCase(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("there is no file %s, and no case of that name is built in: see --case list", path)
	}
	return k, err
}

func (c *simCmd) print(w *world, res *sim.Result) {
	if c.Log {
		_, _ = res.Log.WriteTo(w.stdout)
	}
}

// summary is the last lines of a run.
func (c *simCmd) summary(w *world, res *sim.Result) {
	failed := 0
	for _, n := range res.Failed {
		failed += n
	}
	fmt.Fprintf(w.stdout, "%d leases granted, %d reads done, %d not, %d blocks compared, %d steps\n", res.Granted, res.Done, failed, res.Compared, res.Steps)
	for _, v := range res.Violations {
		fmt.Fprintln(w.stdout, "BROKEN", v)
	}
}

// draw writes the timeline.
func (c *simCmd) draw(s *sim.Schedule, res *sim.Result) error {
	if c.SVG == "" {
		return nil
	}
	f, err := os.Create(c.SVG)
	if err != nil {
		return err
	}
	err = writeChart(f, s, res)
	return errors.Join(err, f.Close())
}

func writeChart(w io.Writer, s *sim.Schedule, res *sim.Result) error {
	return chartOf(s, res).Write(w)
}
