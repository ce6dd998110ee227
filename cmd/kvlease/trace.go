package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/tracing"
	"github.com/kvlease/kvlease/dataplane/probe"
)

type traceCmd struct {
	Pids []int `arg:"" optional:"" name:"pid" help:"Trace these processes. None: every process that has a kvlease library mapped, also those that start later."`

	Lib      string        `help:"Trace every process that maps this file, also those that start later." placeholder:"FILE"`
	Engine   []string      `help:"Show only what has this engine at an end: its id, or a pattern such as 'decode-*'. May be repeated." placeholder:"ID" sep:"none"`
	For      time.Duration `help:"Trace so long, then print; until interrupted, or until the processes named have ended, if not given." placeholder:"TIME"`
	Every    time.Duration `help:"Print as often. On a terminal every second if not given, elsewhere at the end only." placeholder:"TIME"`
	Outliers time.Duration `help:"Tell every span of at least this length one by one." placeholder:"TIME"`
	Pages    string        `help:"Folder of the stats pages, from which the engines' names come; key stats_page of their configuration." default:"/dev/shm" placeholder:"DIR"`
	JSON     bool          `help:"Print one JSON object; with --every one a line."`
	Svg      string        `help:"Draw all histograms into this file at the end." placeholder:"FILE"`
}

func (traceCmd) Help() string {
	text := `Where the time of heartbeats and reads goes, in running processes: nothing is restarted, and what is not traced costs nothing. A program in the kernel sits at the trace sites of the libraries and keeps a histogram for each stage and pair of engines:

`
	for s := range probe.Stages {
		text += fmt.Sprintf("  %-22s %s\n", s.String(), s.Meaning())
	}
	return text + `
Ends that are in different processes of this host are joined by the message's number; docs/trace.md says what is counted where that fails.

  $ kvlease trace                             all engines of this host, live
  $ kvlease trace 4711 --for 10s --svg t.svg  one process, as a picture
  $ kvlease trace --outliers 5ms              and every span of 5 ms or more
  $ kvlease trace --engine 'decode-*' --json --for 1m

It needs Linux 6.6 and CAP_BPF with CAP_PERFMON: root, or once: setcap cap_bpf,cap_perfmon+ep kvlease. Processes of other users need cap_sys_ptrace as well.`
}

func (c *traceCmd) check() error {
	if len(c.Pids) > 0 && c.Lib != "" {
		return errors.New("--lib is for all processes with that file: leave the pids out")
	}
	for _, pid := range c.Pids {
		if pid <= 0 || pid > math.MaxInt32 { // the kernel takes the low half
			return fmt.Errorf("%d is no process", pid)
		}
	}
	for _, e := range c.Engine {
		if _, err := path.Match(e, ""); err != nil || e == "" {
			return fmt.Errorf("--engine %q is no id and no pattern", e)
		}
	}
	for _, v := range []struct {
		name        string
		d           time.Duration
		least, most time.Duration
	}{
		{"--for", c.For, 10 * time.Millisecond, 30 * 24 * time.Hour},
		{"--every", c.Every, 100 * time.Millisecond, 24 * time.Hour},
		{"--outliers", c.Outliers, time.Microsecond, time.Hour},
	} {
		if v.d != 0 && (v.d < v.least || v.d > v.most) {
			return fmt.Errorf("%s is %v, allowed: %v to %v", v.name, v.d, v.least, v.most)
		}
	}
	return nil
}

func (c *traceCmd) Run(w *world) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	cfg := tracing.Config{
		PIDs: c.Pids, Library: c.Lib, Engines: c.Engine, For: c.For, Every: c.Every, Outliers: c.Outliers, Pages: c.Pages, JSON: c.JSON, SVG: c.Svg,
	}
	if terminal(w.stdout) && !c.JSON {
		cfg.Screen = true
		if cfg.Every == 0 {
			cfg.Every = time.Second
		}
		cfg.Size = func() (rows, cols int) {
			size, err := unix.IoctlGetWinsize(int(w.stdout.(*os.File).Fd()), unix.TIOCGWINSZ)
			if err != nil {
				return 0, 0
			}
			return int(size.Row), int(size.Col)
		}
	}
	return tracing.Run(w.ctx, cfg, w.stdout)
}
