package models

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ErrSpin says that there is no spin, or no C compiler for what it writes.
var ErrSpin = errors.New("spin is missing: it is the package `spin` of Debian and Ubuntu (6.5.2), and needs a C compiler")

// Outcome is what a run of spin gave.
type Outcome struct {
	States int
	Depth  int
	Took   time.Duration // of the search, without compiling
	Found  string        // the violation; "": none
}

// OK reports that the outcome is the one wanted.
func (r *Run) OK(o Outcome) bool {
	if r.Violates == "" {
		return o.Found == ""
	}
	return strings.Contains(o.Found, r.Violates)
}

var (
	violation = regexp.MustCompile(`(?m)^pan:\d+: (.*) \(at depth`)
	states    = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	depth     = regexp.MustCompile(`depth reached (\d+)`)
)

// Check runs spin and what it writes, in a folder that is removed. dir is where the models are.
func (r *Run) Check(ctx context.Context, dir string) (Outcome, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	for _, tool := range []string{"spin", cc} {
		if _, err := exec.LookPath(tool); err != nil {
			return Outcome{}, fmt.Errorf("%w (%w)", ErrSpin, err)
		}
	}
	work, err := os.MkdirTemp("", "kvlease-model-")
	if err != nil {
		return Outcome{}, err
	}
	defer os.RemoveAll(work)
	model, err := filepath.Abs(filepath.Join(dir, r.Model))
	if err != nil {
		return Outcome{}, err
	}
	command := func(name string, args ...string) (string, error) {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir = work
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		err := c.Run()
		return out.String(), err
	}
	args := []string{"-a"}
	for _, d := range r.Defines {
		args = append(args, "-D"+d)
	}
	if r.Variant != "" {
		args = append(args, "-D"+r.Variant)
	}
	compile := []string{"-O1", "-w", "-o", "pan", "-DCOLLAPSE", "-DVECTORSZ=2048"}
	run := []string{"-m400000", "-w22"}
	if r.Live {
		args = append(args, "-DLIVENESS")
		compile = append(compile, "-DNFAIR=3")
		run = append(run, "-a", "-f")
	} else {
		compile = append(compile, "-DSAFETY", "-DNOCLAIM")
	}
	// spin says what it does not understand on its output, and may end well all the same.
	if out, err := command("spin", append(args, model)...); err != nil || strings.Contains(out, "rror:") {
		return Outcome{}, fmt.Errorf("spin %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	if out, err := command(cc, append(compile, "pan.c")...); err != nil {
		return Outcome{}, fmt.Errorf("%s: %w\n%s", cc, err, out)
	}
	began := time.Now()
	out, err := command("./pan", run...)
	o := Outcome{Took: time.Since(began)}
	if err != nil && ctx.Err() != nil {
		return o, fmt.Errorf("%s %s: %w", r.Model, r.Name(), ctx.Err())
	}
	m, d := states.FindStringSubmatch(out), depth.FindStringSubmatch(out)
	if m == nil || d == nil {
		return o, fmt.Errorf("%s %s: pan: %w\n%s", r.Model, r.Name(), err, out)
	}
	o.States, _ = strconv.Atoi(m[1])
	o.Depth, _ = strconv.Atoi(d[1])
	if v := violation.FindStringSubmatch(out); v != nil {
		o.Found = v[1]
	} else if !strings.Contains(out, "errors: 0") || strings.Contains(out, "Search not completed") || strings.Contains(out, "max search depth too small") {
		return o, fmt.Errorf("%s %s: the search is not complete:\n%s", r.Model, r.Name(), out)
	}
	return o, nil
}
