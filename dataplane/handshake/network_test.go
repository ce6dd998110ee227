package handshake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/transport"
	"github.com/kvlease/kvlease/dataplane/wire"
	"github.com/kvlease/kvlease/dataplane/zmtp"
	"github.com/kvlease/kvlease/internal/await"
)

// The tests here use sockets and real time.

func newClient(t testing.TB, cfg Config) *Client {
	t.Helper()
	cfg.Now = boottime
	c, err := NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// next waits for a result.
func next(t testing.TB, c *Client) (r Result) {
	t.Helper()
	await.True(t, "a result", func() (ok bool) {
		r, ok = c.Next()
		return ok
	})
	return r
}

// listens accepts connections and hands each to do, until the test is over.
func listens(t testing.TB, do func(net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		running.Wait()
	})
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				do(c)
			})
		}
	})
	return l.Addr().String()
}

// replies answers every request with the same frames.
func replies(t testing.TB, frames ...[]byte) (addr string) {
	t.Helper()
	s, err := zmtp.Listen("127.0.0.1:0", zmtp.Config{Handle: func(context.Context, [][]byte) (zmtp.Reply, error) {
		return zmtp.Reply{Frames: frames}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.Addr().String()
}

// nativeMap is the map of one rank of an engine that has our key.
func nativeMap(rank uint32) []byte {
	var h wire.Handshake
	if err := wire.ParseHandshake(stockMap("P", ""), &h); err != nil {
		panic(err)
	}
	h.Native = true
	h.Lease = wire.HandshakeLease{
		Version: 1, Epoch: 5, Base: 6, Board: 4096, BoardMem: transport.DRAM, Slots: 8, Duration: time.Second, Agent: "a", Rank: rank,
	}
	return wire.AppendHandshake(nil, &h)
}

func TestEachFailureHasItsClass(t *testing.T) {
	good, at := payload("P", ""), stamp(5e9)
	deep := append(bytes.Repeat([]byte{0x91}, 100000), 0xc0)
	silent := func(c net.Conn) { io.Copy(io.Discard, c) }
	for _, tc := range []struct {
		name string
		addr func(t testing.TB) string
		want Class
		is   error
	}{
		{"nobody listens", func(t testing.TB) string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			return l.Addr().String()
		}, Unreachable, zmtp.ErrUnreachable},
		{"no such port", func(testing.TB) string { return "127.0.0.1:99999" }, Unreachable, zmtp.ErrUnreachable},
		{"accepts and says nothing", func(t testing.TB) string { return listens(t, silent) }, Silent, zmtp.ErrSilent},
		{"half a greeting", func(t testing.TB) string {
			return listens(t, func(c net.Conn) {
				c.Write([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3})
				silent(c)
			})
		}, Silent, zmtp.ErrSilent},
		{"accepts and closes", func(t testing.TB) string {
			return listens(t, func(c net.Conn) { c.Read(make([]byte, 1)) })
		}, HungUp, zmtp.ErrHungUp},
		{"a web server", func(t testing.TB) string {
			return listens(t, func(c net.Conn) {
				io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n"+strings.Repeat(" ", 100))
				silent(c)
			})
		}, NotZMTP, zmtp.ErrNotZMTP},
		{"a reply of two megabytes", func(t testing.TB) string { return replies(t, make([]byte, 2<<20), at) }, NotZMTP, zmtp.ErrTooLong},
		{"a reply of one frame", func(t testing.TB) string { return replies(t, good) }, Metadata, ErrMetadata},
		{"a reply of three frames", func(t testing.TB) string { return replies(t, good, at, at) }, Metadata, ErrMetadata},
		{"frames in the other order", func(t testing.TB) string { return replies(t, at, good) }, Metadata, ErrMetadata},
		{"an empty payload", func(t testing.TB) string { return replies(t, nil, at) }, Metadata, wire.ErrTruncated},
		{"a payload nested 100,000 deep", func(t testing.TB) string { return replies(t, deep, at) }, Metadata, ErrMetadata},
		{"a map nested 100,000 deep", func(t testing.TB) string { return replies(t, wire.AppendPayload(nil, hashA, deep), at) }, Metadata, ErrMetadata},
		{"a payload without a hash", func(t testing.TB) string { return replies(t, []byte{0x80}, at) }, Metadata, wire.ErrMissing},
		{"half a map", func(t testing.TB) string {
			m := stockMap("P", "")
			return replies(t, wire.AppendPayload(nil, hashA, m[:len(m)/2]), at)
		}, Metadata, ErrMetadata},
		{"a stamp of no number", func(t testing.TB) string {
			return replies(t, good, wire.AppendStamp(nil, clock.RemoteInstant(math.MinInt64)))
		}, Metadata, wire.ErrRange},
		{"an integer as stamp", func(t testing.TB) string { return replies(t, good, []byte{5}) }, Metadata, wire.ErrType},
		{"another hash", func(t testing.TB) string { return replies(t, wire.AppendPayload(nil, hashB, stockMap("P", "")), at) }, Incompatible, ErrIncompatible},
		{"another hash and a map that only they can read", func(t testing.TB) string {
			return replies(t, wire.AppendPayload(nil, hashB, []byte{0xc0}), at)
		}, Incompatible, ErrIncompatible},
		{"another engine", func(t testing.TB) string { return replies(t, payload("P2", ""), at) }, WrongEngine, ErrWrongEngine},
		{"another engine with a long name", func(t testing.TB) string { return replies(t, payload(strings.Repeat("P", 4000), ""), at) }, WrongEngine, ErrWrongEngine},
		{"other blocks", func(t testing.TB) string { return replies(t, payload("P", "odd"), at) }, Incompatible, io.ErrNoProgress},
		{"the map of another rank", func(t testing.TB) string { return replies(t, wire.AppendPayload(nil, hashA, nativeMap(1)), at) }, WrongRanks, ErrRanks},
		{"fewer ranks", func(t testing.TB) string {
			s := serve(t, ServerConfig{})
			mustSet(t, s, Rank{}, Payload{hashA, nativeMap(0)})
			return s.Addr().String()
		}, WrongRanks, ErrRanks},
	} {
		t.Run(tc.name, func(t *testing.T) {
			await.NoLeaks(t)
			odd := func(_ uint64, _ Rank, h *wire.Handshake) error {
				if string(h.AgentMetadata) == "odd" {
					return io.ErrNoProgress
				}
				return nil
			}
			timeout := longest
			if tc.want == Silent {
				timeout = 500 * ms // a busy machine still connects in it
			}
			c := newClient(t, Config{Hash: hashA, Check: odd, RankTimeout: timeout})
			addr := tc.addr(t)
			if err := c.Want(1, Desc{ID: "P", Addr: addr, Ranks: allRanks(1, 2)}); err != nil {
				t.Fatal(err)
			}
			r := next(t, c)
			if r.Class != tc.want || !errors.Is(r.Err, tc.is) {
				t.Fatalf("class %v, error %v, want %v and %v", r.Class, r.Err, tc.want, tc.is)
			}
			if text := r.Err.Error(); len(text) > 500 || !strings.Contains(text, addr) {
				t.Errorf("the error does not name %s, or is too long: %q", addr, text)
			}
			if s := c.Stats(); s.Failures[tc.want] == 0 || s.Attempts == 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestHashesAreComparedUnlessToldNotTo(t *testing.T) {
	for name, cfg := range map[string]Config{
		"enforce_handshake_compat is false": {Hash: hashB, IgnoreHash: true},
		"we have none":                      {},
		"they are equal":                    {Hash: hashA},
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, cfg)
			c.Want(1, Desc{ID: "P", Addr: replies(t, payload("P", ""), stamp(5e9)), Ranks: allRanks(1, 1)})
			if r := next(t, c); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
}

func TestOurEndsKnowEachOther(t *testing.T) {
	for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
		t.Run(host, func(t *testing.T) {
			await.NoLeaks(t)
			s, err := Serve(net.JoinHostPort(host, "0"), ServerConfig{Monotonic: monotonic})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			const ranks = 8
			for _, r := range allRanks(2, ranks/2) {
				mustSet(t, s, r, Payload{hashA, nativeMap(r.Transfer)})
			}
			c := newClient(t, Config{Hash: hashA})
			_, port, _ := net.SplitHostPort(s.Addr().String())
			before := time.Now()
			if err := c.Want(3, Desc{ID: "P", Addr: net.JoinHostPort(host, port), Ranks: allRanks(2, ranks/2)}); err != nil {
				t.Fatal(err)
			}
			r := next(t, c)
			if r.Err != nil || len(r.Maps) != ranks || r.Engine != 3 {
				t.Fatalf("result %+v", r)
			}
			for i, m := range r.Maps {
				if want := allRanks(2, ranks/2)[i]; m.Rank != want || m.Handshake.Lease.Rank != want.Transfer || !bytes.Equal(m.Raw, nativeMap(want.Transfer)) {
					t.Errorf("map %d: %+v", i, m)
				}
			}
			wantTrueOffset(t, r.Offset)
			if s := c.Stats(); s.Engines[Ready] != 1 || s.Last.Before(before) {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

// wantTrueOffset holds an offset of this host's own CLOCK_MONOTONIC against the two clocks.
func wantTrueOffset(t testing.TB, o clock.Offset) {
	t.Helper()
	before := boottime()
	mono := monotonic()
	after := boottime()
	at, bound, ok := o.Local(mono)
	if !ok || at.Add(bound).Before(before) || after.Before(at.Add(-bound)) {
		t.Errorf("it is %v to %v, converted %v +- %v, %v", before, after, at, bound, ok)
	}
	if bound > longest {
		t.Errorf("bound %v", bound)
	}
}

func TestAHundredEnginesThatAcceptAndNeverAnswerLeaveNothingBehind(t *testing.T) { // C54
	await.NoLeaks(t) // shows C54.2
	addr := listens(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	live := replies(t, payload("live", ""), stamp(5e9))
	c := newClient(t, Config{RankTimeout: 4 * time.Second}) // the live one has so long on a busy machine
	for i := range uint64(100) {
		if err := c.Want(i+100, Desc{ID: "P", Addr: addr, Ranks: allRanks(1, 1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Want(1, Desc{ID: "live", Addr: live, Ranks: allRanks(1, 1)}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if r := next(t, c); r.Engine != 1 || r.Err != nil {
		t.Errorf("the first result is %+v", r)
	}
	t.Logf("the live one after %v", time.Since(began))
	seen := map[uint64]bool{}
	for len(seen) < 100 {
		if r := next(t, c); r.Engine != 1 {
			if r.Class != Silent { // shows C54.1
				t.Errorf("result %+v", r)
			}
			seen[r.Engine] = true
		}
	}
}

func TestAnEngineThatIsKnownOrWaitsHasNoGoroutine(t *testing.T) {
	live := replies(t, payload("P", ""), stamp(5e9))
	dead := listens(t, func(net.Conn) {})
	before := runtime.NumGoroutine()
	c := newClient(t, Config{})
	for i := range uint64(100) {
		c.Want(i, Desc{ID: "P", Addr: []string{live, dead}[i%2], Ranks: allRanks(1, 1)})
	}
	await.True(t, "all are known or wait", func() bool {
		s := c.Stats()
		return s.Engines[Ready] == 50 && s.Engines[Failed] == 50 && runtime.NumGoroutine() <= before
	})
}

func FuzzAReplyNeverPanicsAndIsWholeOrNothing(f *testing.F) {
	at := stamp(5e9)
	f.Add(payload("P", "blob"), at, false)
	f.Add(stockMap("P", "blob"), at, true)
	f.Add(nativeMap(0), at, true)
	f.Add(wire.AppendPayload(nil, hashA, nativeMap(0)), at, false)
	f.Add(wire.AppendPayload(nil, hashA, nativeMap(1)), at, false)
	f.Add(wire.AppendPayload(nil, hashB, stockMap("P", "")), at, false)
	f.Add(payload("P2", ""), []byte{0xcb, 0x7f, 0xf8, 0, 0, 0, 0, 0, 0}, false)
	f.Add(bytes.Repeat([]byte{0x91}, 300), []byte{}, false)
	f.Fuzz(func(t *testing.T, first, second []byte, wrap bool) {
		if wrap { // past the payload and its hash
			first = wire.AppendPayload(nil, hashA, first)
		}
		x := expectation{engine: "P", hash: hashA}
		got, err := x.read(Rank{}, [][]byte{first, second})
		if err != nil {
			switch class := ClassOf(err); class {
			case Metadata, Incompatible, WrongEngine, WrongRanks:
			default:
				t.Errorf("class %v for %v", class, err)
			}
			if got.m.Handshake != nil || len(err.Error()) > 1000 {
				t.Errorf("%+v with error %v", got.m, err)
			}
			return
		}
		h := got.m.Handshake
		if h.EngineID != "P" || got.m.Hash != hashA || h.Native && h.Lease.Rank != 0 || !bytes.Contains(first, got.m.Raw) {
			t.Errorf("taken: %+v", got.m)
		}
		again, err := x.read(Rank{}, [][]byte{wire.AppendPayload(nil, got.m.Hash, wire.AppendHandshake(nil, h)), second})
		if err != nil {
			t.Fatalf("encoded anew: %v", err)
		}
		if diff := cmp.Diff(h, again.m.Handshake, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("encoded anew (-was +is):\n%s", diff)
		}
	})
}
