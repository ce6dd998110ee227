package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/soak"
)

type soakCmd struct {
	Minutes  float64       `help:"How long each mode runs." default:"1"`
	Modes    string        `help:"Which modes run, one after the other." default:"pump,inline"`
	Pass     time.Duration `help:"Length of a forward pass of the inline mode." default:"5ms"`
	Priority string        `help:"pump_priority of both processes; its default if empty." placeholder:"KEY"`
	Out      string        `help:"Folder for the result as a JSON line; none if empty." placeholder:"DIR"`
	Nixl     string        `help:"libnixl_capi.so or a folder that holds it; searched for if empty." placeholder:"PATH"`
	Child    string        `hidden:"" enum:"P,D,load," default:""`
}

func (soakCmd) Help() string {
	return `A prefill and a decode process over real NIXL, with a context for each of several lease durations in both, while every core is busy with other work, statistics are scraped every second, and each reader meets an engine anew every four seconds. Reported: the longest step, the longest time without one, collections, stolen time, and the shortest lease that held without a false expiry. Nothing is asserted.`
}

func (c *soakCmd) Run(w *world) error {
	switch c.Child {
	case "load":
		soak.Load()
	case "P", "D":
		return soak.Serve(c.Child, w.stdin, w.stdout, os.NewFile(3, "offers"), transports)
	}
	if c.Minutes <= 0 || c.Minutes > 24*60 {
		return usageError{fmt.Errorf("--minutes is %v, allowed: more than 0 to 1440", c.Minutes)}
	}
	if c.Pass < time.Millisecond || c.Pass > time.Second {
		return usageError{fmt.Errorf("--pass is %v, allowed: 1ms to 1s", c.Pass)}
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	start := func(ctx context.Context, args ...string) *exec.Cmd { return exec.CommandContext(ctx, exe, args...) }
	result := soak.NewResult()
	for _, mode := range strings.Split(c.Modes, ",") {
		if mode != "pump" && mode != "inline" {
			return usageError{fmt.Errorf("--modes has %q, allowed: pump, inline", mode)}
		}
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
	path, err := result.Save(c.Out)
	if err == nil {
		fmt.Fprintln(w.stdout, "\nwritten to", path)
	}
	return err
}
