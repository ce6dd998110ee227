// Command kvlease is the tool beside the library: a demo, an engine stand-in, and what this installation consists of.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	_ "github.com/kvlease/kvlease/cmd/libkvlease/sites/hooks"
	"github.com/kvlease/kvlease/dataplane/core"
)

// version is the version of this source tree; kvl_version of the C library says the same.
const version = core.Version

const description = `Leases for KV cache blocks between prefill and decode engines.

A prefill engine (P) must keep a request's KV blocks until a decode engine (D) has read them. kvlease holds them under a short lease that D's heartbeats renew, frees them at once after the read, and within seconds if D dies.

Start with:

  kvlease demo                  see it work: eleven scenes between real processes, in about a minute
  kvlease demo --only c         one scene: D is stopped past its lease
  kvlease node --role prefill   an engine to talk to by hand, in JSON lines
  kvlease soak                  what an engine would feel on busy cores, for a minute
  kvlease sim --seed 1 --log    a fleet with faults by chance, on a virtual clock
  kvlease sim --trace FILE      how long a lease should last, for a trace of requests
  kvlease attach HOST:5600      what a running engine, stock or ours, publishes, and how far away it is
  kvlease trace                 where the time of heartbeats and reads goes, in running processes
  kvlease export                metrics of all engines of this machine, for Prometheus
  kvlease top                   the engines of this machine, live: who holds whose blocks
  kvlease dump PID              the leases of a running process, also of one that hangs
  kvlease doctor                whether this machine will do, and what to change
  kvlease bench                 what notifications, reads and the fence cost here, beside NIXL alone
  kvlease version               what is installed here`

type cli struct {
	Demo    demoCmd    `cmd:"" help:"Run scenes in which engines wait, read, stop, crash and come back. Prints promised against measured and draws a timeline."`
	Node    nodeCmd    `cmd:"" help:"Run an engine stand-in: a KV cache in host memory or a GPU's, a forward loop, commands as JSON lines on stdin."`
	Soak    soakCmd    `cmd:"" help:"Run P and D for minutes on busy cores: longest step, longest pause, shortest lease that held."`
	Sim     simCmd     `cmd:"" help:"Run fleets of the real plane code on a virtual clock: a fault case, faults by chance, or a trace of requests, for the price of each lease duration."`
	Attach  attachCmd  `cmd:"" help:"Look at a running engine, stock vLLM's or ours: what it publishes, round trips, its clock, a request's lease and blocks."`
	Trace   traceCmd   `cmd:"" help:"Time what happens inside running engines, stage by stage, by a program in the kernel: live, as JSON, as a picture."`
	Export  exportCmd  `cmd:"" help:"Serve metrics of all engines of this machine to Prometheus, from their stats pages; engines are not touched."`
	Top     topCmd     `cmd:"" help:"Show the engines of this machine as a live table: who holds whose blocks, and how close it is to losing them."`
	Dump    dumpCmd    `cmd:"" help:"Print the lease table of a process, live, hanging or stopped: who holds which blocks, for how long still, and what ended last."`
	Doctor  doctorCmd  `cmd:"" help:"Look whether this machine will do for an engine: limits, processors, memory, GPUs, NICs, NIXL, peers; why each thing matters, and the fix."`
	Bench   benchCmd   `cmd:"" help:"Measure notifications, reads, the first byte and the fence between two processes, in turn with raw NIXL and a copy."`
	Version versionCmd `cmd:"" help:"Print the versions of kvlease, Go, NIXL and the kernel, and whether engines can be traced here."`
}

// world is what a command sees of the process around it.
type world struct {
	ctx            context.Context
	stdin          io.Reader
	stdout, stderr io.Writer
}

// exit codes, as the help says them.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endings(signal.Ignored)...)
	context.AfterFunc(ctx, stop) // a second signal ends what does not listen: a driver's library may stand still
	code := run(os.Args[1:], world{ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
	stop()
	os.Exit(code)
}

// endings are the signals after which a command ends its processes and takes away what it has made. A terminal that is closed is one of them,
// unless whoever started the command has it ignored, as nohup does.
func endings(ignored func(os.Signal) bool) []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

// run is main without the process around it.
func run(args []string, w world) int {
	if terminal(w.stdout) { // commands ask it for its size
		return obey(args, w)
	}
	out := &told{out: w.stdout}
	w.stdout = out
	code := obey(args, w)
	err := out.failed()
	if err == nil {
		return code
	}
	if code == exitOK { // else it has said why
		fmt.Fprintln(w.stderr, "kvlease:", err)
	}
	return exitFailed
}

func obey(args []string, w world) int {
	if len(args) == 0 {
		args = []string{"--help"}
	}
	exited := -1
	var c cli
	parser, err := kong.New(&c, kong.Name("kvlease"), kong.Description(description), kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 110}),
		kong.Writers(w.stdout, w.stderr), kong.Vars(capacityVars()),
		kong.Exit(func(code int) { exited = code; panic(exitPanic{}) }))
	if err != nil {
		fmt.Fprintln(w.stderr, "kvlease:", err)
		return exitFailed
	}
	parsed, err := parse(parser, args)
	if exited >= 0 {
		return exited
	}
	if err != nil {
		fmt.Fprintf(w.stderr, "kvlease: %s; see %s --help\n", oneLine(err), helped(args))
		return exitUsage
	}
	if err := parsed.Run(&w); err != nil {
		if errors.Is(err, errBroken) {
			return exitFailed // what went wrong is told
		}
		var usage usageError
		if errors.As(err, &usage) {
			fmt.Fprintf(w.stderr, "kvlease: %s; see %s --help\n", oneLine(err), helped(args))
			return exitUsage
		}
		fmt.Fprintln(w.stderr, "kvlease:", err)
		return exitFailed
	}
	return exitOK
}

// exitPanic is how kong's --help leaves the parser.
type exitPanic struct{}

func parse(parser *kong.Kong, args []string) (ctx *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(exitPanic); !ok {
				panic(r)
			}
		}
	}()
	return parser.Parse(args)
}

// usageError is a wrong argument that the parser could not see.
type usageError struct{ error }

// helped is the command whose help speaks of these arguments.
func helped(args []string) string {
	switch args[0] {
	case "attach", "bench", "demo", "doctor", "dump", "export", "node", "sim", "soak", "top", "trace", "version":
		return "kvlease " + args[0]
	}
	return "kvlease"
}

// oneLine is an error in a line. kong calls the end of the arguments "EOL".
func oneLine(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	if flag, _, ok := strings.Cut(text, ": expected "); ok && strings.HasSuffix(text, `got "EOL" (<EOL>)`) {
		return flag + " needs a value"
	}
	return text
}
