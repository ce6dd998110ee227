package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// The tests here are against libzmq, as pyzmq brings it.

// python prepares a script of testdata. It is killed with the test, or after longest.
func python(t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	path := require.PyZMQ(t)
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "python3", append([]string{filepath.Join("testdata", script)}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// theirs starts a libzmq socket and gives its address.
func theirs(t testing.TB, kind, host, mechanism string, heartbeatMs int) (addr string) {
	t.Helper()
	return child.Listens(t, python(t, "router.py", kind, host, mechanism, strconv.Itoa(heartbeatMs)), host)
}

// scene runs one of req.py's scenes against addr, and gives the lines before its "ok".
func scene(t testing.TB, addr, name string, count int) string {
	t.Helper()
	host, port, _ := net.SplitHostPort(addr)
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	out, err := python(t, "req.py", name, port, host, strconv.Itoa(count)).Output()
	text, ok := strings.CutSuffix(string(out), "ok\n")
	if err != nil || !ok {
		t.Fatalf("req.py %s: %v: %s", name, err, out)
	}
	return text
}

func TestOurREQAsksTheirSockets(t *testing.T) {
	for _, tc := range []struct{ kind, host string }{{"ROUTER", "127.0.0.1"}, {"ROUTER", "[::1]"}, {"REP", "127.0.0.1"}} {
		t.Run(tc.kind+" at "+tc.host, func(t *testing.T) {
			addr := theirs(t, tc.kind, tc.host, "NULL", 0)
			await.NoLeaks(t)
			cl := Client{Limits: Limits{Request: longest}}
			check := func(reply [][]byte, err error, size int) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				if len(reply) != 2 || len(reply[0]) != size || string(reply[1]) != "second" {
					t.Fatalf("%d frames, the first of %d bytes, want 2 and %d", len(reply), len(reply[0]), size)
				}
				for i, b := range reply[0] {
					if int(b) != i%251 {
						t.Fatalf("byte %d is %d", i, b)
					}
				}
			}
			for range 200 {
				reply, _, err := cl.Request(t.Context(), addr, []byte("300 0"))
				check(reply, err, 300)
			}
			c, err := cl.Dial(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for _, size := range []int{0, 1, 255, 256, 65535, 1 << 20, 1 << 20, 10} {
				reply, _, err := c.Request(t.Context(), fmt.Appendf(nil, "%d 0", size))
				check(reply, err, size)
			}
		})
	}
}

func TestOurREQAnswersTheirPingsWhileItWaits(t *testing.T) {
	// Their ROUTER gives a peer up that is silent for 500 ms, and takes twice that to reply.
	addr := theirs(t, "ROUTER", "127.0.0.1", "NULL", 50)
	c, err := Client{Limits: Limits{Request: longest}}.Dial(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, _, err := c.Request(t.Context(), []byte("10 1000")); err != nil {
		t.Error(err)
	}
}

func TestOurREQIsToldWhyTheirSocketsDoNotAnswer(t *testing.T) {
	cl := Client{Limits: Limits{Request: longest}}
	addr := theirs(t, "ROUTER", "127.0.0.1", "PLAIN", 0)
	if _, _, err := cl.Request(t.Context(), addr, []byte("1 0")); !errors.Is(err, ErrMechanism) {
		t.Errorf("PLAIN: error %v, want %v", err, ErrMechanism)
	}
	// libzmq may close before it says what it is.
	addr = theirs(t, "PUB", "127.0.0.1", "NULL", 0)
	if _, _, err := cl.Request(t.Context(), addr, []byte("1 0")); !errors.Is(err, ErrSocketType) && !errors.Is(err, ErrHungUp) {
		t.Errorf("PUB: error %v, want %v or %v", err, ErrSocketType, ErrHungUp)
	}
}

func TestTheirSocketsAskOurROUTER(t *testing.T) {
	for _, tc := range []struct {
		scene, addr string
		count       int
		requests    uint64
		malformed   uint64
	}{
		{"connects", "127.0.0.1:0", 200, 200, 0},
		{"connects", "[::1]:0", 20, 20, 0},
		{"requests", "127.0.0.1:0", 500, 500, 0},
		{"large", "127.0.0.1:0", 5, 5, 0},
		{"correlate", "127.0.0.1:0", 20, 20, 0},
		{"identity", "127.0.0.1:0", 20, 40, 0},
		{"dropped", "127.0.0.1:0", 5, 5, 5},
		{"heartbeats", "127.0.0.1:0", 50, 1, 0},
	} {
		t.Run(tc.scene+" at "+tc.addr, func(t *testing.T) {
			await.NoLeaks(t)
			s := listen(t, tc.addr, Config{Limits: Limits{RequestBytesMax: 1 << 20, Request: longest}, Handle: echo})
			scene(t, s.Addr().String(), tc.scene, tc.count)
			await.True(t, "they are gone", func() bool { return s.Stats().Open == 0 })
			if got := s.Stats(); got.Requests != tc.requests || got.Malformed != tc.malformed || got.Evicted+got.Refused+got.Timeouts+got.Panics != 0 {
				t.Errorf("stats %+v", got)
			}
		})
	}
}
