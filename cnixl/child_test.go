package cnixl

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/sigstop"
)

// waitMax bounds every wait of these tests.
const waitMax = 30 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv("KVLEASE_TEST_PEER") != "" {
		runPeer()
		return
	}
	code := m.Run()
	built.Remove()
	os.Exit(code)
}

// alone runs the test's body in a process of its own with more environment: UCX reads its settings once. It reports true
// in that process.
func alone(t *testing.T, env ...string) bool {
	t.Helper()
	if os.Getenv("KVLEASE_TEST_ALONE") == t.Name() {
		return true
	}
	parts := strings.Split(t.Name(), "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	cmd := exec.Command(os.Args[0], "-test.run", strings.Join(parts, "/"), "-test.v", "-test.timeout", "120s")
	cmd.Env = append(append(os.Environ(), "KVLEASE_TEST_ALONE="+t.Name()), env...)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	switch {
	case err != nil:
		t.Fatalf("in its own process: %v", err)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()+" "):
		t.Skip("skipped in its own process, see the reason above")
	case !strings.Contains(string(out), "--- PASS: "+t.Name()+" "):
		t.Fatal("the test did not run in its own process")
	}
	return false
}

// peerSetup tells the other process what to be.
type peerSetup struct {
	Agent  string
	Bytes  int
	Inline bool // no progress thread: it serves only while it polls
}

// peerHello is its answer.
type peerHello struct {
	Error string
	Blob  []byte
	Addr  uint64
}

// peerNews is what it says later: a command was done, or a notification came.
type peerNews struct {
	Done, Agent string
	Body        []byte
}

// runPeer is the other process: an agent with memory that obeys lines on its input.
func runPeer() {
	out := json.NewEncoder(os.Stdout)
	var setup peerSetup
	if err := json.Unmarshal([]byte(os.Getenv("KVLEASE_TEST_PEER")), &setup); err != nil {
		panic(err)
	}
	a, err := Open(Config{Agent: setup.Agent, Inline: setup.Inline, Folders: []string{".."}})
	if err != nil {
		_ = out.Encode(peerHello{Error: err.Error()})
		return
	}
	mem := memory(setup.Bytes)
	if err := a.Register([]transport.Region{{Addr: address(mem), Bytes: uint64(len(mem))}}); err != nil {
		panic(err)
	}
	blob, err := a.Metadata()
	if err != nil {
		panic(err)
	}
	_ = out.Encode(peerHello{Blob: blob, Addr: address(mem)})
	lines := make(chan string)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		in.Buffer(nil, 1<<20)
		for in.Scan() {
			lines <- in.Text()
		}
		os.Exit(0) // the test is over, or dead
	}()
	serve(a, mem, lines, out)
}

func serve(a *Agent, mem []byte, lines chan string, out *json.Encoder) {
	in := transport.NewInbox(4096, 4<<20)
	polling := true
	var to transport.Peer
	var pulls []transport.Xfer
	tick := time.NewTicker(time.Millisecond)
	for {
		select {
		case line := <-lines:
			word, arg, _ := strings.Cut(line, " ")
			switch word {
			case "fill":
				var v int
				fmt.Sscan(arg, &v)
				for i := range mem {
					mem[i] = byte(v)
				}
			case "word": // the first 8 bytes, whole
				var v uint64
				fmt.Sscan(arg, &v)
				storeWord(mem, v)
			case "poll":
				polling = arg == "on"
			case "load":
				var blob []byte
				if err := json.Unmarshal([]byte(arg), &blob); err != nil {
					panic(err)
				}
				var err error
				if to, err = a.Load(blob); err != nil {
					panic(err)
				}
			case "pull": // all of its memory, several times, from an address; then it stands still until it is told to go on
				var addr uint64
				var n int
				fmt.Sscan(arg, &addr, &n)
				for range n {
					x, err := a.PostRead(&transport.ReadSpec{Peer: to, Descs: []transport.Desc{{Local: address(mem), Remote: addr, Len: uint64(len(mem))}}})
					if err != nil {
						panic(err)
					}
					pulls = append(pulls, x)
				}
				_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
				for _, x := range pulls {
					for status(a, x, 0) == transport.Pending {
						time.Sleep(time.Millisecond)
					}
					if st := status(a, x, 0); st != transport.Done {
						panic(fmt.Sprint("a read ended with status ", st))
					}
				}
			case "send":
				if err := a.Send(to, []byte(arg)); err != nil {
					panic(err)
				}
			}
			_ = out.Encode(peerNews{Done: word})
		case <-tick.C:
			if !polling {
				continue
			}
			in.Reset()
			a.Poll(in)
			for {
				agent, body, ok := in.Next()
				if !ok {
					break
				}
				_ = out.Encode(peerNews{Agent: string(agent), Body: body})
			}
		}
	}
}

// remote is the other process as the test sees it.
type remote struct {
	t     *testing.T
	cmd   *exec.Cmd
	write func(string)
	hello peerHello

	mu     sync.Mutex
	done   []string
	notifs []peerNews
	end    error // of its output
}

// startPeer starts the other process; it ends with the test.
func startPeer(t *testing.T, setup peerSetup) *remote {
	t.Helper()
	b, err := json.Marshal(setup)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "KVLEASE_TEST_PEER="+string(b))
	cmd.Stderr = os.Stderr
	stdin, stdout := child.Pipes(t, cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := &remote{t: t, cmd: cmd, write: func(s string) { fmt.Fprintln(stdin, s) }}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	dec := json.NewDecoder(stdout)
	if err := dec.Decode(&r.hello); err != nil {
		t.Fatalf("the other process: %v", err)
	}
	if r.hello.Error != "" {
		t.Fatalf("the other process: %s", r.hello.Error)
	}
	go func() {
		for {
			var n peerNews
			err := dec.Decode(&n)
			r.mu.Lock()
			if err != nil {
				r.end = err
				r.mu.Unlock()
				return
			}
			if n.Done != "" {
				r.done = append(r.done, n.Done)
			} else {
				r.notifs = append(r.notifs, n)
			}
			r.mu.Unlock()
		}
	}()
	return r
}

// do gives the other process a command and waits until it is done.
func (r *remote) do(line string) {
	r.t.Helper()
	r.mu.Lock()
	r.done = nil
	r.mu.Unlock()
	r.write(line)
	r.until("the other process to "+line[:min(len(line), 20)], func() bool { return len(r.done) > 0 })
}

// got is the number of notifications that the other process has seen.
func (r *remote) got() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.notifs)
}

func (r *remote) signal(s syscall.Signal) {
	r.t.Helper()
	if err := sigstop.Signal(r.cmd.Process, s); err != nil {
		r.t.Fatal(err)
	}
}

// until waits, with the lock held while it looks.
func (r *remote) until(what string, look func() bool) {
	r.t.Helper()
	waitUntil(r.t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		if look() {
			return true
		}
		if r.end != nil {
			r.t.Fatalf("the other process: %v, while waiting for %s", r.end, what)
		}
		return false
	})
}

// waitUntil looks again and again, a millisecond apart so that the other process gets a core.
func waitUntil(t *testing.T, what string, look func() bool) {
	t.Helper()
	deadline := time.NewTimer(waitMax)
	defer deadline.Stop()
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for !look() {
		select {
		case <-deadline.C:
			t.Fatalf("waited %v for %s", waitMax, what)
		case <-tick.C:
		}
	}
}
