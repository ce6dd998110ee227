package handshake

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
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/zmtp"
	"github.com/kvlease/kvlease/internal/await"
	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// The tests here are against a stand-in of vLLM's own ends (testdata/vllm.py) on libzmq, as pyzmq brings it.

// vllm prepares the stand-in. It is killed with the test, or after longest.
func vllm(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	path := require.PyZMQ(t)
	ctx, cancel := context.WithTimeout(context.Background(), longest)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "python3", append([]string{filepath.Join("testdata", "vllm.py")}, args...)...)
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stderr = os.Stderr
	return cmd
}

// vllmListens starts the stand-in's listener and gives its address.
func vllmListens(t testing.TB, host, engine, hash string, pp, tp int) (addr string) {
	t.Helper()
	return child.Listens(t, vllm(t, "listen", host, engine, hash, strconv.Itoa(pp), strconv.Itoa(tp)), host)
}

// vllmAsks runs one of the stand-in's scenes against a server, and gives the lines before its "ok".
func vllmAsks(t testing.TB, scene string, s *Server, args ...string) []string {
	t.Helper()
	host, port, _ := net.SplitHostPort(s.Addr().String())
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	out, err := vllm(t, append([]string{scene, host, port}, args...)...).Output()
	text, ok := strings.CutSuffix(string(out), "ok\n")
	if err != nil || !ok {
		t.Fatalf("vllm.py %s: %v: %s", scene, err, out)
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

func TestWeAskVllmsListener(t *testing.T) {
	for _, tc := range []struct {
		host   string
		pp, tp int
	}{{"127.0.0.1", 1, 1}, {"127.0.0.1", 1, 4}, {"127.0.0.1", 2, 2}, {"[::1]", 1, 2}} {
		t.Run(fmt.Sprintf("pp %d tp %d at %s", tc.pp, tc.tp, tc.host), func(t *testing.T) {
			addr := vllmListens(t, tc.host, "P", hashA, tc.pp, tc.tp)
			await.NoLeaks(t)
			c := newClient(t, Config{Hash: hashA})
			ranks := allRanks(uint32(tc.pp), uint32(tc.tp))
			if err := c.Want(1, Desc{ID: "P", Addr: addr, Ranks: ranks}); err != nil {
				t.Fatal(err)
			}
			r := next(t, c)
			if r.Err != nil || len(r.Maps) != len(ranks) {
				t.Fatalf("result %+v", r)
			}
			for i, m := range r.Maps {
				h := m.Handshake
				if want := fmt.Sprintf("blob of %d %d", ranks[i].PP, ranks[i].Transfer); m.Rank != ranks[i] || string(h.AgentMetadata) != want ||
					h.DeviceID != ranks[i].Transfer || h.NumBlocks != 113 || h.Native {
					t.Errorf("map %d: %s: %+v", i, m.Rank, h)
				}
			}
			wantTrueOffset(t, r.Offset)
			c.Refresh(1)
			if r := next(t, c); r.Err != nil || r.Maps != nil || r.Jumped {
				t.Errorf("refresh: %+v", r)
			}
		})
	}
}

func TestVllmsListenerIsRefused(t *testing.T) {
	addr := vllmListens(t, "127.0.0.1", "P", hashA, 1, 1)
	for _, tc := range []struct {
		name, engine, hash string
		ranks              uint32
		want               Class
		is                 error
	}{
		{"another hash", "P", hashB, 1, Incompatible, ErrIncompatible},
		{"another engine", "P0", hashA, 1, WrongEngine, ErrWrongEngine},
		{"a rank too many, of which it dies", "P", hashA, 2, Silent, zmtp.ErrSilent}, // last
	} {
		t.Run(tc.name, func(t *testing.T) {
			timeout := longest
			if tc.want == Silent {
				timeout = time.Second
			}
			c := newClient(t, Config{Hash: tc.hash, RankTimeout: timeout})
			if err := c.Want(1, Desc{ID: tc.engine, Addr: addr, Ranks: allRanks(1, tc.ranks)}); err != nil {
				t.Fatal(err)
			}
			if r := next(t, c); r.Class != tc.want || !errors.Is(r.Err, tc.is) {
				t.Errorf("result %+v, want %v", r, tc.want)
			}
		})
	}
}

func TestVllmsClientAsksUs(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1"} {
		t.Run(host, func(t *testing.T) {
			await.NoLeaks(t)
			s, err := Serve(net.JoinHostPort(host, "0"), ServerConfig{Monotonic: monotonic})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			for _, r := range allRanks(2, 2) {
				mustSet(t, s, r, Payload{hashA, stockMap("E", r.String())})
			}
			lines := vllmAsks(t, "ask", s, "E", hashA, "2", "2")
			if len(lines) != 4 {
				t.Fatalf("lines %q", lines)
			}
			for i, r := range allRanks(2, 2) {
				rest, ok := strings.CutPrefix(lines[i], fmt.Sprintf("%d %d %s ", r.PP, r.Transfer, r))
				var offset, roundTrip int64
				if _, err := fmt.Sscan(rest, &offset, &roundTrip); !ok || err != nil {
					t.Fatalf("line %q", lines[i])
				}
				// Their clock is ours: perf_counter is CLOCK_MONOTONIC.
				if most := roundTrip/2 + 2000; offset > most || offset < -most {
					t.Errorf("%s: offset %d ns of a round trip of %d ns", r, offset, roundTrip)
				}
			}
			if st := s.Stats(); st.Answered != 4 || st.Unexpected+st.Malformed+st.Unknown != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

func TestVllmsClientConnectsTwoHundredTimes(t *testing.T) {
	await.NoLeaks(t)
	s := serve(t, ServerConfig{})
	mustSet(t, s, Rank{}, Payload{hashA, stockMap("E", "")})
	vllmAsks(t, "connects", s, "200")
	if st := s.Stats(); st.Answered != 200 || st.Wire.Accepted != 200 || st.Wire.Evicted+st.Wire.Refused != 0 {
		t.Errorf("stats %+v", st)
	}
}

func TestStrangeRequestsOverLibzmqEndNothing(t *testing.T) { // S19
	await.NoLeaks(t)
	s := serve(t, ServerConfig{})
	mustSet(t, s, Rank{}, Payload{hashA, stockMap("E", "")})
	want := []string{"other answered", "text answered", "nil answered", "rank dropped", "empty dropped", "two dropped", "float dropped", "frames dropped", "nested dropped"}
	if diff := cmp.Diff(want, vllmAsks(t, "strange", s)); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if st := s.Stats(); st.Answered != 4 || st.Unexpected != 3 || st.Malformed != 5 || st.Unknown != 1 || st.Wire.Panics != 0 {
		t.Errorf("stats %+v", st)
	}
}
