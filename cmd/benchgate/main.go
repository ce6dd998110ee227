// benchgate compares two result files of bench/run.py and names what got slower beyond the noise; bench/README.md has the rule.
//
//	benchgate [--json] OLD.json NEW.json
//
// Exit status: 0, nothing got slower; 1, something did; 2, the arguments or a file cannot be used.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/kvlease/kvlease/internal/figures"
)

const usage = `usage: benchgate [--json] OLD.json NEW.json
  OLD.json, NEW.json  of bench/run.py, as in bench/results
  --json              the comparison as JSON
exit status: 0, nothing got slower beyond the noise; 1, something did; 2, arguments or files that cannot be used
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("benchgate", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	asJSON := flags.Bool("json", false, "")
	switch err := flags.Parse(args); {
	case err == flag.ErrHelp:
		fmt.Fprint(stdout, usage)
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "benchgate: %v\n%s", err, usage)
		return 2
	case flags.NArg() != 2:
		fmt.Fprintf(stderr, "benchgate: %d files are named, it takes two\n%s", flags.NArg(), usage)
		return 2
	}
	var files [2]*figures.File
	for i, path := range flags.Args() {
		var err error
		if files[i], err = figures.Load(path); err != nil {
			fmt.Fprintf(stderr, "benchgate: %v\n", err)
			return 2
		}
	}
	c := figures.Compare(files[0], files[1])
	var err error
	if *asJSON {
		e := json.NewEncoder(stdout)
		e.SetEscapeHTML(false)
		e.SetIndent("", " ")
		err = e.Encode(c)
	} else {
		err = c.Write(stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "benchgate: %v\n", err)
		return 2
	}
	if len(c.Slower()) > 0 {
		return 1
	}
	return 0
}
