package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
)

// Waits for an engine; each ends in a message that names what was waited for.
const (
	readyMax  = 30 * time.Second // opening NIXL spins for half a second on a quiet machine
	answerMax = 10 * time.Second
	goodbye   = 4 * time.Second
)

// engine is one engine process as the demo sees it: a command goes in, reports come out and are kept in order.
type engine struct {
	spec   spec
	proc   process
	stderr tail
	dead   chan struct{} // closed when the process has ended and everything it said was read

	mu    sync.Mutex
	log   []jsonl.Report
	grown chan struct{} // closed and made anew with each report
	exit  error
	asked uint64
	in    io.WriteCloser
}

func start(launch launcher, s spec) (*engine, error) {
	e := &engine{spec: s, dead: make(chan struct{}), grown: make(chan struct{})}
	proc, err := launch(s, &e.stderr)
	if err != nil {
		return nil, fmt.Errorf("%s: start %s: %w", s.run, s.name, err)
	}
	e.proc, e.in = proc, proc.Stdin()
	go e.listen(proc.Stdout())
	return e, nil
}

// listen keeps what the engine reports until it ends.
func (e *engine) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(make([]byte, 0, 65536), 1<<20)
	for lines.Scan() {
		r, err := jsonl.ParseReport(lines.Bytes())
		if err != nil {
			r = jsonl.Report{Ev: "error", Error: err.Error()}
		}
		e.mu.Lock()
		e.log = append(e.log, r)
		close(e.grown)
		e.grown = make(chan struct{})
		e.mu.Unlock()
	}
	err := e.proc.Wait()
	e.mu.Lock()
	e.exit = err
	e.mu.Unlock()
	close(e.dead)
}

func (e *engine) String() string {
	return fmt.Sprintf("%s (%s, %s, pid %d)", e.spec.name, e.spec.role, e.spec.program, e.proc.PID())
}

// death says how an engine ended that should live, with the end of its stderr.
func (e *engine) death() error {
	e.mu.Lock()
	exit := e.exit
	e.mu.Unlock()
	how := "exited with code 0"
	if exit != nil {
		how = exit.Error()
	}
	said := e.stderr.String()
	if said == "" {
		said = "it said nothing on stderr"
	} else {
		said = "stderr ends in:\n    " + strings.ReplaceAll(said, "\n", "\n    ")
	}
	return fmt.Errorf("%s: %s has died: %s; %s", e.spec.run, e, how, said)
}

// mark is the place in the log from which a later await looks.
func (e *engine) mark() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.log)
}

// reports are all reports so far, from mark on.
func (e *engine) reports(mark int) []jsonl.Report {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]jsonl.Report(nil), e.log[mark:]...)
}

// await waits for the first report from mark on that match accepts. what names it for the message of a time-out.
func (e *engine) await(ctx context.Context, what string, limit time.Duration, mark int, match func(*jsonl.Report) bool) (jsonl.Report, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for at, ended := mark, false; ; {
		e.mu.Lock()
		grown := e.grown
		fresh := e.log[at:]
		at = len(e.log)
		e.mu.Unlock()
		for i := range fresh {
			if match(&fresh[i]) {
				return fresh[i], nil
			}
		}
		if ended {
			return jsonl.Report{}, fmt.Errorf("waiting for %s: %w", what, e.death())
		}
		select {
		case <-grown:
		case <-e.dead:
			ended = true // one more look at what it said last
		case <-ctx.Done():
			return jsonl.Report{}, context.Cause(ctx)
		case <-timer.C:
			return jsonl.Report{}, fmt.Errorf("%s: %s did not report %s within %v; %s%s", e.spec.run, e, what, limit, e.lastWords(mark), e.complaint())
		}
	}
}

// lastWords is what an engine reported instead of what was waited for.
func (e *engine) lastWords(mark int) string {
	reports := e.reports(mark)
	if len(reports) == 0 {
		return "it reported nothing"
	}
	line, err := jsonl.Append(reports[len(reports)-1])
	if err != nil {
		return err.Error()
	}
	return "the last of its " + fmt.Sprint(len(reports)) + " reports: " + strings.TrimSpace(string(line))
}

// complaint is the last that a living engine has said on stderr: its log tells why it cannot do what is waited for.
func (e *engine) complaint() string {
	said := e.stderr.String()
	if said == "" {
		return ""
	}
	return "; its log says: " + whatOf(said[strings.LastIndexByte(said, '\n')+1:])
}

// whatOf is the text of a record of kvlease's log: the rest of it is known here.
func whatOf(line string) string {
	if _, what, ok := strings.Cut(line, ` what="`); ok {
		line, _, _ = strings.Cut(what, `" remedy="`)
	}
	return line
}

// refusals are what a CUDA driver has refused the engine lately, by its log.
func (e *engine) refusals() (list []string) {
	for line := range strings.Lines(e.stderr.String()) {
		if strings.Contains(line, "CUDA_ERROR_") {
			list = append(list, whatOf(strings.TrimSpace(line)))
		}
	}
	return list
}

// send gives commands without waiting for answers; the numbers of the answers come back.
func (e *engine) send(commands ...jsonl.Command) ([]uint64, error) {
	var lines []byte
	numbers := make([]uint64, len(commands))
	for i := range commands {
		e.mu.Lock()
		e.asked++
		numbers[i] = e.asked
		e.mu.Unlock()
		commands[i].N = numbers[i]
		line, err := jsonl.Append(commands[i])
		if err != nil {
			return nil, err
		}
		lines = append(lines, line...)
	}
	if _, err := e.in.Write(lines); err != nil {
		select {
		case <-e.dead:
			return nil, e.death()
		case <-time.After(time.Second):
		}
		return nil, fmt.Errorf("%s: %s takes no commands: %w", e.spec.run, e, err)
	}
	return numbers, nil
}

// ask gives commands and waits for all answers; a refusal is an error.
func (e *engine) ask(ctx context.Context, commands ...jsonl.Command) ([]jsonl.Report, error) {
	mark := e.mark()
	numbers, err := e.send(commands...)
	if err != nil {
		return nil, err
	}
	answers := make([]jsonl.Report, len(numbers))
	for i, n := range numbers {
		what := fmt.Sprintf("the answer to %s %s", commands[i].Cmd, commands[i].ID)
		answers[i], err = e.await(ctx, strings.TrimSpace(what), answerMax, mark, func(r *jsonl.Report) bool { return r.Re == n })
		if err != nil {
			return nil, err
		}
		if answers[i].Refused() {
			why := strings.TrimSpace(answers[i].Status + " " + answers[i].Error)
			return nil, fmt.Errorf("%s: %s refused %s: %s", e.spec.run, e, strings.TrimSpace(commands[i].Cmd+" "+commands[i].ID), why)
		}
	}
	return answers, nil
}

// signal sends a signal by the engine's own pid.
func (e *engine) signal(sig syscall.Signal) error {
	if err := e.proc.Signal(sig); err != nil {
		return fmt.Errorf("%s: signal %v to %s: %w", e.spec.run, sig, e, err)
	}
	return nil
}

// quit lets an engine leave in order.
func (e *engine) quit(ctx context.Context) error {
	if _, err := e.send(jsonl.Command{Cmd: "quit"}); err != nil {
		return err
	}
	timer := time.NewTimer(goodbye)
	defer timer.Stop()
	select {
	case <-e.dead:
	case <-timer.C:
		return fmt.Errorf("%s: %s did not end within %v after quit", e.spec.run, e, goodbye)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if e.exit != nil {
		return e.death()
	}
	return nil
}

// kill makes sure that the process is gone. SIGKILL also ends one that is stopped.
func (e *engine) kill() {
	select {
	case <-e.dead:
		return
	default:
	}
	err := e.proc.Signal(syscall.SIGKILL)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		return // it has ended meanwhile
	}
	e.in.Close()
	select {
	case <-e.dead:
	case <-time.After(goodbye):
	}
}
