package main

import (
	"errors"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/watch"
)

type exportCmd struct {
	Listen string `help:"Where Prometheus finds them; without a host on 127.0.0.1. Whoever reaches the port can read all: say 0.0.0.0 if others shall." default:"127.0.0.1:9478" placeholder:"HOST:PORT"`
	Dir    string `help:"Folder of the stats pages (key stats_page)." default:"/dev/shm"`
	Once   bool   `help:"Print what a scrape would get, and end."`
}

func (exportCmd) Help() string {
	return `Each context shows itself in a stats page, a file in memory that its step writes ten times a second. This reads the pages of your engines, as root those of all, and serves them as Prometheus metrics. Engines are not told, and need no restart. The metrics of a context whose process is gone are kvlease_up 0, for ten minutes at most.

  $ kvlease export                          http://127.0.0.1:9478/metrics
  $ kvlease export --once | grep _leases_held

An engine can serve its own, too: kvl_metrics_listen, or kvlease node --metrics. docs/metrics.md lists all metrics, docs/operations.md says what the alerts in deploy/ mean.`
}

func (c *exportCmd) Run(w *world) error {
	if c.Dir == "" {
		c.Dir = watch.DefaultDir
	}
	pages, err := watch.List(c.Dir)
	if err != nil {
		return usageError{fmt.Errorf("--dir: %w", err)}
	}
	all := metrics.Machine(c.Dir)
	if c.Once {
		text, err := all.Text()
		if err != nil {
			return err
		}
		_, err = w.stdout.Write(text)
		return err
	}
	s, err := metrics.Listen(c.Listen, all)
	if errors.Is(err, metrics.ErrAddr) {
		return usageError{fmt.Errorf("--listen: %w", err)}
	}
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Fprintf(w.stdout, "http://%v/metrics, stats pages in %s: %d now\n", s.Addr(), c.Dir, len(pages))
	<-w.ctx.Done()
	return nil
}
