package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/soak"
	"github.com/kvlease/kvlease/dataplane/sim/capacity"
	"github.com/kvlease/kvlease/internal/output"
)

// capacityGroup is what kvlease sim's help calls the flags that mean nothing without --trace.
const capacityGroup = "Capacity"

// simTrace are these flags.
type simTrace struct {
	Trace string `help:"Play this trace of requests: JSON lines with timestamp (ms), input_length and output_length (tokens)." placeholder:"FILE" group:"Capacity"`

	Leases []time.Duration `help:"Lease durations to compare." default:"6s,12s,30s,60s,120s" group:"Capacity"`
	Fixed  []time.Duration `help:"Fixed times to live beside them, which nothing renews." default:"30s,480s" group:"Capacity"`

	P           int           `name:"p" help:"Prefill engines." default:"${cap_p}" group:"Capacity"`
	D           int           `name:"d" help:"Decode engines." default:"${cap_d}" group:"Capacity"`
	Load        float64       `help:"Copies of each request of the trace." default:"${cap_load}" group:"Capacity"`
	Spread      time.Duration `help:"A copy comes later than the original by up to this." default:"${cap_spread}" group:"Capacity"`
	Requests    int           `help:"How many requests of the trace are taken; 0: all." default:"0" group:"Capacity"`
	BlockTokens int           `help:"Tokens of a block." default:"${cap_block_tokens}" group:"Capacity"`
	BlockBytes  int64         `help:"Bytes of a block, over all layers." default:"${cap_block_bytes}" group:"Capacity"`
	CacheBlocks int           `help:"Blocks of a prefill engine's cache." default:"${cap_cache_blocks}" group:"Capacity"`
	PrefillRate float64       `help:"Tokens a second of a prefill engine." default:"${cap_prefill}" group:"Capacity"`
	DecodeRate  float64       `help:"Tokens a second of each slot of a decode engine." default:"${cap_decode}" group:"Capacity"`
	Slots       int           `help:"Requests that a decode engine works on at once; the others wait." default:"${cap_slots}" group:"Capacity"`
	Queue       int           `help:"Requests at a decode engine, those in slots included; more wait at the router." default:"${cap_queue}" group:"Capacity"`
	Router      string        `help:"Who gets a request: ${cap_routers}." default:"${cap_router}" group:"Capacity"`
	LinkRate    float64       `help:"Bytes a second of an engine's network card, each direction." default:"${cap_link}" group:"Capacity"`
	Pass        time.Duration `help:"Length of a pass: between two steps of an engine that has something to do." default:"${cap_pass}" group:"Capacity"`
	CrashP      float64       `help:"Crashes of each prefill engine an hour." default:"${cap_crash_p}" group:"Capacity"`
	CrashD      float64       `help:"Crashes of each decode engine an hour." default:"${cap_crash_d}" group:"Capacity"`
	Wired       float64       `help:"Share of the crashes that a death wire tells: the process dies. Of the others nobody hears: its machine does." default:"0" group:"Capacity"`
	Restart     time.Duration `help:"From a crash until the engine serves again." default:"${cap_restart}" group:"Capacity"`
	Stalls      float64       `help:"Times an hour that each engine stands still." default:"${cap_stalls}" group:"Capacity"`
	StallMax    time.Duration `help:"The longest stall; short ones come more often." default:"${cap_stall_max}" group:"Capacity"`
	Tries       int           `help:"A request is given up when so many attempts of it were lost." default:"${cap_tries}" group:"Capacity"`
	JSON        string        `name:"json" help:"Where the results go as JSON." placeholder:"FILE" group:"Capacity"`
	Jobs        int           `help:"Settings that run at once; 0: one for each core." default:"0" group:"Capacity"`
}

// capacityVars are the defaults of the flags above, which are those of the package.
func capacityVars() map[string]string {
	c := capacity.Defaults()
	v := map[string]string{"cap_routers": capacity.LeastLoaded + " or " + capacity.RoundRobin}
	for name, value := range map[string]any{
		"p": c.P, "d": c.D, "load": c.Load, "spread": c.Spread, "block_tokens": c.BlockTokens, "block_bytes": c.BlockBytes,
		"cache_blocks": c.CacheBlocks, "prefill": c.Prefill, "decode": c.Decode, "slots": c.Slots, "queue": c.QueueMax, "router": c.Router,
		"link": c.LinkRate, "pass": c.Pass, "crash_p": c.CrashP, "crash_d": c.CrashD, "restart": c.Restart, "stalls": c.Stalls,
		"stall_max": c.StallMax, "tries": c.Tries,
	} {
		v["cap_"+name] = fmt.Sprint(value)
	}
	return v
}

// simTraceHelp is the part of kvlease sim's help that speaks of --trace.
const simTraceHelp = `Capacity: --trace plays a trace of requests with a fleet of P and D, in virtual time, once for each lease duration and each fixed time to live, and prints what each costs. The lease tables, trackers, reads and wire formats are the real ones; the engines are queues with speeds. A row of the tables is a setting:

  wasted, of caches     block-seconds under leases that nobody would read any more, and their share of what all caches have
  hand-back             share of all block-seconds under leases that lies between the end of a read and the end of its lease
  lost, of prefill      attempts computed anew, and their share of all prefill tokens: the lease ended first, P crashed, D crashed,
                        the read could not be proven
  stale reads           reads that the fence refused
  cache full            requests that found their P's cache full, and how long they waited
  given up              requests that fit into no cache or found no room at the router, or whose every try was lost
  reclaimed             leases of crashed D, and how long after the crash they ended
  first token           from a request's arrival until its prefill was read by a D
  beats, bytes, rows    heartbeat messages a second of a D, their bytes, and the rows read as their answer
  CPU                   microseconds a second that the steps of an engine took here, and what of it heartbeats took at most;
                        one step in eight is timed, by the clock of its thread

  $ kvlease sim --trace trace.jsonl                                       a small fleet that nothing happens to
  $ kvlease sim --trace trace.jsonl --crash-d 0.5 --stalls 2              engines crash and stand still
  $ kvlease sim --trace trace.jsonl --leases 6s,30s --fixed 480s --svg a.svg --json a.json
  $ kvlease sim --trace trace.jsonl --p 100 --d 1000 --load 100 --prefill-rate 60000    a large one: minutes, and 2 GB for each core`

func (c *simTrace) config(seed uint64) capacity.Config {
	return capacity.Config{
		Seed: seed, P: c.P, D: c.D, BlockTokens: c.BlockTokens, BlockBytes: c.BlockBytes, CacheBlocks: c.CacheBlocks,
		Prefill: c.PrefillRate, Decode: c.DecodeRate, Slots: c.Slots, QueueMax: c.Queue, Pass: c.Pass, Router: c.Router,
		LinkRate: c.LinkRate, Delay: capacity.Defaults().Delay, Handover: capacity.Defaults().Handover,
		Load: c.Load, Spread: c.Spread, Requests: c.Requests, CrashP: c.CrashP, CrashD: c.CrashD, Wired: c.Wired, Restart: c.Restart,
		Stalls: c.Stalls, StallMax: c.StallMax, Tries: c.Tries,
	}
}

// settings are the rows of the tables.
func (c *simTrace) settings() (list []capacity.Setting, err error) {
	for _, d := range c.Leases {
		list = append(list, capacity.Setting{Term: d})
	}
	for _, d := range c.Fixed {
		list = append(list, capacity.Setting{Term: d, Fixed: true})
	}
	if len(list) == 0 {
		return nil, errors.New("--leases and --fixed are both empty")
	}
	return list, nil
}

// run plays the trace. seed (empty: 1) and svg are flags that kvlease sim's other uses have, too.
func (c *simTrace) run(w *world, seedText, svg string) error {
	seed := uint64(1)
	if seedText != "" {
		var err error
		if seed, err = strconv.ParseUint(seedText, 10, 64); err != nil {
			return usageError{fmt.Errorf("--seed is %q, allowed: a whole number from 0", seedText)}
		}
	}
	settings, err := c.settings()
	if err != nil {
		return usageError{err}
	}
	if c.Jobs < 0 || c.Jobs > 1024 {
		return usageError{fmt.Errorf("--jobs is %d, allowed: 0 to 1024", c.Jobs)}
	}
	cfg := c.config(seed)
	if err := capacity.Check(cfg, settings); err != nil {
		return usageError{err}
	}
	open := func() (io.ReadCloser, error) { return os.Open(c.Trace) }
	first, err := open() // known before the minutes have passed
	if err != nil {
		return fmt.Errorf("--trace: %w", err)
	}
	first.Close()
	picture, err := openPicture(svg)
	if err != nil {
		return err
	}
	defer picture.Close()
	figures, err := output.Open(c.JSON, "name another file by --json")
	if err != nil {
		return err
	}
	defer figures.Close()
	jobs := c.Jobs
	if jobs == 0 {
		jobs = runtime.GOMAXPROCS(0)
	}
	results, err := capacity.Compare(w.ctx, cfg, settings, open, jobs, func(r *capacity.Result) {
		fmt.Fprintf(w.stderr, "%s: %v\n", r.Setting, time.Duration(r.Wall).Round(100*time.Millisecond))
	})
	if errors.Is(err, capacity.ErrConfig) {
		return usageError{err}
	}
	if errors.Is(err, context.Canceled) { // minutes have gone into what there is
		err = fmt.Errorf("called off after %d of %d settings", len(results), len(settings))
	}
	if err != nil {
		if len(results) > 0 {
			capacity.Table(w.stdout, &cfg, results)
		}
		return err
	}
	capacity.Table(w.stdout, &cfg, results)
	report := &capacity.Report{Version: strings.TrimSpace(version + " " + revision()), Machine: machine(), Trace: c.Trace, Config: cfg, Results: results}
	return errors.Join( // one may be lost and the other not
		picture.Write(func(to io.Writer) error { return capacity.SVG(to, &cfg, results) }),
		figures.Write(func(to io.Writer) error { return capacity.WriteJSON(to, report) }))
}

// revision is the commit that this program was built from, if the build says it.
func revision() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value[:min(12, len(s.Value))]
		}
	}
	return ""
}

// machine names the cores and the kernel.
func machine() string {
	m := soak.ThisMachine()
	return fmt.Sprintf("%d cores of %s, Linux %s", m.Cores, m.CPU, m.Kernel)
}
