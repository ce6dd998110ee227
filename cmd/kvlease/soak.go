package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/soak"
	"github.com/kvlease/kvlease/internal/output"
)

type soakCmd struct {
	Minutes  float64       `help:"How long each mode runs, without the few seconds that engines take to meet." default:"1"`
	Modes    string        `help:"Which modes run, one after the other: pump, inline, or both with a comma between." default:"pump"`
	Pass     time.Duration `help:"Length of a forward pass of the inline mode." default:"5ms"`
	Priority string        `help:"pump_priority of both processes; its default if empty." placeholder:"KEY"`
	Out      string        `help:"Folder for the result as a JSON line; none if empty." placeholder:"DIR"`
	Nixl     string        `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
	Child    string        `hidden:"" enum:"P,D,load," default:""`
}

func (soakCmd) Help() string {
	return `A prefill and a decode process over real NIXL, with a context for each of several lease durations in both, while every core is busy with other work, statistics are scraped every second, and each reader meets an engine anew every four seconds. Nothing is asserted. A row of the table is a duration:

  requests, completed   leases that P granted, and those freed because D had read
  false expiries        leases that ran out although a living D tracked them
  read, wrong, failed   reads that D proved, those of them with a wrong byte, and reads that D was refused or gave up
  step ms               the longest step of P, and of D, whose steps load engines into NIXL
  pause ms              the longest time in which P, or D, was not run although it was due
  D load ms             the longest load of an engine into NIXL, which is a part of a step
  D late                how often D was run more than 20 ms late

Below it: collections of Go's garbage in each process, scrapes, engines met again; how long threads of the machine waited for cores, memory and disks, in the run and around the longest stall of each process; and the shortest lease of which, with all longer ones, none expired falsely. Stolen time is what the hypervisor took: with much of it the figures are the machine's.

  $ make soak MIN=10                              ten minutes with the pump, and a line in bench/results
  $ make soak MIN=5 MODES=pump,inline             five minutes each, one after the other
  $ kvlease soak --minutes 1 --priority rr        another priority of the pump's thread`
}

// modes are those that were asked for.
func (c *soakCmd) modes() ([]string, error) {
	list := strings.Split(c.Modes, ",")
	for _, mode := range list {
		if mode != "pump" && mode != "inline" {
			return nil, fmt.Errorf("--modes has %q, allowed: pump, inline", mode)
		}
	}
	switch {
	case c.Minutes <= 0 || c.Minutes > 24*60:
		return nil, fmt.Errorf("--minutes is %v, allowed: more than 0 to 1440", c.Minutes)
	case c.Pass < time.Millisecond || c.Pass > time.Second:
		return nil, fmt.Errorf("--pass is %v, allowed: 1ms to 1s", c.Pass)
	}
	return list, nil
}

func (c *soakCmd) Run(w *world) error {
	switch c.Child {
	case "load":
		soak.Load()
	case "P", "D":
		return soak.Serve(c.Child, w.stdin, w.stdout, os.NewFile(3, "offers"), transports)
	}
	modes, err := c.modes()
	if err != nil {
		return usageError{err}
	}
	if c.Out != "" { // known before the minutes have passed
		if st, err := os.Stat(c.Out); err != nil || !st.IsDir() {
			return fmt.Errorf("--out: there is no folder %s", c.Out)
		}
	}
	result := soak.NewResult()
	path := ""
	if c.Out != "" {
		path = result.File(c.Out)
	}
	file, err := output.Open(path, "name another folder by --out")
	if err != nil {
		return err
	}
	defer file.Close()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	if nameParts(); c.Nixl == "" {
		if err := findNIXL(w.ctx, []string{exe, "node"}); err != nil {
			return err
		}
	}
	start := func(ctx context.Context, args ...string) *exec.Cmd { return exec.CommandContext(ctx, exe, args...) }
	for _, mode := range modes {
		fmt.Fprintf(w.stderr, "%s, for %.3g min\n", mode, c.Minutes)
		spec := soak.Spec{Mode: mode, Transport: "nixl", NixlPath: c.Nixl, Priority: c.Priority, Leases: soak.Ladder, Pass: c.Pass}
		run, err := soak.Do(w.ctx, start, spec, c.Minutes, w.stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		result.Runs = append(result.Runs, run)
	}
	result.Print(w.stdout)
	if c.Out == "" {
		return nil
	}
	if err := file.Write(result.Save); err != nil {
		return err
	}
	fmt.Fprintln(w.stdout, "\nwritten to", path)
	return nil
}
