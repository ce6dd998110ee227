// Package demo runs the scenes of `kvlease demo`: engines as separate processes, what happens printed as it happens,
// promises beside measurements, and one picture of it all.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/timeline"
	"github.com/kvlease/kvlease/internal/jsons"
	"github.com/kvlease/kvlease/internal/plural"
)

// Config is what a demo needs.
type Config struct {
	Programs Programs
	Lease    time.Duration // kv_lease_duration of all engines
	Pass     time.Duration // forward pass of all engines
	Scenes   string        // keys of the scenes to run, "" all
	Narrate  io.Writer     // what happens, and the table
	Color    bool
	Version  string
	Memory   string // MemoryDRAM if empty
	Device   Device // unless it is in host memory

	launch   launcher                        // tests replace these two
	cut      func(a, b *engine) (int, error) // resets what connects two engines and tells how many connections that were
	together int                             // runs of a scene at once
	limit    time.Duration
}

// Result is what came of it.
type Result struct {
	Kept     bool                `json:"kept"`
	Promises jsons.List[Promise] `json:"promises"`
	Failures jsons.List[string]  `json:"failures"` // runs that did not come to their end
	Memory   string              `json:"memory"`
	Replaced jsons.List[string]  `json:"replaced"` // what is not as in an engine with GPUs, and why
	Skipped  jsons.List[string]  `json:"skipped"`  // runs that this machine cannot play, with the reason
	Refused  jsons.List[string]  `json:"refused"`  // what CUDA drivers have refused, as the engines' logs tell it, though they went on
	Repeats  int64               `json:"repeats"`  // runs played again, since the machine stood still in them
	Seconds  float64             `json:"seconds"`
	SVG      string              `json:"svg,omitempty"`

	chart timeline.Chart
}

// variant is how one run of a scene is set up.
type variant struct {
	drive  string
	ucxTLS string
	p, d   string // programs

	pTP, dTP uint32 // ranks; more than one: a host process and a process for each rank
}

func (v variant) String() string {
	name := v.drive + ", UCX default"
	if v.ucxTLS != "" {
		name = v.drive + ", UCX_TLS=" + v.ucxTLS
	}
	if v.pTP+v.dTP > 0 {
		name = fmt.Sprintf("TP %d to %d, %s", max(v.pTP, 1), max(v.dTP, 1), name)
	}
	return name
}

type sceneDef struct {
	key, title, story string
	variants          []variant
	play              func(*stage) error
	cast              cast
}

// four is both drive modes over the default transport and over TCP. Each run has a C program over the ABI.
var four = []variant{
	{drive: "inline", p: "c", d: "c"},
	{drive: "pump", p: "c", d: "node"},
	{drive: "inline", ucxTLS: "tcp", p: "node", d: "c"},
	{drive: "pump", ucxTLS: "tcp", p: "c", d: "c"},
}

// engines is both drive modes between stand-ins that find each other over the side channel.
var engines = []variant{
	{drive: "inline", p: "node", d: "node"},
	{drive: "pump", ucxTLS: "tcp", p: "node", d: "node"},
}

// overTCP is for scenes that need a peer's software between the memories, or a connection to cut.
var overTCP = []variant{
	{drive: "inline", ucxTLS: "tcp", p: "node", d: "node"},
	{drive: "pump", ucxTLS: "tcp", p: "node", d: "node"},
}

var scenes = []sceneDef{
	{"a", "busy D", "A request waits in D's queue for more than two leases. Heartbeats keep its blocks on P. Then D reads, checks every byte, and P frees at once.", four, busyD, cast{}},
	{"b", "D crash", "D is killed while requests wait. The heartbeats end, so the leases do; P has its blocks back in about a second.", []variant{{drive: "inline", p: "c", d: "c"}, {drive: "pump", p: "c", d: "node"}}, crashD, cast{}},
	{"c", "stopped D", "D is stopped for longer than its lease. P gives the blocks to another request. D goes on and reads: the fence shows that the lease is over, and the data is thrown away.", four, stoppedD, cast{}},
	{"d", "overload", "200 requests wait in D's queue. One batch per interval keeps them all, whatever their number.", []variant{{drive: "pump", p: "node", d: "c"}}, overload, cast{}},
	{"e", "two turns", "D keeps a conversation's blocks for a fixed time. P reads them for the next turn; once the client takes too long, and P is told to recompute before the blocks are gone.", engines, twoTurns, cast{side: true, both: true}},
	{"f", "ranks", "Engines of tensor parallel size 2 and 1: a host process and a process for each rank. D's ranks put their heads together, and P frees when every rank was read.", []variant{
		{drive: "inline", p: "node", d: "node", pTP: 2, dTP: 1}, {drive: "pump", ucxTLS: "tcp", p: "node", d: "node", pTP: 1, dTP: 2}}, severalRanks, cast{side: true}},
	{"g", "death wire", "D is killed. The connection that falls with its process tells P, which waits half a second for D to return: long before a lease of 6 s runs out, its blocks are free.", engines, wiredCrash, cast{side: true, pKeys: map[string]any{"kv_lease_duration": wiredLease.Seconds()}, dKeys: map[string]any{"kv_lease_duration": wiredLease.Seconds()}}},
	{"h", "P restart", "P is killed and comes back under the same name at the same address. D is told what to recompute, and reads from the new P.", engines, restartedP, cast{side: true}},
	{"i", "reset", "The connection between D and P is cut while requests wait. D makes it anew between two heartbeats; no lease is lost.", overTCP, resetLink, cast{side: true}},
	{"j", "read without end", "P stops, and D's read from it does not end. D gives up in time, and sets the blocks aside until the late bytes have landed.", overTCP, endlessRead, cast{side: true, holds: true, dKeys: map[string]any{"read_timeout": readTimeout.Seconds()}}},
	{"k", "pressure", "P needs blocks and takes leases back. D is told, recomputes, and nothing that was overwritten is handed out.", engines, pressedP, cast{side: true}},
}

// Describe lists the scenes, a line each, for a help text.
func Describe() string {
	var b strings.Builder
	for _, s := range scenes {
		var runs []string
		for _, v := range s.variants {
			runs = append(runs, v.String())
		}
		fmt.Fprintf(&b, "  %s  %-17s %s: %s\n", s.key, s.title, plural.Counted(len(runs), "run", "runs"), strings.Join(runs, "; "))
	}
	return b.String()
}

// sceneKeys are the keys of all scenes.
func sceneKeys() string {
	keys := ""
	for _, s := range scenes {
		keys += s.key
	}
	return keys
}

// repeatsMax is how often a run is played again after the machine stood still in it.
const repeatsMax = 2

// Run plays the scenes. The error is for what could not even start; broken promises and failed runs are in the result.
func Run(ctx context.Context, cfg Config) (*Result, error) {
	if cfg.launch == nil {
		cfg.launch = cfg.Programs.launch
	}
	if cfg.cut == nil {
		cfg.cut = cutConnections
	}
	if cfg.together == 0 {
		cfg.together = 2 // each is two processes that mostly sleep
	}
	if cfg.Memory == "" {
		cfg.Memory = MemoryDRAM
	}
	if cfg.limit == 0 {
		cfg.limit = 150 * time.Second
	}
	chosen, err := choose(cfg.Scenes)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, cfg.limit, fmt.Errorf("the demo took longer than %v", cfg.limit))
	defer cancel()
	say := &narrator{out: cfg.Narrate, paint: paint(cfg.Color), start: time.Now()}
	interval, extension := cfg.Lease/6, cfg.Lease*2/3
	say.line("%s  leases of %v, a heartbeat every %v, each buys %v; a forward pass takes %v", say.paint.bold("kvlease "+cfg.Version), cfg.Lease, interval, extension, cfg.Pass)
	say.line("P is the prefill engine, D the decode engine, each a process of its own.")
	say.tellMemory(&cfg)

	result := &Result{Memory: cfg.Memory, Replaced: cfg.replaced(), chart: timeline.Chart{
		Title:    "kvlease demo: who holds which blocks, and for how long",
		Subtitle: fmt.Sprintf("P (prefill) holds a request's KV blocks under a lease of %v until D (decode) has read them. D's heartbeats come every %v, each keeps the lease for %v more. Engines are processes of their own, over NIXL.", cfg.Lease, interval, extension),
	}}
	var repeats atomic.Int64
	for _, s := range chosen {
		say.line("\n%s  %s", say.paint.bold("scene "+s.key+": "+s.title), say.paint.dim(s.story))
		variants := cfg.played(s.variants)
		stages := make([]*stage, len(variants))
		errs := make([]error, len(variants))
		var wait sync.WaitGroup
		slots := make(chan struct{}, cfg.together)
		for i, v := range variants {
			stages[i] = &stage{cfg: &cfg, scene: s, variant: v, ctx: ctx, say: say}
			wait.Add(1)
			slots <- struct{}{} // in order, so that the story is told in order
			go func() {
				defer wait.Done()
				defer func() { <-slots }()
				for again := 0; ; again++ {
					errs[i] = stages[i].perform()
					if again == repeatsMax || !stages[i].excused() {
						return
					}
					repeats.Add(1)
					stages[i].tell("%s", say.paint.warn(fmt.Sprintf("the machine did not run an engine for %.2f s, more than the bounds allow for: once more",
						stages[i].stalled().Seconds())))
					stages[i] = &stage{cfg: &cfg, scene: s, variant: v, ctx: ctx, say: say}
				}
			}()
		}
		wait.Wait()
		drawn := timeline.Scene{Title: s.key + ": " + s.title, Story: s.story}
		for i, st := range stages {
			result.Promises = append(result.Promises, st.promises...)
			result.Refused = append(result.Refused, st.refused...)
			drawn.Runs = append(drawn.Runs, st.picture)
			var skip skipped
			switch {
			case errors.As(errs[i], &skip):
				result.Skipped = append(result.Skipped, fmt.Sprintf("%s: %v", st.name(), errs[i]))
			case errs[i] != nil:
				result.Failures = appendNew(result.Failures, errs[i].Error()) // the end of the context ends all runs with the same words
			}
		}
		result.chart.Scenes = append(result.chart.Scenes, drawn)
		if ctx.Err() != nil || len(result.Promises) == 0 { // engines that cannot even start will not start in the next scene
			break
		}
	}
	result.Repeats = repeats.Load()
	result.Seconds = time.Since(say.start).Seconds()
	result.close(say, chosen)
	return result, nil
}

// CheckScenes tells whether there are scenes with these keys.
func CheckScenes(keys string) error {
	_, err := choose(keys)
	return err
}

func choose(keys string) ([]sceneDef, error) {
	if keys == "" {
		return scenes, nil
	}
	var chosen []sceneDef
	for _, s := range scenes {
		if strings.Contains(keys, s.key) {
			chosen = append(chosen, s)
			keys = strings.ReplaceAll(keys, s.key, "")
		}
	}
	if rest := strings.Trim(keys, ", "); rest != "" {
		return nil, fmt.Errorf("there is no scene %q; there are %s", rest, sceneKeys())
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no scene is chosen; there are %s", sceneKeys())
	}
	return chosen, nil
}

// close prints the table and the verdict.
func (r *Result) close(say *narrator, chosen []sceneDef) {
	r.Kept = len(r.Failures) == 0 && len(r.Promises) > 0
	say.line("\n%s", say.paint.bold("promised against measured"))
	say.line("%s", say.paint.dim(fmt.Sprintf("times include %v for a busy machine", allowance)))
	table(say.out, chosen, r.Promises, say.paint)
	say.line("")
	for i := range r.Promises {
		if !r.Promises[i].Kept {
			r.Kept = false
			say.line("%s %s", say.paint.bad("BROKEN"), r.Promises[i].String())
		}
	}
	for _, f := range r.Failures {
		say.line("%s %s", say.paint.bad("FAILED"), short(f))
	}
	for _, f := range r.Skipped {
		say.line("%s %s", say.paint.warn("SKIPPED"), short(f))
	}
	if r.Repeats > 0 {
		say.line("%s", say.paint.warn(plural.Counted(r.Repeats, "run was", "runs were")+" played again after the machine stood still in them"))
	}
	if r.Kept {
		say.line("%s", say.paint.good(fmt.Sprintf("all %d promises kept in %.0f s", len(r.Promises), r.Seconds)))
	}
}

// Verdict is nil, or an error that names the first broken promise or failed run.
func (r *Result) Verdict() error {
	for i := range r.Promises {
		if !r.Promises[i].Kept {
			return fmt.Errorf("broken promise: %s", r.Promises[i].String())
		}
	}
	if len(r.Failures) > 0 {
		return errors.New(short(r.Failures[0]))
	}
	if !r.Kept {
		return errors.New("no promise was tested")
	}
	return nil
}

// short is a message on one line, without the middle of a long one.
func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > 700 { // where and what, and the reason, which comes last
		return s[:250] + " ... " + s[len(s)-440:]
	}
	return s
}

// WriteSVG draws the picture.
func (r *Result) WriteSVG(w io.Writer) error { return r.chart.Write(w) }
