package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/await"
)

// mutant makes the bytes of a connection that is right for a while.
func mutant(r *rand.Rand) []byte {
	noise := make([]byte, r.IntN(200))
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	whole := slices.Concat(reqHello, commandBytes("PING", "\x00\x0ahi"), message("", "hi", strings.Repeat("x", 300)))
	switch r.IntN(6) {
	case 0:
		return noise
	case 1:
		return append(slices.Clone(reqHello[:greetingLen]), noise...)
	case 2:
		return append(slices.Clone(reqHello), noise...)
	case 3:
		return whole[:r.IntN(len(whole)+1)]
	case 4:
		whole[r.IntN(len(whole))] ^= 1 << r.IntN(8)
		return whole
	default: // a frame of any flags and size
		return append(append(slices.Clone(reqHello), byte(r.IntN(8)), byte(r.Uint32()), byte(r.Uint32())), noise...)
	}
}

func TestThousandsOfRandomConnectionsHurtNobody(t *testing.T) {
	await.NoLeaks(t)
	const connections, workers = 3000, 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: longest, Idle: longest}, Handle: echo})
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for range connections / workers {
				c, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c.SetDeadline(time.Now().Add(longest))
				c.Write(mutant(r))
				if r.IntN(2) == 0 {
					c.(*net.TCPConn).CloseWrite()
					io.Copy(io.Discard, c)
				}
				c.Close()
			}
		})
	}
	all.Wait()
	await.True(t, "all are over", func() bool { return s.Stats().Open == 0 })
	ask(t, s)
	got := s.Stats()
	t.Logf("%+v", got)
	if got.Accepted != connections+1 || got.Panics != 0 || got.Refused != 0 || got.Malformed < connections/10 || got.Torn < connections/10 || got.Requests < connections/100 {
		t.Errorf("stats %+v", got)
	}
}

func TestTenThousandSilentConnectionsDoNotKeepAnybodyOut(t *testing.T) {
	await.NoLeaks(t)
	const connections = 10000
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	held := make([]net.Conn, min(connections, int(files.Cur)-500)) // a ring: the oldest makes room if descriptors are few
	if len(held) < connections {
		t.Logf("%d at a time: there are %d descriptors", len(held), files.Cur)
	}
	drop := func(c net.Conn) {
		c.(*net.TCPConn).SetLinger(0) // leaves no port waiting
		c.Close()
	}
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: 10 * time.Minute}, Handle: echo})
	for i := range connections {
		c, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		at := &held[i%len(held)]
		if *at != nil {
			drop(*at)
		}
		*at = c
		if i%1000 == 999 {
			ask(t, s)
		}
	}
	await.True(t, "ten requests are counted", func() bool { return s.Stats().Requests == 10 })
	got := s.Stats()
	t.Logf("%+v, %d goroutines", got, runtime.NumGoroutine())
	if got.Requests != 10 || got.Accepted != connections+10 || got.Open > 64 || got.Evicted < connections-64-10 {
		t.Errorf("stats %+v", got)
	}
	for _, c := range held {
		if c != nil {
			drop(c)
		}
	}
}

func TestCrowdOfSlowRequestsDoesNotKeepAnybodyOut(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: longest}, Handle: echo})
	for range 200 {
		c := dialRaw(t, s)
		mustWrite(t, c, reqHello, message("", "hi")[:3])
	}
	for range 10 {
		ask(t, s)
	}
	await.True(t, "ten requests are counted", func() bool { return s.Stats().Requests == 10 })
	if got := s.Stats(); got.Open > 64 {
		t.Errorf("stats %+v", got)
	}
}

func TestMemoryFollowsTheBytesThatCameNotThoseAnnounced(t *testing.T) {
	await.NoLeaks(t)
	// The most that is allowed is announced, and not one byte of it sent.
	says := slices.Concat(routerHello, message("", "")[:2], []byte{flagLong, 0, 0, 0, 0, 1, 0, 0, 0})
	c, err := Client{Limits: Limits{}.orDefaults()}.start(t.Context(), "peer:1", &closing{scripted{in: bytes.NewReader(says)}})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, _, err := c.Request(t.Context(), []byte("hi")); !errors.Is(err, ErrHungUp) {
		t.Fatalf("error %v, want %v", err, ErrHungUp)
	}
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 {
		t.Errorf("%d bytes of memory for a frame of which nothing came", took)
	}
}

func TestLargestReplyArrivesWhole(t *testing.T) {
	await.NoLeaks(t)
	const most = 16 << 20
	body := make([]byte, most)
	rand.NewChaCha8([32]byte{1}).Read(body)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: longest}, Handle: func(_ context.Context, r [][]byte) (Reply, error) {
		return Reply{Frames: [][]byte{body[:most-9], body[most-9:]}}, nil
	}})
	for _, tc := range []struct {
		max int
		ok  bool
	}{{most, true}, {most - 1, false}} {
		reply, _, err := Client{Limits: Limits{ReplyBytesMax: tc.max, Request: longest}}.Request(t.Context(), s.Addr().String(), []byte("hi"))
		if (err == nil) != tc.ok {
			t.Fatalf("limit %d: %v", tc.max, err)
		}
		if tc.ok && !slices.Equal(slices.Concat(reply...), body) {
			t.Error("the bytes differ")
		}
		if !tc.ok && !strings.Contains(err.Error(), fmt.Sprintf("a frame of 9 bytes, 8 of %d left", tc.max)) {
			t.Errorf("error %v", err)
		}
	}
}

// One host's connections give way to each other, so that a slow peer elsewhere is still there for its request.
func TestCrowdOfOneHostClosesNoConnectionOfAnother(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: longest}, Handle: echo})
	slow := dialRaw(t, s)
	mustWrite(t, slow, reqHello[:1])
	await.True(t, "it has a place", func() bool { return s.Stats().Open == 1 })
	crowd := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	const connections = 200
	for range connections {
		c, err := crowd.DialContext(t.Context(), "tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	await.True(t, "all have come", func() bool { return s.Stats().Accepted == connections+1 })
	mustWrite(t, slow, reqHello[1:], message("", "hi"))
	mustRead(t, slow, len(routerHello)+len(message("", "hi")))
	if got := s.Stats(); got.Open != 64 || got.Evicted != connections+1-64 {
		t.Errorf("stats %+v", got)
	}
}
