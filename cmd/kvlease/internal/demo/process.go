package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kvlease/kvlease/internal/sigstop"
)

// spec says which engine to start.
type spec struct {
	run     string // of which scene and run, for messages
	name    string // P or D; also its engine id
	role    string // prefill or decode
	program string // c: the example over the C library; node: this program
	drive   string // inline or pump
	ucxTLS  string // "": as the environment says
	lease   time.Duration
	pass    time.Duration

	context string // engine, host or rank
	tp      uint32
	rank    uint32
	carrier string         // socket of a host and its ranks
	port    uint32         // of the side channel; 0: none
	keys    map[string]any // further keys of the configuration
	device  *onDevice      // nil: the cache is in host memory
	hold    string         // file that holds the work of the engine's fake device while it is there; "": none
}

// process is a running engine. Tests put engines into their own process behind it.
type process interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	PID() int
	Signal(sig syscall.Signal) error
	Wait() error
}

// launcher starts engines.
type launcher func(s spec, stderr io.Writer) (process, error)

// Programs are the command lines that engines start with.
type Programs struct {
	Prefill, Decode, Node []string
}

func (p *Programs) command(s spec) ([]string, error) {
	pass := []string{"--pass-ms", fmt.Sprint(s.pass.Milliseconds()), "--lease", fmt.Sprint(s.lease.Seconds())}
	argv := p.Prefill
	switch {
	case s.program == "node":
		var err error
		if pass, err = s.nodeFlags(); err != nil {
			return nil, err
		}
		argv = p.Node
	case s.role == "decode":
		argv = p.Decode
	}
	if len(argv) == 0 {
		return nil, fmt.Errorf("no program for a %s engine", s.role)
	}
	full := append([]string(nil), argv...)
	full = append(full, "--engine-id", s.name, "--drive", s.drive)
	if s.role != "decode" {
		pass = append(pass, "--watch")
	}
	return append(full, pass...), nil
}

// nodeFlags are what `kvlease node` is told beside engine and drive.
func (s *spec) nodeFlags() ([]string, error) {
	flags := []string{"--role", s.role, "--pass-time", s.pass.String(), "--lease", s.lease.String()}
	if s.context != "" && s.context != "engine" {
		flags = append(flags, "--context", s.context, "--tp", fmt.Sprint(s.tp), "--tp-rank", fmt.Sprint(s.rank), "--carrier", s.carrier)
	}
	if s.port != 0 {
		flags = append(flags, "--listen", fmt.Sprintf("127.0.0.1:%d", s.port))
	}
	if s.device != nil && s.context != "host" {
		flags = append(flags, s.device.flags()...)
	}
	if len(s.keys) > 0 {
		keys, err := json.Marshal(s.keys)
		if err != nil {
			return nil, err
		}
		flags = append(flags, "--config", string(keys))
	}
	return flags, nil
}

// launch starts operating system processes.
func (p *Programs) launch(s spec, stderr io.Writer) (process, error) {
	argv, err := p.command(s)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stderr = stderr
	cmd.Env = environment(&s)
	// A child must not outlive us even when we are killed and it is stopped; ctrl-C is ours to handle, not the children's.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	o := &osProcess{cmd: cmd}
	if o.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	// An own pipe: the one that exec makes is closed by Wait, maybe before the last line was read.
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout, o.out = write, read
	cmd.WaitDelay = time.Second
	if err := onParentThread(cmd.Start); err != nil {
		read.Close()
		write.Close()
		return nil, err
	}
	write.Close()
	return o, nil
}

func environment(s *spec) []string {
	env := os.Environ()
	if s.ucxTLS != "" {
		env = append(env, "UCX_TLS="+s.ucxTLS) // of one name the last counts
	}
	if s.hold != "" {
		env = append(env, fakeScript+"="+os.Getenv(fakeScript)+";held "+s.hold)
	}
	return env
}

const fakeScript = "KVL_FAKE_CUDA"

// parentThread is a thread that lives as long as we do: the death signal of a child comes with the end of the thread
// that started it, and threads of the Go runtime come and go.
var parentThread = sync.OnceValue(func() chan func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

func onParentThread(start func() error) error {
	done := make(chan error)
	parentThread() <- func() { done <- start() }
	return <-done
}

type osProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser
}

func (o *osProcess) Stdin() io.WriteCloser           { return o.in }
func (o *osProcess) Stdout() io.Reader               { return o.out }
func (o *osProcess) PID() int                        { return o.cmd.Process.Pid }
func (o *osProcess) Signal(sig syscall.Signal) error { return sigstop.Signal(o.cmd.Process, sig) }

// Wait comes after the last line was read.
func (o *osProcess) Wait() error {
	o.out.Close()
	return o.cmd.Wait()
}

// tail keeps the end of what an engine says on stderr.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const tailMax = 2000

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if len(t.data) > tailMax {
		t.data = append(t.data[:0:0], t.data[len(t.data)-tailMax:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.data))
}

// sleep waits, or ends early with the context or an engine that dies.
func sleep(ctx context.Context, d time.Duration, engines ...*engine) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	var dead [2]<-chan struct{}
	for i, e := range engines[:min(len(engines), 2)] {
		dead[i] = e.dead
	}
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-dead[0]:
		return engines[0].death()
	case <-dead[1]:
		return engines[1].death()
	}
}
