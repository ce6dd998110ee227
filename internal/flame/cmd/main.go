// flame turns what perf script prints into folded stacks, flame graphs and tables; bench/profile.py calls it.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"

	"github.com/kvlease/kvlease/internal/flame"
)

const usage = `usage:
  flame fold -fp SCRIPT [-dwarf SCRIPT] [-under REGEXP] [-head NAME] [-to WEIGHT]  stacks, folded
  flame svg -title T -story S [-cut SHARE] FOLDED...                               a flame graph
  flame top [-n N] [-notes FILE] FOLDED...                                         kvlease's own functions, as Markdown
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flame:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) == 0 {
		return fmt.Errorf("no command\n%s", usage)
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "fold":
		return fold(flags, args[1:], out)
	case "svg":
		var p flame.Picture
		flags.StringVar(&p.Title, "title", "", "")
		flags.StringVar(&p.Story, "story", "", "the line below it")
		flags.Float64Var(&p.Cut, "cut", 0.003, "frames with a smaller share are left out")
		stacks, err := parse(flags, args[1:])
		if err != nil {
			return err
		}
		return flame.WriteSVG(out, stacks, p)
	case "top":
		n := flags.Int("n", 10, "functions")
		file := flags.String("notes", "", "lines of function: note")
		stacks, err := parse(flags, args[1:])
		if err != nil {
			return err
		}
		notes := map[string]string{}
		if *file != "" {
			if notes, err = read(*file, flame.ReadNotes); err != nil {
				return err
			}
		}
		return flame.WriteTop(out, stacks, *n, notes)
	}
	return fmt.Errorf("no command %s\n%s", args[0], usage)
}

func fold(flags *flag.FlagSet, args []string, out io.Writer) error {
	fp := flags.String("fp", "", "perf script's output, unwound by frame pointers")
	dwarf := flags.String("dwarf", "", "the same run unwound by DWARF: these stacks count, the others complete them")
	under := flags.String("under", "", "only stacks that pass through a function like this")
	head := flags.String("head", "", "what stands outside of all, instead of threads' names")
	to := flags.Int64("to", 0, "scale all weights together to this")
	if err := flags.Parse(args); err != nil {
		return err
	}
	through, err := regexp.Compile(*under)
	if err != nil {
		return err
	}
	stacks, err := read(*fp, flame.ReadScript)
	if err != nil {
		return err
	}
	tell(*fp, stacks)
	if *dwarf != "" {
		unwound, err := read(*dwarf, flame.ReadScript)
		if err != nil {
			return err
		}
		tell(*dwarf, unwound)
		stacks, _ = flame.Join(unwound, stacks)
		tell("joined", stacks)
	}
	stacks = flame.Under(stacks, through)
	if *head != "" {
		for i := range stacks {
			stacks[i].Frames[0].Name = *head
		}
	}
	if *to > 0 {
		stacks = flame.Scale(stacks, *to)
	}
	return flame.WriteFolded(out, stacks)
}

// tell says on stderr how many stacks reach the beginning of their thread.
func tell(what string, stacks []flame.Stack) {
	var whole, all int64
	for _, s := range stacks {
		all += s.Weight
		if flame.Whole(s) {
			whole += s.Weight
		}
	}
	fmt.Fprintf(os.Stderr, "flame: %s: %d samples, %.1f %% whole\n", what, len(stacks), 100*float64(whole)/float64(max(all, 1)))
}

func parse(flags *flag.FlagSet, args []string) ([]flame.Stack, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	var stacks []flame.Stack
	for _, file := range flags.Args() {
		more, err := read(file, flame.ReadFolded)
		if err != nil {
			return nil, err
		}
		stacks = append(stacks, more...)
	}
	return stacks, nil
}

func read[T any](file string, parse func(io.Reader) (T, error)) (T, error) {
	var zero T
	f, err := os.Open(file)
	if err != nil {
		return zero, err
	}
	defer f.Close()
	v, err := parse(f)
	if err != nil {
		return zero, fmt.Errorf("%s: %w", file, err)
	}
	return v, nil
}
