package mutate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Verdict is what became of a mutation.
type Verdict string

// Verdicts.
const (
	WasCaught Verdict = "caught"
	TimedOut  Verdict = "caught by time-out"
	Survived  Verdict = "survived"
	Broken    Verdict = "does not compile"
)

// Caught says that tests have noticed.
func (v Verdict) Caught() bool { return v == WasCaught || v == TimedOut }

// Memory of a mutated test: a loop that no longer ends must not take the machine's. It may write to dataMax (RLIMIT_DATA), and map addressMax,
// since devices of the fake CUDA driver are addresses that nobody may touch.
const (
	dataMax    = 16 << 30
	addressMax = 128 << 30
)

// tests is one package's test binary.
type tests struct {
	root, pkg, bin string
}

// buildTests builds the tests of a package, with an overlay unless that is empty. ok is false if it does not compile.
func buildTests(ctx context.Context, root, pkg, overlay, bin string) (b tests, ok bool, err error) {
	args := []string{"test", "-c", "-vet=off", "-ldflags=-s -w", "-o", bin}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+pkg)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOGC=400") // the compiler lives for a second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return b, false, ctx.Err()
	case errors.As(err, &exit) && overlay != "":
		return b, false, nil
	case err != nil:
		return b, false, fmt.Errorf("build the tests of %s: %w: %s", pkg, err, out)
	}
	return tests{root: root, pkg: pkg, bin: bin}, true, nil
}

// ran is one run of a test binary.
type ran struct {
	ok       bool
	timedOut bool
	test     string // the first that failed, or that ran out of time; empty: the process ended otherwise
	out      []byte
	took     Cost
}

var (
	failLine = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)
	passLine = regexp.MustCompile(`(?m)^--- PASS: (\S+)`)
	runLine  = regexp.MustCompile(`(?m)^=== RUN   (\S+)`)
)

// limit is what a run may take. A loop that no longer ends runs out of processor time, also on a busy machine; what waits for
// ever runs out of the other.
type limit struct{ processor, wall time.Duration }

// Cost is what tests take on the code as it is.
type Cost struct {
	Processor time.Duration `json:"processor"`
	Wall      time.Duration `json:"wall"`
}

// limitOf is what tests may take when they are mutated.
func (r *Runner) limitOf(normal Cost) limit {
	slack := cmp.Or(r.Slack, 5*time.Second)
	return limit{2*normal.Processor + slack, 5*normal.Wall + 6*slack}
}

// run runs the tests that match run (all: ""). They find their files as under go test.
func (b tests) run(ctx context.Context, run string, most limit, more ...string) (ran, error) {
	args := append([]string{"-test.v", "-test.short", "-test.failfast", "-test.timeout=" + (most.wall + time.Minute).String()}, more...)
	if run != "" {
		args = append(args, "-test.run="+run)
	}
	return limited(ctx, filepath.Join(b.root, filepath.FromSlash(b.pkg)), most, b.bin, args...)
}

// limited runs a program in a process group of its own, with bounded time and memory.
func limited(ctx context.Context, dir string, most limit, bin string, args ...string) (ran, error) {
	seconds := int(most.processor.Seconds() + 0.999)
	line := fmt.Sprintf(`ulimit -d %d && ulimit -v %d && ulimit -St %d && ulimit -Ht %d && exec "$0" "$@"`, dataMax>>10, addressMax>>10, seconds, seconds+2)
	timed, cancel := context.WithTimeout(ctx, most.wall)
	defer cancel()
	cmd := exec.CommandContext(timed, "sh", append([]string{"-c", line, bin}, args...)...)
	cmd.Dir = dir
	// A property is tried with the same values each time, and one that is broken is enough: it is not shrunk, and nothing is written.
	cmd.Env = append(os.Environ(), "RAPID_SEED=1", "RAPID_SHRINKTIME=0s", "RAPID_NOFAILFILE=true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	// What a test says at its start and at its end is enough; one that loops may say much.
	out := &ends{}
	cmd.Stdout, cmd.Stderr = out, out
	began := time.Now()
	err := cmd.Run()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // children that a test has left
	}
	r := ran{ok: err == nil, out: out.bytes(), took: Cost{Wall: time.Since(began)}}
	if cmd.ProcessState != nil {
		r.took.Processor = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case err != nil && !errors.As(err, &exit) && timed.Err() == nil && !errors.Is(err, exec.ErrWaitDelay):
		return r, fmt.Errorf("run %s: %w", bin, err)
	}
	// At the soft limit Go says SIGXCPU and writes its stacks; if that takes too long on a busy machine the hard one kills it.
	used := !r.ok && r.took.Processor > time.Duration(seconds)*time.Second-100*time.Millisecond
	r.timedOut = timed.Err() != nil || used || bytes.Contains(r.out, []byte("SIGXCPU")) || signalOf(exit) == syscall.SIGXCPU
	if m := failLine.FindSubmatch(r.out); m != nil {
		r.test = string(m[1])
	} else if all := runLine.FindAllSubmatch(r.out, -1); len(all) > 0 && !r.ok {
		r.test = string(all[len(all)-1][1])
	}
	r.test, _, _ = strings.Cut(r.test, "/")
	return r, nil
}

func signalOf(exit *exec.ExitError) syscall.Signal {
	if exit == nil {
		return 0
	}
	return exit.Sys().(syscall.WaitStatus).Signal()
}

// ends keeps the first and the last part of what is written to it.
type ends struct{ head, tail []byte }

const endsMax = 256 << 10

func (e *ends) Write(b []byte) (int, error) {
	n := len(b)
	if room := endsMax - len(e.head); room > 0 {
		k := min(room, len(b))
		e.head, b = append(e.head, b[:k]...), b[k:]
	}
	if e.tail = append(e.tail, b...); len(e.tail) > 2*endsMax {
		e.tail = append([]byte(nil), e.tail[len(e.tail)-endsMax:]...)
	}
	return n, nil
}

func (e *ends) bytes() []byte { return append(e.head[:len(e.head):len(e.head)], e.tail...) }

// buildC copies the ring's C half, changed, and builds one of its test programs. ok is false if it does not compile.
func buildC(ctx context.Context, root, pkg, test, dir string, changes []Change) (bin string, ok bool, err error) {
	half := filepath.Dir(pkg) // holds include/ and ctest/
	if err := os.CopyFS(filepath.Join(dir, half), os.DirFS(filepath.Join(root, half))); err != nil {
		return "", false, fmt.Errorf("copy %s: %w", half, err)
	}
	texts, err := applied(dir, changes)
	if err != nil {
		return "", false, err
	}
	for path, text := range texts {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return "", false, fmt.Errorf("change a copy: %w", err)
		}
	}
	bin = filepath.Join(dir, test)
	cmd := exec.CommandContext(ctx, "cc", "-std=c11", "-O1", "-g", "-Wall", "-I"+filepath.Join(dir, half, "include"),
		filepath.Join(dir, pkg, test+".c"), "-o", bin, "-pthread")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", false, ctx.Err()
	case errors.As(err, &exit) && len(changes) > 0:
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("build %s: %w: %s", test, err, out)
	}
	return bin, true, nil
}
