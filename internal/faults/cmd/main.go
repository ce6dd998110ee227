// faults makes docs/faults.md, prints what go test -json says as go test would, and proves that what docs/faults.md names
// has run.
//
//	go run ./internal/faults/cmd doc                          docs/faults.md, from the root or from internal/faults
//	go test -json ./... | go run ./internal/faults/cmd tests LOG   copies to LOG, prints the usual lines
//	go run ./internal/faults/cmd ran [-skips] LOG...          *.json of go test; of ctest *.log, *-asan.log, *-tsan.log
//
// With -skips it is no error that a line is shown by no test since all of its tests were skipped.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvlease/kvlease/internal/faults"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 1 && args[0] == "doc":
		root, r, marks, err := load()
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(root, faults.DocFile), faults.WriteDoc(r, marks), 0o644)
	case len(args) == 2 && args[0] == "tests":
		log, err := os.Create(args[1])
		if err != nil {
			return err
		}
		return errors.Join(faults.PrintTests(os.Stdin, log, os.Stdout), log.Close())
	case len(args) > 1 && args[0] == "ran":
		logs := args[1:]
		skips := logs[0] == "-skips"
		if skips {
			logs = logs[1:]
		}
		return ran(logs, skips)
	}
	return errors.New("usage: doc | tests LOG | ran [-skips] LOG [LOG ...]")
}

// load finds the root above the current folder and reads registry and marks there.
func load() (root string, r *faults.Registry, marks []faults.Mark, err error) {
	if root, err = os.Getwd(); err != nil {
		return "", nil, nil, err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, faults.RegistryFile)); err == nil {
			break
		}
		up := filepath.Dir(root)
		if up == root {
			return "", nil, nil, fmt.Errorf("no %s above the current folder", faults.RegistryFile)
		}
		root = up
	}
	if r, err = faults.Load(root); err != nil {
		return "", nil, nil, err
	}
	marks, err = faults.Scan(root, r.CTests)
	return root, r, marks, err
}

// sanitizers are those under which ctest runs, as the names of its logs say.
var sanitizers = []string{"asan", "tsan"}

// under is the sanitizer of a log of ctest, as it stands before the names of its tests.
func under(log string) string {
	for _, s := range sanitizers {
		if strings.HasSuffix(log, "-"+s+".log") {
			return s + "/"
		}
	}
	return ""
}

// ran reads the logs of a run and says what they prove.
func ran(logs []string, skipsAllowed bool) error {
	_, r, marks, err := load()
	if err != nil {
		return err
	}
	outcomes := faults.Outcomes{}
	for _, name := range logs {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".json") {
			err = outcomes.ReadGo(f)
		} else {
			err = outcomes.ReadCTest(f, under(name))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	skips, unshown, err := outcomes.Ran(marks)
	for _, s := range skips {
		fmt.Println("faults:", s)
	}
	n, wrong := r.Check(marks)
	err = errors.Join(err, wrong)
	if len(unshown) > 0 && !skipsAllowed {
		err = errors.Join(err, fmt.Errorf("all tests were skipped of %s", strings.Join(unshown, ", ")))
	}
	if err != nil {
		return err
	}
	passed := map[faults.Test]bool{}
	for _, m := range marks {
		if outcomes[m.Test] == faults.Passed {
			passed[m.Test] = true
		}
	}
	fmt.Printf("faults: %d right lines shown by %d tests that ran and passed; %d not shown here, %d open, %d not applicable\n",
		n.Shown-len(unshown), len(passed), len(unshown), n.Open, n.NotApplicable)
	return nil
}
