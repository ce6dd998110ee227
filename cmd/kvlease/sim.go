package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/kvlease/kvlease/dataplane/sim"
	"github.com/kvlease/kvlease/internal/output"
	"github.com/kvlease/kvlease/internal/plural"
)

type simCmd struct {
	Case   string        `help:"Run a case and check what it expects: a file, or one that is built in, such as C26; list for those." placeholder:"CASE"`
	Replay string        `help:"Run a case file as it stands, whatever it expects." placeholder:"FILE"`
	Seed   string        `help:"Draw a fleet and its faults from this number and run them. With --trace: the seed of its crashes and stalls, 1 if it is not said." placeholder:"N"`
	Faults string        `help:"With --seed: the kinds of faults, with commas between, or all, or none; a part of them drawn by the seed if empty." placeholder:"LIST"`
	Log    bool          `help:"Print every event of the run; not with --trace."`
	SVG    string        `help:"Draw a timeline into this file; with --trace: charts." placeholder:"FILE"`
	Out    string        `help:"With --seed: write what was drawn as a case file; if a rule is broken, made as small as possible." placeholder:"FILE"`
	Shrink time.Duration `help:"With --seed: how long a failing schedule is made smaller." default:"30s"`

	simTrace `embed:""`

	given []given // what stands on the command line

	picture, drawn *output.File // of --svg and --out
}

// given is a flag that somebody has written.
type given struct {
	name     string
	capacity bool // of the group that belongs to --trace
}

// AfterApply is called by kong: defaults are no flags that were written.
func (c *simCmd) AfterApply(ctx *kong.Context) error {
	for _, p := range ctx.Path {
		if f := p.Flag; f != nil {
			c.given = append(c.given, given{name: f.Name, capacity: f.Group != nil && f.Group.Key == capacityGroup})
		}
	}
	return nil
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
	with  []string // other flags that mean something then
}

// ways are all of them.
func (c *simCmd) ways() []way {
	return []way{
		{"case", c.Case != "", c.runCase, []string{"log", "svg"}},
		{"replay", c.Replay != "", c.replay, []string{"log", "svg"}},
		{"trace", c.Trace != "", func(w *world) error { return c.simTrace.run(w, c.Seed, c.SVG) }, []string{"seed", "svg"}},
		{"seed", c.Seed != "" && c.Trace == "", c.random, []string{"faults", "log", "svg", "out", "shrink"}},
	}
}

// takes reports whether a flag means something to a way.
func (y *way) takes(g given) bool {
	return g.name == y.flag || slices.Contains(y.with, g.name) || g.capacity && y.flag == "trace"
}

func (c *simCmd) Run(w *world) error {
	var chosen []way
	for _, y := range c.ways() {
		if y.given {
			chosen = append(chosen, y)
		}
	}
	switch {
	case len(chosen) == 0:
		return usageError{fmt.Errorf("what shall be run? say one of %s", flags(c.ways()))}
	case len(chosen) > 1:
		return usageError{fmt.Errorf("--%s and --%s: say one of them", chosen[0].flag, chosen[1].flag)}
	case c.Shrink < 0 || c.Shrink > time.Hour:
		return usageError{fmt.Errorf("--shrink is %v, allowed: 0s to 1h", c.Shrink)}
	}
	y := &chosen[0]
	for _, g := range c.given {
		if !y.takes(g) {
			others := slices.DeleteFunc(c.ways(), func(o way) bool { return !o.takes(g) })
			return usageError{fmt.Errorf("--%s means nothing with --%s, only with %s", g.name, y.flag, flags(others))}
		}
	}
	err := c.open(y)
	defer func() { c.picture.Close(); c.drawn.Close() }()
	if err == nil {
		err = y.do(w)
	}
	if errors.Is(err, sim.ErrStopped) {
		return errors.New("called off")
	}
	return err
}

// open finds out, before a run, whether its files can be written. The other way with files, --trace, looks itself, once it knows that it can begin.
func (c *simCmd) open(y *way) (err error) {
	if y.flag == "trace" {
		return nil
	}
	if c.picture, err = openPicture(c.SVG); err != nil {
		return err
	}
	c.drawn, err = output.Open(c.Out, "name another file by --out")
	return err
}

func flags(ways []way) string {
	var names []string
	for _, y := range ways {
		names = append(names, "--"+y.flag)
	}
	return strings.Join(names, ", ")
}

// calledOff is the Stop of runs: a signal ends them.
func calledOff(w *world) func() bool { return func() bool { return w.ctx.Err() != nil } }

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
	out, err := k.Run(sim.Options{Log: c.Log || c.SVG != "", Stop: calledOff(w)})
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
	c.summary(w, out.Result)
	if failed > 0 {
		fmt.Fprintf(w.stdout, "%d of %d expectations not met, with seed %d\n", failed, len(out.Findings), out.Seed)
	}
	return c.draw(w, &s, out.Result, out.OK())
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
	broken := errors.Is(err, errBroken)
	if err != nil && !broken {
		return err
	}
	if broken && c.Shrink > 0 {
		s = c.smaller(w, s)
	}
	switch {
	case c.Out != "":
		if werr := c.drawn.WriteBytes(s.Print()); werr != nil {
			return werr
		}
		fmt.Fprintln(w.stdout, "written to", c.Out)
	case broken:
		fmt.Fprintf(w.stdout, "\n%s", s.Print())
	}
	return err
}

// smaller makes a schedule that breaks a rule smaller. A signal ends that, and what was reached by then counts.
func (c *simCmd) smaller(w *world, s sim.Schedule) sim.Schedule {
	fmt.Fprintf(w.stderr, "making it smaller, for at most %v\n", c.Shrink)
	s, res := sim.Shrink(s, c.Shrink, calledOff(w))
	if res != nil && !res.OK() {
		fmt.Fprintf(w.stdout, "%s of %s do it: %v\n", plural.Counted(len(s.Actions), "action", "actions"), plural.Counted(len(s.Engines), "engine", "engines"), res.Violations[0])
	}
	return s
}

// run carries a schedule out and tells what came of it.
func (c *simCmd) run(w *world, s sim.Schedule) error {
	res, err := sim.Run(s, sim.Options{Log: c.Log || c.SVG != "", Stop: calledOff(w)})
	if err != nil {
		return err
	}
	c.print(w, res)
	c.summary(w, res)
	return c.draw(w, &s, res, res.OK())
}

func (c *simCmd) load(path string) (*sim.Case, error) {
	k, err := sim.LoadCase(path)
	if name := strings.ToUpper(path); errors.Is(err, os.ErrNotExist) && slices.Contains(sim.BuiltIn(), name) {
		k, err = sim.LoadCase(name)
	}
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
	fmt.Fprintf(w.stdout, "%s granted, %s accepted, %d not, %s compared, %s\n",
		plural.Counted(res.Granted, "lease", "leases"), plural.Counted(res.Done, "read", "reads"), failed, plural.Counted(res.Compared, "block", "blocks"), plural.Counted(res.Steps, "step", "steps"))
	for _, v := range res.Violations {
		fmt.Fprintln(w.stdout, "BROKEN", v)
	}
}

// draw writes the timeline of a run, and gives what the command ends with. That a rule was broken is told already, and counts more.
func (c *simCmd) draw(w *world, s *sim.Schedule, res *sim.Result, ok bool) error {
	err := c.picture.Write(func(to io.Writer) error { return writeChart(to, s, res) })
	if ok {
		return err
	}
	if err != nil {
		fmt.Fprintln(w.stderr, "kvlease:", err)
	}
	return errBroken
}

func writeChart(w io.Writer, s *sim.Schedule, res *sim.Result) error {
	return chartOf(s, res).Write(w)
}
