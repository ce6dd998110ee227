package faults

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/kvlease/kvlease/internal/plural"
)

// againMax is how many tests are played once more; if more have failed it is not the machine.
const againMax = 3

// Play runs go test -json with more arguments, and writes to out what it says. The error is nil as well where tests have failed.
type Play func(out io.Writer, args ...string) (passed bool, err error)

// PlayTests plays the tests of packages, copies to log what go test -json says, and prints to out as PrintTests does. A test that
// failed is played once more, alone, since a machine that does something else can hold a process up for longer than a test
// waits; never if a process broke, a package was not built, data was wrong or the test draws (Failure.Final), and not if more
// than againMax have failed. The last line names those that held only then. The error says what failed in the end.
func PlayTests(play Play, packages []string, log, out io.Writer) error {
	first, _, err := playOnce(play, packages, log, out)
	if err != nil || len(first) == 0 {
		return err
	}
	if len(first) > againMax {
		return fmt.Errorf("%s: too many to be played once more", failed(first))
	}
	for _, f := range first {
		if why := f.Final(); why != "" {
			return fmt.Errorf("%s; none is played once more: %s: %s", failed(first), f, why)
		}
	}
	var held, twice []Failure
	for _, f := range first {
		fmt.Fprintf(out, "\n%s once more, alone:\n", f)
		_, outcomes, wrong := playOnce(play, []string{"-run", "^" + regexp.QuoteMeta(f.Name) + "$", f.Path}, log, out)
		err = errors.Join(err, wrong)
		if wrong == nil && outcomes[f.Test] == Passed { // skipped it has shown nothing
			held = append(held, f)
		} else {
			twice = append(twice, f)
		}
	}
	if len(held) > 0 {
		fmt.Fprintf(out, "\n%s held only when played once more: %s\n", plural.Counted(len(held), "test", "tests"), names(held))
	}
	if len(twice) > 0 {
		err = errors.Join(err, fmt.Errorf("%s, also when played once more", failed(twice)))
	}
	return err
}

// playOnce gives what failed, and how each test ended. An error is that go test itself went wrong, so that its log says not enough.
func playOnce(play Play, args []string, log, out io.Writer) ([]Failure, Outcomes, error) {
	var whole bytes.Buffer
	in, said := io.Pipe()
	printed := make(chan error, 1)
	go func() {
		err := PrintTests(in, io.MultiWriter(log, &whole), out)
		in.CloseWithError(err) // go test must not wait for one who has gone
		printed <- err
	}()
	passed, err := play(said, args...)
	said.Close()
	if err = errors.Join(err, <-printed); err != nil {
		return nil, nil, err
	}
	failures, err := GoFailures(bytes.NewReader(whole.Bytes()))
	if err == nil && passed != (len(failures) == 0) {
		err = fmt.Errorf("go test: passed is %v, and its log has %d failures", passed, len(failures))
	}
	outcomes := Outcomes{}
	return failures, outcomes, errors.Join(err, outcomes.ReadGo(&whole))
}

func failed(failures []Failure) string {
	return fmt.Sprintf("%s failed: %s", plural.Counted(len(failures), "test", "tests"), names(failures))
}

func names(failures []Failure) string {
	var all []string
	for _, f := range failures {
		all = append(all, f.String())
	}
	return strings.Join(all, ", ")
}
