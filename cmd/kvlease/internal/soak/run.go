package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/ports"
)

// Run is one mode's run.
type Run struct {
	Mode        string  `json:"mode"`
	Minutes     float64 `json:"minutes"`
	Load        string  `json:"load"`
	BusyPct     float64 `json:"busy_pct"`
	StealPct    float64 `json:"steal_pct"`
	StealMaxPct float64 `json:"steal_max_pct"` // of the worst second
	ShortestMs  float64 `json:"shortest_ms"`   // least duration that held, with all longer ones; 0: none
	P           Process `json:"p"`
	D           Process `json:"d"`
}

// Start makes the command of a child process with these arguments.
type Start func(ctx context.Context, args ...string) *exec.Cmd

// Do runs one mode for as long as it is told.
func Do(ctx context.Context, start Start, spec Spec, minutes float64, stderr io.Writer) (*Run, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop() // kills whatever is left
	port, err := ports.Free(len(spec.Leases) + 1)
	if err != nil {
		return nil, err
	}
	spec.Port = int(port)
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p, err := begin(ctx, start, "P", spec, w, stderr)
	if err != nil {
		return nil, err
	}
	defer p.end()
	if err := p.expect("ready"); err != nil {
		return nil, err
	}
	d, err := begin(ctx, start, "D", spec, r, stderr)
	if err != nil {
		return nil, err
	}
	defer d.end()
	for _, word := range []string{"ready", "up"} {
		if err := d.expect(word); err != nil {
			return nil, err
		}
	}
	load := start(ctx, "soak", "--child", "load")
	if err := load.Start(); err != nil {
		return nil, err
	}
	defer func() {
		load.Process.Kill()
		load.Wait()
	}()

	before, watch := readTimes(), watchSteal()
	d.say("go")
	p.say("go")
	select {
	case <-time.After(time.Duration(minutes * float64(time.Minute))):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	run := &Run{Mode: spec.Mode, Minutes: minutes, Load: LoadName(), StealMaxPct: watch.end()}
	run.BusyPct, run.StealPct = readTimes().since(before)
	// P first: what expires once D is asked to tell is no expiry under load.
	err = errors.Join(p.ask(&run.P), d.ask(&run.D))
	run.ShortestMs = shortest(run.P.Contexts, run.D.Contexts)
	return run, err
}

// shortest is the least duration that held together with all longer ones: nothing expired that a living reader tracked.
func shortest(p, d []Figures) float64 {
	least := 0.0
	for i := len(p) - 1; i >= 0; i-- {
		if p[i].Expired > 0 || p[i].Completed == 0 || i < len(d) && d[i].Failed["lease gone"]+d[i].Failed["stale"] > 0 {
			return least
		}
		least = p[i].LeaseMs
	}
	return least
}

// child is one of the two processes.
type child struct {
	side  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
}

func begin(ctx context.Context, start Start, side string, spec Spec, pipe *os.File, stderr io.Writer) (*child, error) {
	defer pipe.Close()
	c := &child{side: side, cmd: start(ctx, "soak", "--child", side)}
	c.cmd.ExtraFiles, c.cmd.Stderr = []*os.File{pipe}, stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	c.lines = bufio.NewScanner(out)
	c.lines.Buffer(nil, 1<<20)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	return c, json.NewEncoder(c.in).Encode(spec)
}

func (c *child) say(word string) { fmt.Fprintln(c.in, word) }

func (c *child) expect(word string) error {
	if !c.lines.Scan() {
		return fmt.Errorf("the %s process ended before it said %q", c.side, word)
	}
	if got := c.lines.Text(); got != word {
		return fmt.Errorf("the %s process said %q, want %q", c.side, got, word)
	}
	return nil
}

func (c *child) ask(out *Process) error {
	c.say("report")
	if !c.lines.Scan() {
		return fmt.Errorf("the %s process ended before its report", c.side)
	}
	return json.Unmarshal(c.lines.Bytes(), out)
}

// end lets the process go, and kills it if it does not.
func (c *child) end() {
	c.in.Close()
	timer := time.AfterFunc(10*time.Second, func() { c.cmd.Process.Kill() })
	c.cmd.Wait()
	timer.Stop()
}
