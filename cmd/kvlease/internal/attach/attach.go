// Package attach looks at a running engine from outside, stock vLLM's or ours: what it publishes on its side channel, how far away
// it is, and, if it is told of a request, the request's lease and blocks.
//
// It is a reader that owes nobody anything: no context, no death wire, nothing sent that was not asked for. So it can look at a
// request without becoming one of those whose reads decide over it.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/output"
	"golang.org/x/sys/unix"
)

// Config is what is to be looked at.
type Config struct {
	Addr     string        // of the side channel, host:port
	EngineID string        // that must answer; empty: any
	Hash     string        // compatibility_hash that is expected; another one is told, and no error
	Against  string        // side channel of an engine that is to read from this one; empty: none
	TP, PP   uint32        // ranks of a stage and stages; 0: what the engine says, 1 if it does not
	Samples  int           // how often the first rank is asked and each rank is read from
	Timeout  time.Duration // for connecting, each answer and each small read

	Request     *Request
	Beat        time.Duration // how long the request is beaten for
	Interval    time.Duration // between heartbeats; 0: a sixth of the lease's duration, or of 30 s with a stock engine
	Out         string        // file for the request's blocks; empty: they are not read
	ReadTimeout time.Duration
	Complete    bool // say at the end that the request has been read

	Watch time.Duration // look again and again, with such pauses; 0: once
	JSON  bool
	// Open makes the agent that reads. nil: only the side channel is looked at, and Missing says why.
	Open    func(agent string) (transport.Transport, error)
	Missing string
}

// monotonic is CLOCK_MONOTONIC, the clock of the stamps: on one machine two of them do not differ.
func monotonic() clock.Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every Linux that runs this has the clock
	}
	return clock.Instant(ts.Nano())
}

// session is one look at an engine.
type session struct {
	cfg    *Config
	eng    *engine
	reader *reader // nil: nothing can be read
	report *Report
	out    io.Writer
	blocks *output.File // of a request, with the index of what is in it
	index  *output.File
	anew   bool // the engine was restarted and has not been met again
}

// Run looks, and prints what it has seen. Text comes as it is found; JSON is one object at the end, and with Watch one a line.
// After an error what was found before it has been printed.
func Run(ctx context.Context, cfg Config, out io.Writer) (err error) {
	s := &session{cfg: &cfg, out: out}
	if err := s.open(); err != nil {
		return err
	}
	defer s.blocks.Close()
	defer s.index.Close()
	defer func() {
		if s.reader != nil {
			err = errors.Join(err, s.reader.close())
		}
		if s.eng != nil {
			s.eng.close()
		}
	}()
	if s.eng, err = ask(ctx, &cfg); err != nil {
		return err
	}
	s.report = s.eng.report()
	s.report.Against = against(ctx, &cfg, s.eng)
	s.say(s.report.writeEngine)
	err = s.measure(ctx)
	s.say(s.report.writeReads)
	if err == nil && cfg.Request != nil {
		err = s.request(ctx)
	}
	if err != nil {
		s.report.Error = err.Error()
	}
	if cfg.JSON {
		err = errors.Join(err, s.json())
	}
	if err == nil && cfg.Watch > 0 {
		err = s.watch(ctx)
	}
	return err
}

// open finds out whether the files of a read can be written before anything is asked for. Beside what is no file no index can stand.
func (s *session) open() (err error) {
	const remedy = "name another file by --out"
	if s.blocks, err = output.Open(s.cfg.Out, remedy); err == nil && s.cfg.Out != "" && !s.blocks.Through() {
		s.index, err = output.Open(s.cfg.Out+".json", remedy)
	}
	return err
}

// say prints a part of the report for people.
func (s *session) say(part func(w io.Writer)) {
	if !s.cfg.JSON {
		part(s.out)
	}
}

func (s *session) json() error {
	enc := json.NewEncoder(s.out)
	if s.cfg.Watch == 0 {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(s.report)
}

// measure opens the reading side and finds out what it can without a request.
func (s *session) measure(ctx context.Context) error {
	if s.cfg.Open == nil {
		s.report.Unread = s.cfg.Missing
		if s.cfg.Request != nil {
			return fmt.Errorf("a request needs the transport: %s", s.cfg.Missing)
		}
		return nil
	}
	r, err := openReader(s.cfg, s.eng)
	if err != nil {
		return err
	}
	s.reader = r
	for i := range s.eng.ranks {
		if err := s.measureRank(ctx, i); err != nil {
			return err
		}
	}
	return nil
}
