package capacity

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvlease/kvlease/dataplane/sim/internal/timeheap"
)

// lineMax is the longest line of a trace, in bytes.
const lineMax = 16 << 20

// entry is one request of a trace.
type entry struct {
	at            time.Duration // since the start of the trace
	input, output int           // tokens
}

// reader takes a trace line by line: JSON objects with timestamp (ms since the start), input_length and output_length (tokens).
// Other keys are not looked at. Nothing is kept but the line.
type reader struct {
	in   *bufio.Scanner
	line int
	last time.Duration
}

func newReader(in io.Reader) *reader {
	s := bufio.NewScanner(in)
	s.Buffer(make([]byte, 0, 64<<10), lineMax)
	return &reader{in: s}
}

// next gives the next request; io.EOF: there is none. Other errors name the line.
func (r *reader) next() (entry, error) {
	for r.in.Scan() {
		r.line++
		text := bytes.TrimSpace(r.in.Bytes())
		if len(text) == 0 {
			continue
		}
		e, err := parseEntry(text)
		if err == nil && e.at < r.last {
			err = fmt.Errorf("timestamp goes back from %d to %d ms", r.last.Milliseconds(), e.at.Milliseconds())
		}
		if err != nil {
			return entry{}, fmt.Errorf("line %d of the trace: %w", r.line, err)
		}
		r.last = e.at
		return e, nil
	}
	if err := r.in.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			err = fmt.Errorf("longer than %d bytes", lineMax)
		}
		return entry{}, fmt.Errorf("line %d of the trace: %w", r.line+1, err)
	}
	return entry{}, io.EOF
}

func parseEntry(text []byte) (entry, error) {
	var v struct {
		Timestamp *float64 `json:"timestamp"`
		Input     *float64 `json:"input_length"`
		Output    *float64 `json:"output_length"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return entry{}, fmt.Errorf("not a JSON object of a request: %w", err)
	}
	for _, f := range []struct {
		name        string
		v           *float64
		least, most float64
	}{
		{"timestamp", v.Timestamp, 0, 1e12}, {"input_length", v.Input, 1, tokensMax}, {"output_length", v.Output, 0, tokensMax},
	} {
		switch {
		case f.v == nil:
			return entry{}, fmt.Errorf("%s is missing", f.name)
		case *f.v < f.least || *f.v > f.most:
			return entry{}, fmt.Errorf("%s is %g, allowed: %g to %g", f.name, *f.v, f.least, f.most)
		}
	}
	return entry{time.Duration(*v.Timestamp * float64(time.Millisecond)), int(*v.Input), int(*v.Output)}, nil
}

// arrivals makes the load out of a trace: each request Load times, the first copy at its own time, the others up to Spread later.
// What it keeps are the copies of the last Spread.
type arrivals struct {
	from   *reader
	seed   uint64
	load   float64
	spread time.Duration
	left   int // requests of the trace still to be taken; negative: all
	n      uint64
	ahead  entry // the next one of the trace
	have   bool
	over   bool
	copies timeheap.Heap[time.Duration, entry]
}

func newArrivals(in io.Reader, c *Config) *arrivals {
	left := -1
	if c.Requests > 0 {
		left = c.Requests
	}
	return &arrivals{from: newReader(in), seed: c.Seed, load: c.Load, spread: c.Spread, left: left}
}

// next gives the next arrival in order of time; io.EOF: there is none.
func (a *arrivals) next() (entry, error) {
	for {
		if err := a.look(); err != nil {
			return entry{}, err
		}
		if a.copies.Len() > 0 && (!a.have || a.copies.Top().At <= a.ahead.at) {
			return a.copies.Pop().What, nil
		}
		if !a.have {
			return entry{}, io.EOF
		}
		a.have = false
		copies := int(a.load)
		if part := a.load - float64(copies); part > 0 && unit(a.seed, drawCopies, a.n) < part {
			copies++
		}
		for i := range copies {
			e := a.ahead
			if i > 0 {
				e.at += time.Duration(unit(a.seed, drawSpread, a.n, uint64(i)) * float64(a.spread))
			}
			a.copies.Push(e.at, e)
		}
		a.n++
	}
}

// look reads one request ahead.
func (a *arrivals) look() error {
	if a.have || a.over {
		return nil
	}
	if a.left == 0 {
		a.over = true
		return nil
	}
	e, err := a.from.next()
	if errors.Is(err, io.EOF) {
		a.over = true
		return nil
	}
	if err != nil {
		return err
	}
	a.ahead, a.have = e, true
	a.left--
	return nil
}
