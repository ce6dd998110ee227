package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/top"
	"github.com/kvlease/kvlease/dataplane/watch"
)

type topCmd struct {
	Dir      string        `help:"Folder of the stats pages, if it is not /dev/shm; key stats_page of the engines' configuration." placeholder:"DIR"`
	Url      []string      `help:"Metrics of an engine, or of kvlease export on another machine, instead of the pages here: HOST:PORT or a URL. May be repeated." placeholder:"URL" sep:"none"`
	Interval time.Duration `help:"Time between two looks." default:"1s"`
	Once     bool          `help:"Print everything once, and end: two looks a second apart, since rates need both."`
	JSON     bool          `help:"Print one JSON object a look, in a line."`
}

func (topCmd) Help() string {
	return `The engines of this machine as a live table: leases, blocks and bytes that others hold here, the least time that is left to them, heartbeats and reads; below it the peers of the engine that is selected, trouble first. It reads the pages that contexts write for it, so engines are not slowed; those of other users only root may read.

  $ kvlease top                                    q ends it, h explains columns and keys
  $ kvlease top --once                             all of it as text
  $ kvlease top --once --json | jq '.engines[] | select(.level == 3)'
  $ kvlease top --url 10.0.0.1:9478 --url 10.0.0.2:9478

Colours are left out with NO_COLOR=1; levels have marks beside them: ! alarm, * getting worse, . something has happened. docs/top.md explains each column.`
}

func (c *topCmd) Run(w *world) error {
	if c.Interval < 100*time.Millisecond || c.Interval > time.Hour {
		return usageError{fmt.Errorf("--interval is %v, allowed: 100ms to 1h", c.Interval)}
	}
	if c.Dir != "" && len(c.Url) > 0 {
		return usageError{errors.New("--url is instead of the pages here: leave --dir out")}
	}
	cfg := &top.Config{Dir: c.Dir, Interval: c.Interval, Once: c.Once, JSON: c.JSON, Colours: os.Getenv("NO_COLOR") == ""}
	for _, u := range c.Url {
		full, err := top.ParseURL(u)
		if err != nil {
			return usageError{err}
		}
		cfg.URLs = append(cfg.URLs, full)
	}
	if !c.Once && !c.JSON {
		switch term := os.Getenv("TERM"); {
		case !terminal(w.stdout):
			return usageError{errors.New("the live table needs a terminal, and stdout is none: --once prints it as text, --json for programs")}
		case term == "" || term == "dumb":
			return usageError{fmt.Errorf("the live table needs a terminal that can move its cursor, and TERM is %q: --once prints it as text", term)}
		}
	}
	if len(c.Url) == 0 {
		switch _, err := watch.List(c.Dir); {
		case errors.Is(err, fs.ErrPermission):
			return err
		case err != nil:
			return usageError{fmt.Errorf("--dir: %w", err)}
		}
	}
	keys := w.stdin
	if f, ok := w.stdin.(*os.File); !c.Once && !c.JSON && !(ok && terminal(f)) {
		tty, err := os.Open("/dev/tty") // stdin may be the rest of a list that a shell reads
		if err != nil {
			return usageError{fmt.Errorf("the live table takes keys, and stdin is no terminal (%w): --once prints it as text", err)}
		}
		defer tty.Close()
		keys = tty
	}
	return top.Run(w.ctx, cfg, keys, w.stdout)
}
