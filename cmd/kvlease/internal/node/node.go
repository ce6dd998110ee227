package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvlease/kvlease/cmd/kvlease/internal/jsonl"
	"github.com/kvlease/kvlease/cmd/kvlease/internal/kvcache"
	"github.com/kvlease/kvlease/dataplane/core"
	"github.com/kvlease/kvlease/dataplane/metrics"
	"github.com/kvlease/kvlease/dataplane/record"
	"github.com/kvlease/kvlease/dataplane/transport"
)

// Node is the stand-in while it runs.
//
// Threads: one goroutine, the forward loop; another one only reads lines.
type Node struct {
	cfg    Config
	engine *engine
	out    *reporter
	lines  chan []byte

	held    map[string]*held // prefill side
	byLease map[record.Handle]*held
	holder  map[uint32]string // block -> id of the request that holds it
	unready []*held           // whose blocks a device writes

	queue     map[record.Handle]*queued // decode side
	free      []uint32                  // local blocks
	handedOut uint64                    // requests whose data went to the model

	users  uint64
	after  []jsonl.Report // said once the answer to the present command is out
	beats  seen
	paused uint64 // longest pause of the pump that was reported, in ns
	events [64]record.Event
}

type seen struct {
	Batches uint64 `json:"batches_received"`
	Beats   uint64 `json:"beats_applied"`
}

const (
	linesWaiting = 64                     // commands read ahead; more wait in the pipe
	lateMin      = 100 * time.Millisecond // a pass this much too long is reported: the machine has not let us run
	drainMax     = 500 * time.Millisecond
	closeMax     = 2 * time.Second
	byeMax       = time.Second // for a slow reader to take our last reports
)

// Run is a stand-in's life: until quit, the end of stdin, or the end of ctx (a signal); then it drains and closes.
func Run(ctx context.Context, cfg Config, transports map[string]core.OpenTransport, stdin io.Reader, stdout io.Writer, version string) error {
	e, err := openEngine(&cfg, transports)
	if err != nil {
		return err
	}
	n := &Node{
		cfg: cfg, engine: e, out: newReporter(stdout), lines: make(chan []byte, linesWaiting),
		held: map[string]*held{}, byLease: map[record.Handle]*held{}, holder: map[uint32]string{}, queue: map[record.Handle]*queued{},
	}
	if cfg.Role != "prefill" && cfg.Context != "rank" {
		for b := cfg.Blocks; b > 0; b-- {
			n.free = append(n.free, b-1)
		}
	}
	exporter := metrics.NewExporter(e.core.Page)
	defer exporter.Close()
	served := ""
	if cfg.Metrics != "" {
		at, err := exporter.Listen(cfg.Metrics)
		if err != nil {
			return errors.Join(err, n.leave())
		}
		served = fmt.Sprintf("http://%v/metrics", at)
	}
	n.say(jsonl.Report{
		Ev: "ready", Role: cfg.Role, EngineID: e.core.Config().EngineID, Program: "node", Version: version, Drive: cfg.Drive, PID: os.Getpid(),
		Blocks: cfg.Blocks, BlockBytes: uint64(cfg.Layers) * kvcache.BlockLen, Context: cfg.Context, Rank: cfg.TPRank, Metrics: served,
	})
	ended := make(chan error, 1)
	go n.readLines(ctx, stdin, ended)
	err = n.loop(ctx, ended)
	return errors.Join(err, n.leave())
}

// readLines hands lines to the loop; a line that is too long ends the input.
func (n *Node) readLines(ctx context.Context, stdin io.Reader, ended chan<- error) {
	in := bufio.NewScanner(stdin)
	in.Buffer(make([]byte, 0, 4096), jsonl.LineBytesMax)
	for in.Scan() {
		line := append([]byte(nil), in.Bytes()...)
		select {
		case n.lines <- line:
		case <-ctx.Done():
			return
		}
	}
	err := in.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		err = fmt.Errorf("a command is longer than %d bytes", jsonl.LineBytesMax)
	}
	ended <- err
}

// loop is the forward loop: once per pass it takes commands, runs the step (or says that it lives), and polls events.
func (n *Node) loop(ctx context.Context, ended <-chan error) error {
	pass := time.NewTimer(0)
	defer pass.Stop()
	<-pass.C
	for {
		start := time.Now()
		if quit := n.takeCommands(); quit {
			return nil
		}
		if err := n.engine.pass(); err != nil && !errors.Is(err, core.ErrPoisoned) { // poisoned: the ends still come by events
			return err
		}
		n.poll()
		n.offer()
		if n.cfg.Watch {
			n.watch()
		}
		n.watchPump()
		if err := n.out.err(); err != nil {
			return err
		}
		pass.Reset(n.cfg.PassTime - time.Since(start))
		select {
		case <-pass.C:
			if late := time.Since(start) - n.cfg.PassTime; late > lateMin {
				n.say(jsonl.Report{Ev: "late", LateMS: float64(late) / 1e6})
			}
		case <-ctx.Done():
			return nil
		case err := <-ended: // whoever drove us is gone, or has said all
			for len(n.lines) > 0 && !n.takeCommands() {
			}
			return err
		}
	}
}

// takeCommands carries out what has arrived; true: quit.
func (n *Node) takeCommands() bool {
	for range linesWaiting {
		select {
		case line := <-n.lines:
			c, err := jsonl.ParseCommand(line)
			if err == nil && c.Cmd == "quit" {
				return true
			}
			var r jsonl.Report
			if err == nil {
				r, err = n.carryOut(&c)
			}
			if errors.Is(err, errLater) {
				continue
			}
			ok := err == nil
			if !ok {
				r = jsonl.Report{Error: err.Error() + n.brokenBy()}
			}
			r.Re, r.OK = c.N, &ok
			n.say(r)
			for _, r := range n.after {
				n.say(r)
			}
			n.after = n.after[:0]
		default:
			return false
		}
	}
	return false
}

// brokenBy is what broke the core, for the refusal of whatever came after it.
func (n *Node) brokenBy() string {
	why, _, _ := strings.Cut(n.engine.core.Broken(), "\n")
	if why == "" {
		return ""
	}
	return ": " + why
}

// place says who takes a command: one side of an engine, or the process that holds its requests or its memory.
type place struct {
	side   string // prefill or decode; "": both
	memory bool   // needs a KV cache: not in a host context
	asks   bool   // about requests: not in a rank context
}

var places = map[string]place{
	"expect": {side: "prefill", asks: true}, "grant": {side: "prefill", asks: true}, "revoke": {side: "prefill", asks: true},
	"cancel": {side: "prefill", asks: true}, "pressure": {side: "prefill", asks: true},
	"engine": {side: "decode", asks: true}, "forget": {side: "decode", asks: true}, "track": {side: "decode", asks: true},
	"read": {side: "decode", asks: true}, "untrack": {side: "decode", asks: true},
	"reject":    {side: "decode", asks: true},
	"overwrite": {side: "prefill", memory: true}, "fill": {memory: true}, "clear": {memory: true}, "check": {memory: true},
	"register": {memory: true}, "unregister": {memory: true},
}

// mayTake refuses a command that belongs to another side or process of the engine.
func (n *Node) mayTake(cmd string) error {
	switch p := places[cmd]; {
	case p.side != "" && n.cfg.Role != "both" && n.cfg.Role != p.side:
		return fmt.Errorf("%s is for a %s engine, this one is %s", cmd, p.side, n.cfg.Role)
	case p.memory && n.cfg.Context == "host":
		return fmt.Errorf("%s is for a process that holds KV blocks, this is the engine's host", cmd)
	case p.asks && n.cfg.Context == "rank":
		return fmt.Errorf("%s is for the engine's host, this is a rank of it", cmd)
	}
	return nil
}

func (n *Node) carryOut(c *jsonl.Command) (jsonl.Report, error) {
	if err := n.mayTake(c.Cmd); err != nil {
		return jsonl.Report{}, err
	}
	switch c.Cmd {
	case "handshake":
		return n.ownHandshake(c)
	case "stats":
		return jsonl.Report{Stats: n.engine.core.Stats()}, nil
	case "expect":
		return n.expect(c)
	case "grant":
		return n.grant(c)
	case "overwrite":
		return n.overwrite(c)
	case "revoke", "cancel":
		return n.takeBack(c)
	case "pressure":
		return jsonl.Report{}, n.engine.host.Pressure(c.Wanted)
	case "fill", "clear", "check":
		return n.onMemory(c)
	case "register":
		return jsonl.Report{}, n.engine.core.Register(n.engine.memory.regions())
	case "unregister":
		return jsonl.Report{}, n.engine.core.Unregister()
	case "engine":
		return n.addEngine(c)
	case "forget":
		return n.forgetEngine(c)
	case "track":
		return n.track(c)
	case "read":
		return n.read(c)
	case "reject":
		return n.reject(c)
	case "untrack":
		return n.untrack(c)
	}
	return jsonl.Report{}, fmt.Errorf("unknown command %s", c.Cmd)
}

func (n *Node) poll() {
	for {
		k := n.engine.host.Poll(n.events[:], core.Now())
		for i := range n.events[:k] {
			n.onEvent(&n.events[i])
		}
		if k < len(n.events) {
			return
		}
	}
}

func (n *Node) onEvent(e *record.Event) {
	switch e.Kind {
	case record.EvFreed:
		n.freed(e)
	case record.EvExpectLapsed:
		n.expectLapsed(e)
	case record.EvEngineUp:
		n.say(jsonl.Report{Ev: "engine_up", EngineID: n.engine.peerName(e.Handle), TimeNS: e.TimeNs})
	case record.EvEngineDown:
		n.say(jsonl.Report{Ev: "engine_down", EngineID: n.engine.peerName(e.Handle), TimeNS: e.TimeNs})
	case record.EvEngineDrains:
		n.say(jsonl.Report{Ev: "engine_drains", EngineID: n.engine.peerName(e.Handle), TimeNS: e.TimeNs})
	case record.EvRankUp:
		n.say(jsonl.Report{Ev: "rank_up", Rank: uint32(e.Handle), TimeNS: e.TimeNs})
	case record.EvRankDown:
		n.say(jsonl.Report{Ev: "rank_down", Rank: uint32(e.Handle), Reason: [...]string{"unregistered", "gone"}[e.Status&1], TimeNS: e.TimeNs})
	case record.EvHostDown:
		n.say(jsonl.Report{Ev: "host_down", Reason: [...]string{"gone", "refuses"}[e.Status&1], TimeNS: e.TimeNs})
	case record.EvPoisoned:
		n.say(jsonl.Report{Ev: "poisoned", Error: n.engine.core.Broken(), TimeNS: e.TimeNs})
	case record.EvReadDone, record.EvReadFailed, record.EvBlocksBack, record.EvLeaseGone, record.EvAtRisk:
		n.onTrack(e)
	}
}

// watch says how many heartbeats have arrived, when the number has changed.
func (n *Node) watch() {
	var now seen
	if err := json.Unmarshal(n.engine.core.Stats(), &now); err != nil || now == n.beats {
		return
	}
	n.beats = now
	n.say(jsonl.Report{Ev: "beats", Batches: now.Batches, Beats: now.Beats})
}

// watchPump reports a pause of the pump longer than any before, as a pass that was late is reported: the machine has not let
// it run.
func (n *Node) watchPump() {
	if !n.engine.pump {
		return
	}
	if pause := n.engine.core.Pump().PauseMaxNs; pause > max(n.paused, uint64(lateMin)) {
		n.paused = pause
		n.say(jsonl.Report{Ev: "late", LateMS: float64(pause) / 1e6})
	}
}

// say reports one line, stamped now if it carries no time.
func (n *Node) say(r jsonl.Report) {
	if r.TimeNS == 0 {
		r.TimeNS = uint64(core.Now())
	}
	line, err := jsonl.Append(r)
	if err != nil { // a report holds nothing that JSON cannot say
		line = []byte(fmt.Sprintf(`{"ev":"error","error":%q}`+"\n", err))
	}
	n.out.add(line)
}

// leave goes in order: peers are told, the ends are heard, then the context closes. What does not end in time is said and left
// to the end of the process: a transfer from a peer that is dead may never end, and one that stands still may not take ours.
func (n *Node) leave() error {
	var left []string
	err := n.engine.core.Drain(drainMax)
	if errors.Is(err, core.ErrTimeout) {
		left, err = append(left, err.Error()), nil
	}
	n.poll()
	closed := n.engine.close(closeMax)
	if errors.Is(closed, core.ErrBusy) || errors.Is(closed, transport.ErrUntaken) {
		left, closed = append(left, closed.Error()), nil
	}
	n.say(jsonl.Report{Ev: "bye", Error: strings.Join(left, "; ")})
	n.out.close(byeMax)
	return errors.Join(err, closed)
}
