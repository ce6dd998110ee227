// figures draws a result file of bench/run.py.
//
//	go run ./internal/figures/cmd -out DIR RESULT.json                     a picture a section, and the growth curves
//	go run ./internal/figures/cmd -title TEXT -picture FILE RESULT.json    all of it in one
//
// Of several files the later ones replace rows of the first.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvlease/kvlease/internal/figures"
	"github.com/kvlease/kvlease/internal/output"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("figures", flag.ContinueOnError)
	out := flags.String("out", "", "folder for a picture of each section")
	picture := flags.String("picture", "", "file for all of it")
	title := flags.String("title", "kvlease beside its peers", "of that file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() < 1 || *out == "" && *picture == "" {
		return errors.New("usage: [-out DIR] [-picture FILE [-title TEXT]] RESULT.json [RESULT.json...]")
	}
	f, err := figures.Load(flags.Arg(0))
	if err != nil {
		return err
	}
	for _, path := range flags.Args()[1:] {
		later, err := figures.Load(path)
		if err != nil {
			return err
		}
		f.Replace(later)
	}
	if *picture != "" {
		if err := write(*picture, func(w io.Writer) error { return f.WriteChart(w, *title, f.Sections(), true) }); err != nil {
			return err
		}
	}
	if *out == "" {
		return nil
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, section := range f.Sections() {
		one := []string{section}
		if err := write(filepath.Join(*out, section+".svg"), func(w io.Writer) error { return f.WriteChart(w, section, one, true) }); err != nil {
			return err
		}
	}
	return nil
}

func write(path string, draw func(w io.Writer) error) error {
	file, err := output.Open(path, "name another place by -out or -picture")
	if err != nil {
		return err
	}
	return file.Write(draw)
}
