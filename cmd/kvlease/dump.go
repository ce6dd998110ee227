package main

import (
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/dump"
	"github.com/kvlease/kvlease/dataplane/watch"
)

type dumpCmd struct {
	Pid int `arg:"" help:"The process."`

	Context *int   `help:"Only this context of it, by the number that its page has; all if not given." placeholder:"N"`
	HashIds bool   `help:"Hashes in the place of request ids: for bug reports. The names of engines stay."`
	Ends    int    `help:"How many of the leases that ended last the tables show; --json has all that the page keeps, 1024." default:"20" placeholder:"N"`
	JSON    bool   `help:"Print one JSON object."`
	Dir     string `help:"Folder of the stats pages; key stats_page of the process's configuration." default:"/dev/shm" placeholder:"DIR"`
}

func (dumpCmd) Help() string {
	return `The lease table of a process, as it lies in its memory: for each lease what is left until its deadline, who reads it, how many heartbeats came. The process is not stopped and takes no notice; it may hang or be stopped itself. Its stats page says where the table lies, and which leases ended last, and why.

  $ kvlease dump 4711                         tables, the lease that is nearest to its end first
  $ kvlease dump 4711 --hash-ids --json > f   for a bug report
  $ kvlease dump 4711 --ends 1024             everything that the page remembers

States: held; due, its deadline has passed, and it ends unless a heartbeat is found by the second look; lingers, kept longer for a stock reader; ended, the engine has still to be told; submitted, the step has not taken it yet; expected, no blocks yet; lapsed, it was expected for too long. A process that has ended leaves its page for ten minutes: then its last ends are shown, and no leases.

It needs the rights of a debugger: those of root, or of the same user where kernel.yama.ptrace_scope is 0, or CAP_SYS_PTRACE.`
}

func (c *dumpCmd) Run(w *world) error {
	switch {
	case c.Pid <= 0:
		return usageError{fmt.Errorf("%d is no process", c.Pid)}
	case c.Context != nil && *c.Context < 1:
		return usageError{fmt.Errorf("--context is %d, they count from 1", *c.Context)}
	case c.Ends < 0 || c.Ends > watch.EndsMax:
		return usageError{fmt.Errorf("--ends is %d, allowed: 0 to %d", c.Ends, watch.EndsMax)}
	}
	cfg := dump.Config{PID: c.Pid, Dir: c.Dir, Hashes: c.HashIds, Version: version}
	if c.Context != nil {
		cfg.Context = *c.Context
	}
	report, failed := dump.Run(&cfg)
	if report == nil {
		return failed
	}
	var err error
	if c.JSON {
		err = report.WriteJSON(w.stdout)
	} else {
		err = report.WriteText(w.stdout, c.Ends)
	}
	return errors.Join(failed, err)
}
