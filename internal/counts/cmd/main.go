// counts counts the instructions of hot functions under valgrind's callgrind, and compares them with bench/counts.json; `make counts` calls it.
//
// Exit status: 1, a count has grown; 2, it cannot count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/counts"
)

func main() {
	switch err := run(); {
	case errors.Is(err, counts.ErrGrown):
		fmt.Fprintf(os.Stderr, "counts: %v\ncounts: if that is meant: make counts RENEW=1, and say in the commit why\n", err)
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "counts:", err)
		os.Exit(2)
	}
}

func run() error {
	libs := flag.String("libs", "build", "where `make build` put the libraries")
	out := flag.String("out", "build/counts", "for binaries and profiles")
	file := flag.String("file", "bench/counts.json", "the counts that are committed")
	renew := flag.Bool("renew", false, "write what is counted into the file")
	skip := flag.Bool("skip", false, "where there is no valgrind, say so and end well, unless KVLEASE_REQUIRE names it")
	only := flag.String("only", "", "items whose name has this")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unknown argument %s", flag.Arg(0))
	}
	r := &counts.Runner{Root: "."}
	for _, p := range []struct{ to, from *string }{{&r.Libs, libs}, {&r.Out, out}} {
		path, err := filepath.Abs(*p.from)
		if err != nil {
			return err
		}
		*p.to = path
	}
	if err := r.Check(); err != nil {
		if *skip && !slices.Contains(strings.Split(os.Getenv("KVLEASE_REQUIRE"), ","), "valgrind") {
			fmt.Println("counts: skipped:", err)
			return nil
		}
		return err
	}
	chosen := counts.Items(*only)
	if len(chosen) == 0 {
		return fmt.Errorf("no item has %q in its name", *only)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	is := &counts.File{Commit: commit(), Tools: r.Tools()}
	var err error
	if is.Counts, err = r.Count(ctx, chosen); err != nil {
		return err
	}
	if *renew && *only != "" {
		return errors.New("-renew goes with all items only")
	}
	was, err := counts.Load(*file)
	switch {
	case err == nil:
		err = counts.Compare(os.Stdout, chosen, was, is)
	case *renew && errors.Is(err, os.ErrNotExist):
		err = nil
	}
	if !*renew || err != nil && !errors.Is(err, counts.ErrGrown) {
		return err
	}
	return is.Save(*file)
}

// commit is the one that is counted, with a + where the tree is not that commit's.
func commit() string {
	rev, err := exec.Command("git", "rev-parse", "--short=10", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	name := strings.TrimSpace(string(rev))
	if changed, _ := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); len(changed) > 0 {
		name += "+"
	}
	return name
}
