package cnixl

import (
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/cnixl/fake"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/transport/transporttest"
	"github.com/kvlease/kvlease/internal/require"
)

// realNIXL opens an agent of the real library or skips, naming what is missing.
func realNIXL(t testing.TB, cfg Config) *Agent {
	t.Helper()
	cfg.Folders = []string{".."}
	a, err := Open(cfg)
	if err != nil {
		require.Skip(t, "nixl", err.Error())
	}
	return a
}

// haveNIXL skips like realNIXL and opens no agent: UCX's sockets would be inherited by the processes that the test starts.
func haveNIXL(t testing.TB) {
	t.Helper()
	if _, _, err := openLibrary(search{env: getenv("KVLEASE_NIXL"), maps: mappedFiles(), folders: []string{".."}}); err != nil {
		require.Skip(t, "nixl", err.Error())
	}
}

func realPair(t testing.TB) (a, b *Agent) {
	a = realNIXL(t, Config{Agent: "decode-0-0123456789abcdef", ReadsMax: 20})
	b = realNIXL(t, Config{Agent: "prefill-0"})
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return a, b
}

func TestRealNIXLKeepsTheContract(t *testing.T) {
	for _, tls := range []string{"default", "tcp"} {
		t.Run(tls, func(t *testing.T) {
			var env []string
			if tls != "default" {
				env = append(env, "UCX_TLS="+tls)
			}
			if !alone(t, env...) {
				return
			}
			haveNIXL(t)
			transporttest.Run(t, func(t *testing.T) transporttest.Pair {
				a, b := realPair(t)
				return transporttest.Pair{A: a, B: b, ReadsMax: 20}
			})
		})
	}
}

func TestTheLibraryIsNamed(t *testing.T) {
	a, _ := realPair(t)
	lib := a.Library()
	t.Logf("%+v", lib)
	if lib.File == "" || lib.How == "" || a.Name() != "nixl" {
		t.Errorf("library %+v", lib)
	}
	if !filepath.IsAbs(lib.File) || !filepath.IsAbs(lib.Plugins) {
		t.Errorf("relative paths do not outlive a chdir of the host: %+v", lib)
	}
	if lib.How == "wheel" && lib.Version != "1.5.1" {
		t.Errorf("version %q of the pinned wheel, want 1.5.1", lib.Version)
	}
}

func TestTheUsersEnvironmentWins(t *testing.T) {
	if !alone(t, "UCX_DEBUG_SIGNO=11", "NIXL_LOG_LEVEL=", "UCX_LOG_FILE=stdout", "NIXL_PLUGIN_DIR=/user") {
		return
	}
	setEnvironment("/ours")
	for name, want := range map[string]string{"UCX_DEBUG_SIGNO": "11", "NIXL_LOG_LEVEL": "", "UCX_LOG_FILE": "stdout", "NIXL_PLUGIN_DIR": "/user"} {
		if got := getenv(name); got != want {
			t.Errorf("%s=%q, want the user's %q", name, got, want)
		}
	}
}

func TestTheEnvironmentIsSetForUCX(t *testing.T) {
	if !alone(t) {
		return
	}
	setEnvironment("/ours")
	for name, want := range map[string]string{"UCX_DEBUG_SIGNO": "0", "NIXL_LOG_LEVEL": "FATAL", "UCX_LOG_FILE": "stderr", "NIXL_PLUGIN_DIR": "/ours"} {
		if got, set := getenv(name), os.Getenv(name); got != want && set == "" {
			t.Errorf("%s=%q, want %q", name, got, want)
		}
	}
}

func TestUCXLeavesSignalsAloneFromTheMomentInWhichItIsLoaded(t *testing.T) {
	path, err := built.Path()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("UCX_DEBUG_SIGNO", "") // puts back what the user has set
	os.Unsetenv("UCX_DEBUG_SIGNO")
	if !alone(t) {
		return
	}
	a, err := Open(Config{Agent: "a", Path: path})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if quiet, err := fake.Control(path, "quiet"); err != nil || quiet != 1 { // shows C71.2
		t.Errorf("when the library was loaded: %d, %v", quiet, err)
	}
}

// stepper runs the calls of a step between two agents of this thread.
type stepper struct {
	t          testing.TB
	a, b       *Agent
	toB        transport.Peer
	spec       *transport.ReadSpec
	in         *transport.Inbox
	xs         []transport.Xfer
	out        []transport.Status
	sent, seen int
}

func newStepper(t testing.TB, descs int) *stepper {
	t.Helper()
	a, b := realPair(t)
	const size = 1 << 20
	memA, memB := memory(size), memory(size)
	for at, mem := range map[*Agent][]byte{a: memA, b: memB} {
		if err := at.Register([]transport.Region{{Addr: address(mem), Bytes: size}}); err != nil {
			t.Fatal(err)
		}
	}
	blob, err := b.Metadata()
	if err != nil {
		t.Fatal(err)
	}
	to, err := a.Load(blob)
	if err != nil {
		t.Fatal(err)
	}
	s := &stepper{
		t: t, a: a, b: b, toB: to, spec: &transport.ReadSpec{Peer: to}, in: transport.NewInbox(4096, 1<<20),
		xs: make([]transport.Xfer, 1), out: make([]transport.Status, 1),
	}
	for i := range uint64(descs) {
		s.spec.Descs = append(s.spec.Descs, transport.Desc{Local: address(memA) + i*8, Remote: address(memB) + i*8, Len: 8})
	}
	return s
}

var heartbeat = []byte("HB:0123456789abcdef0123456789abcdef,fedcba9876543210")

// send posts one notification, with at most 64 on their way.
func (s *stepper) send() {
	if s.sent-s.seen < 64 {
		if err := s.a.Send(s.toB, heartbeat); err != nil {
			s.t.Fatal(err)
		}
		s.sent++
	}
}

func (s *stepper) poll() {
	s.in.Reset()
	s.seen += s.b.Poll(s.in)
}

// read runs one read to its end; both ends poll, and the number of looks is bounded.
func (s *stepper) read() {
	x, err := s.a.PostRead(s.spec)
	if err != nil {
		s.t.Fatal(err)
	}
	s.xs[0] = x
	s.out[0] = transport.Pending
	for range 1_000_000 {
		if s.a.PollReads(s.xs, s.out, 1000); s.out[0] != transport.Pending {
			break
		}
		s.poll()
	}
	if s.out[0] != transport.Done {
		s.t.Fatalf("read has status %d", s.out[0])
	}
	if err := s.a.Release(x); err != nil {
		s.t.Fatal(err)
	}
}

func TestStepsOverRealNIXLAllocateNothingOfOurs(t *testing.T) {
	s := newStepper(t, 16)
	steps := 100_000
	if testing.Short() {
		steps = 2_000
	}
	for range 100 {
		s.send()
		s.poll()
		s.read()
	}
	runtime.GC()
	var before, after runtime.MemStats
	ours := Mallocs()
	runtime.ReadMemStats(&before)
	for i := range steps { // idle, then beats, then a read now and then
		s.poll()
		s.a.Backlog()
		if i%2 == 0 {
			s.send()
		}
		if i%10 == 0 {
			s.read()
		}
	}
	runtime.ReadMemStats(&after)
	// The runtime itself makes a few when it collects or prints; a step's would be thousands.
	if n := after.Mallocs - before.Mallocs; n > 50 {
		t.Errorf("%d Go mallocs in %d steps", n, steps)
	}
	if n := Mallocs() - ours; n != 0 {
		t.Errorf("%d mallocs of the shim in %d steps", n, steps)
	}
	t.Logf("%d steps, %d notifications, %d Go mallocs, %d of the shim", steps, s.seen, after.Mallocs-before.Mallocs, Mallocs()-ours)
}

// Fault case C73: one thread adds and drops peers and registers memory at full speed while another runs steps.
// The agent's own read-write lock carries it; the strict one does, too.
func TestPeersComeAndGoBesideSteps(t *testing.T) {
	for _, strict := range []bool{false, true} {
		name := map[bool]string{false: "read-write lock", true: "strict lock"}[strict]
		t.Run(name, func(t *testing.T) {
			if !alone(t) {
				return
			}
			s := newStepper(t, 64)
			if strict {
				must := realNIXL(t, Config{Agent: "strict", Strict: true})
				t.Cleanup(func() { _ = must.Close() })
				blob, err := s.b.Metadata()
				if err != nil {
					t.Fatal(err)
				}
				mem := memory(1 << 20)
				if err := must.Register([]transport.Region{{Addr: address(mem), Bytes: 1 << 20}}); err != nil {
					t.Fatal(err)
				}
				if s.toB, err = must.Load(blob); err != nil {
					t.Fatal(err)
				}
				s.a, s.spec.Peer = must, s.toB
				for i := range s.spec.Descs {
					s.spec.Descs[i].Local = address(mem) + uint64(i)*8
				}
			}
			c := realNIXL(t, Config{Agent: "other"})
			t.Cleanup(func() { _ = c.Close() })
			blob, err := c.Metadata()
			if err != nil {
				t.Fatal(err)
			}
			extra := memory(1 << 16)
			var stop atomic.Bool
			var loads atomic.Int64
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for ; !stop.Load(); loads.Add(1) {
					p, err := s.a.Load(blob)
					if err != nil {
						t.Error(err)
						return
					}
					region := []transport.Region{{Addr: address(extra), Bytes: 1 << 16}}
					if err := s.a.Register(region); err != nil {
						t.Error(err)
						return
					}
					if _, err := s.a.Metadata(); err != nil {
						t.Error(err)
						return
					}
					if err := s.a.Unregister(region); err != nil {
						t.Error(err)
						return
					}
					if err := s.a.Drop(p); err != nil {
						t.Error(err)
						return
					}
				}
			}()
			reads := 0
			begin := time.Now() // a busy machine gets more time to let the threads meet
			met := func() bool { return loads.Load() >= 5 && reads >= 50 }
			for took := time.Duration(0); took < 1500*time.Millisecond || !met() && took < waitMax; took = time.Since(begin) {
				reads++
				s.send()
				s.poll()
				s.read()
				s.in.Reset()
				s.a.Poll(s.in)
			}
			stop.Store(true)
			<-ended
			waitUntil(t, "the last notifications", func() bool { s.poll(); return s.seen == s.sent })
			t.Logf("%d loads, registrations and drops beside %d notifications and %d reads", loads.Load(), s.seen, reads)
			if !met() { // shows C73.1: and nothing has crashed
				t.Errorf("%d loads and %d reads: the threads hardly met", loads.Load(), reads)
			}
		})
	}
}
