// faults makes docs/faults.md, plays tests, and proves that what docs/faults.md names has run.
//
//	go run ./internal/faults/cmd doc                  docs/faults.md, from the root or from internal/faults
//	go run ./internal/faults/cmd tests LOG go test -json [FLAG...] -- PACKAGE...
//	go run ./internal/faults/cmd ran [-skips] LOG...
//	go run ./internal/faults/cmd said LOG...
//
// tests copies to LOG what go test -json says and prints what go test would say without it. What failed is played once more,
// alone, where that can excuse it: faults.PlayTests says when. ran fails if a named test did not run or did not pass the last time that
// it was played; with -skips it is no error that a line is shown by no test since all of its tests were skipped. said prints what each
// test that failed has said, its last lines, also of those that held when played once more; a LOG that is not there says nothing.
//
// A LOG is a *.json of go test -json, or of ctest a *.log, *-asan.log or *-tsan.log.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvlease/kvlease/internal/faults"
	"github.com/kvlease/kvlease/internal/output"
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
		return output.WriteFile(filepath.Join(root, faults.DocFile), "make its folder writable", faults.WriteDoc(r, marks))
	case len(args) > 3 && args[0] == "tests" && slices.Index(args, "--") > 2:
		log, err := os.Create(args[1])
		if err != nil {
			return err
		}
		end := slices.Index(args, "--")
		return errors.Join(faults.PlayTests(player(args[2:end]), args[end+1:], log, os.Stdout), log.Close())
	case len(args) > 1 && args[0] == "ran":
		logs := args[1:]
		skips := logs[0] == "-skips"
		if skips {
			logs = logs[1:]
		}
		return ran(logs, skips)
	case len(args) > 1 && args[0] == "said":
		return said(args[1:])
	}
	return errors.New("usage: doc | tests LOG COMMAND... -- PACKAGE... | ran [-skips] LOG... | said LOG [LOG ...]")
}

// player runs a command, a go test -json. Its status 1 is that of tests that failed; any other, or a signal, is its own failure.
func player(command []string) faults.Play {
	return func(out io.Writer, args ...string) (bool, error) {
		cmd := exec.Command(command[0], append(command[1:len(command):len(command)], args...)...)
		cmd.Stdout, cmd.Stderr = out, out
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 {
			return false, nil
		}
		return err == nil, err
	}
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

// read gives a log to the reader of its kind.
func read(log string, goTest func(io.Reader) error, ctest func(in io.Reader, under string) error) error {
	f, err := os.Open(log)
	if err != nil {
		return err
	}
	if strings.HasSuffix(log, ".json") {
		err = goTest(f)
	} else {
		err = ctest(f, under(log))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s: %w", log, err)
	}
	return nil
}

// said prints what failures in logs have said.
func said(logs []string) error {
	var all []faults.Failure
	for _, log := range logs {
		var failures []faults.Failure
		err := read(log,
			func(in io.Reader) (err error) { failures, err = faults.GoFailures(in); return },
			func(in io.Reader, under string) (err error) { failures, err = faults.CTestFailures(in, under); return })
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		all = append(all, failures...)
	}
	faults.Tell(os.Stdout, all)
	return nil
}

// ran reads the logs of a run and says what they prove.
func ran(logs []string, skipsAllowed bool) error {
	_, r, marks, err := load()
	if err != nil {
		return err
	}
	outcomes := faults.Outcomes{}
	for _, name := range logs {
		err := read(name, outcomes.ReadGo, outcomes.ReadCTest)
		if err != nil {
			return err
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
