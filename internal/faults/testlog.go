package faults

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// event is a line of go test -json.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string

	ImportPath  string // of what a build says
	FailedBuild string // of a package that failed: whose build did
}

// readEvents gives each event to do. A line that is no event is an output of nobody.
func readEvents(in io.Reader, do func(e event) error) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		e := event{}
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			e = event{Action: "output", Output: lines.Text() + "\n"}
		}
		if err := do(e); err != nil {
			return err
		}
	}
	return lines.Err()
}

// PrintTests copies the output of go test -json to log and prints what go test would have printed without -json: a line
// for each package, and the whole output of a test that failed.
func PrintTests(in io.Reader, log, out io.Writer) error {
	outputs := map[[2]string]*strings.Builder{} // by package and outermost test
	return readEvents(io.TeeReader(in, log), func(e event) error {
		top, _, _ := strings.Cut(e.Test, "/")
		key := [2]string{e.Package, top}
		var err error
		switch e.Action {
		case "build-output":
			_, err = io.WriteString(out, e.Output)
		case "output":
			switch {
			case e.Test == "" && (e.Output == "PASS\n" || strings.HasPrefix(e.Output, "testing: warning: no tests to run")):
			case e.Test == "":
				_, err = io.WriteString(out, e.Output)
			case strings.HasPrefix(e.Output, "=== "): // RUN, PAUSE, CONT, NAME: as -v would say
			default:
				if outputs[key] == nil {
					outputs[key] = &strings.Builder{}
				}
				outputs[key].WriteString(e.Output)
			}
		case "pass", "skip":
			if e.Test == top {
				delete(outputs, key)
			}
		case "fail":
			if e.Test == top && e.Test != "" && outputs[key] != nil {
				_, err = io.WriteString(out, outputs[key].String())
				delete(outputs, key)
			} else if e.Test == "" { // the process ended inside a test
				for k, o := range outputs {
					if k[0] == e.Package {
						_, err = fmt.Fprint(out, o.String())
						delete(outputs, k)
					}
				}
			}
		}
		return err
	})
}
