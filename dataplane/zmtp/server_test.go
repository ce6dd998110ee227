package zmtp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/internal/await"
)

func TestRequestsAreAnsweredOverBothFamilies(t *testing.T) {
	await.NoLeaks(t)
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0", "localhost:0", ":0"} {
		t.Run(addr, func(t *testing.T) {
			s := listen(t, addr, Config{Handle: echo})
			ask(t, s)
		})
	}
}

func TestStampIsTheLastFrameAndTakenLast(t *testing.T) {
	await.NoLeaks(t)
	var now atomic.Int64
	tick := func() clock.Instant { return clock.Instant(now.Add(1)) }
	s := listen(t, "127.0.0.1:0", Config{Handle: func(_ context.Context, request [][]byte) (Reply, error) {
		made := tick()
		return Reply{
			Frames: [][]byte{fmt.Appendf(nil, "made at %d", made)},
			Stamp:  func(dst []byte) []byte { return fmt.Appendf(dst, "sent at %d", tick()) },
		}, nil
	}})
	reply, timing, err := Client{Now: tick}.Request(t.Context(), s.Addr().String(), []byte("hi"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprintf("%s", reply), "[made at 2 sent at 3]"; got != want {
		t.Errorf("reply %s, want %s", got, want)
	}
	if want := (Timing{Sent: 1, Received: 4}); timing != want {
		t.Errorf("timing %v, want %v", timing, want)
	}
}

func TestConnectionServesManyRequestsUntilAnError(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: func(ctx context.Context, request [][]byte) (Reply, error) {
		if string(request[0]) == "bad" {
			return Reply{}, errors.New("no such rank")
		}
		return echo(ctx, request)
	}})
	c, err := Client{}.Dial(t.Context(), s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var replies [][][]byte
	for i := range 10 {
		reply, _, err := c.Request(t.Context(), fmt.Appendf(nil, "request %d", i), []byte("second"))
		if err != nil {
			t.Fatal(err)
		}
		replies = append(replies, reply)
	}
	for i, r := range replies { // a reply stays what it was
		if got, want := fmt.Sprintf("%s", r), fmt.Sprintf("[request %d second]", i); got != want {
			t.Errorf("reply %s, want %s", got, want)
		}
	}
	if _, _, err := c.Request(t.Context(), []byte("bad")); !errors.Is(err, ErrHungUp) {
		t.Errorf("error %v, want %v", err, ErrHungUp)
	}
	if _, _, err := c.Request(t.Context(), []byte("good")); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want %v", err, ErrClosed)
	}
	await.True(t, "the connection is gone", func() bool { return s.Stats().Open == 0 })
	if diff := cmp.Diff(Stats{Accepted: 1, Requests: 10, Malformed: 1}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestRequestsPastTheOwnLimitsAreNotSent(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: echo})
	for _, tc := range []struct {
		name   string
		frames [][]byte
		is     error
	}{
		{"no frame", nil, ErrMalformed},
		{"too many bytes", [][]byte{make([]byte, 4096), {0}}, ErrTooLong},
		{"too many frames", make([][]byte, 16), ErrTooLong},
		{"the most bytes and frames", append(make([][]byte, 14), make([]byte, 4096)), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := (Client{}).Request(t.Context(), s.Addr().String(), tc.frames...); !errors.Is(err, tc.is) {
				t.Errorf("error %v, want %v", err, tc.is)
			}
		})
	}
}

func TestWhatStandsBeforeTheEnvelopeComesBack(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: func(context.Context, [][]byte) (Reply, error) {
		return Reply{Frames: [][]byte{[]byte("yes"), nil, []byte("no")}}, nil
	}})
	c := dialRaw(t, s)
	mustWrite(t, c, reqHello, message("proxy", "number", "", "", "hi"), message("", "hi"))
	want := slices.Concat(routerHello, message("proxy", "number", "", "yes", "", "no"), message("", "yes", "", "no"))
	if got := mustRead(t, c, len(want)); !bytes.Equal(got, want) {
		t.Errorf("got % x\nwant % x", got, want)
	}
}

func TestPingsAreAnsweredBeforeAndWithinAMessage(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: echo})
	c := dialRaw(t, s)
	m := message("", "hi")
	mustWrite(t, c, reqHello, commandBytes("PING", "\x00\x0aone"), m[:2], commandBytes("HI", "?"), commandBytes("PING", "\x00\x0a"), m[2:], commandBytes("PONG", ""))
	want := slices.Concat(routerHello, commandBytes("PONG", "one"), commandBytes("PONG", ""), m)
	if got := mustRead(t, c, len(want)); !bytes.Equal(got, want) {
		t.Errorf("got % x\nwant % x", got, want)
	}
}

func TestCommandsAreCountedAnewAfterEachMessage(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: echo})
	c := dialRaw(t, s)
	mustWrite(t, c, reqHello)
	mustRead(t, c, len(routerHello))
	m := message("", "hi")
	for range 3 {
		mustWrite(t, c, slices.Repeat(commandBytes("HI", ""), 64), m)
		if got := mustRead(t, c, len(m)); !bytes.Equal(got, m) {
			t.Fatalf("reply % x", got)
		}
	}
}

func TestNobodyThereIsSaidAtOnce(t *testing.T) {
	await.NoLeaks(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	for _, tc := range []struct{ name, addr string }{
		{"a port without a listener", l.Addr().String()},
		{"an address without a port", "127.0.0.1"},
		{"a name that cannot be", "no such name:1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, _, err := Client{Limits: Limits{Request: time.Hour}}.Request(t.Context(), tc.addr, []byte("hi"))
			if !errors.Is(err, ErrUnreachable) || !strings.HasPrefix(err.Error(), "zmtp "+tc.addr+": connect: unreachable: ") {
				t.Errorf("error %v, want %v", err, ErrUnreachable)
			}
		})
	}
}

func TestSilentPeerEndsWithTheContextOnARealSocket(t *testing.T) {
	await.NoLeaks(t)
	addr := peer(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	deadline, _ := ctx.Deadline()
	_, _, err := Client{Limits: Limits{Request: time.Hour}}.Request(ctx, addr, []byte("hi"))
	if early := time.Until(deadline); early > 0 {
		t.Errorf("ended %v before the deadline", early)
	}
	if !errors.Is(err, ErrSilent) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want %v", err, ErrSilent)
	}
}

func TestFullServerLetsGoOfWhoWaitedLongest(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{ConnectionsMax: 3, Request: time.Hour, Idle: time.Hour}, Handle: echo})
	hello := func(c net.Conn) {
		mustWrite(t, c, reqHello)
		mustRead(t, c, len(routerHello))
	}
	idle := dialRaw(t, s)
	hello(idle)
	half := dialRaw(t, s)
	hello(half)
	m := message("", "hi")
	mustWrite(t, half, m[:3])
	silent := dialRaw(t, s)
	await.True(t, "three are in", func() bool { return s.Stats().Accepted == 3 })
	// The first was the first to come, but it has asked since: it is the half request's turn.
	mustWrite(t, idle, m)
	mustRead(t, idle, len(m))
	await.True(t, "its request is over", func() bool { return s.Stats().Requests == 1 })
	next := dialRaw(t, s)
	mustEnd(t, half)
	hello(next)
	ask(t, s) // takes the place of the silent one, and leaves it
	mustEnd(t, silent)
	mustWrite(t, idle, m)
	mustRead(t, idle, len(m))
	await.True(t, "two are left", func() bool { return s.Stats().Open == 2 && s.Stats().Requests == 3 })
	if diff := cmp.Diff(Stats{Open: 2, Accepted: 5, Requests: 3, Evicted: 2}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestConnectionThatWasServedGivesWay(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{ConnectionsMax: 1, Idle: time.Hour}, Handle: echo})
	for i := range 3 {
		c := dialRaw(t, s)
		m := message("", "hi")
		mustWrite(t, c, reqHello, m)
		mustRead(t, c, len(routerHello)+len(m))
		await.True(t, "the request is over", func() bool { return s.Stats().Requests == uint64(2*i+1) })
		ask(t, s)
		mustEnd(t, c)
		await.True(t, "the other one, too", func() bool { return s.Stats().Open == 0 && s.Stats().Requests == uint64(2*i+2) })
	}
	if diff := cmp.Diff(Stats{Accepted: 6, Requests: 6, Evicted: 3}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestContextThatEndsWithTheReplyCostsTheConnectionOnly(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Handle: echo})
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	c, err := Client{Now: func() clock.Instant {
		if calls++; calls == 2 { // the reply's first byte is there, and all others of it with it
			cancel()
		}
		return 0
	}}.Dial(t.Context(), s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if reply, _, err := c.Request(ctx, []byte("hi")); err != nil || string(reply[0]) != "hi" {
		t.Fatalf("reply %q, error %v", reply, err)
	}
	if _, _, err := c.Request(t.Context(), []byte("hi")); !errors.Is(err, ErrClosed) {
		t.Errorf("error %v, want %v: the old deadline would end it", err, ErrClosed)
	}
}

func TestServerFullOfBusyRequestsRefuses(t *testing.T) {
	await.NoLeaks(t)
	const busy = 3
	started, release := make(chan struct{}), make(chan struct{})
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{ConnectionsMax: busy, Request: longest}, Handle: func(ctx context.Context, r [][]byte) (Reply, error) {
		started <- struct{}{}
		<-release
		return echo(ctx, r)
	}})
	var all sync.WaitGroup
	for range busy {
		all.Go(func() {
			if _, _, err := (Client{Limits: Limits{Request: longest}}).Request(t.Context(), s.Addr().String(), []byte("hi")); err != nil {
				t.Errorf("a request that was being answered was cut off: %v", err)
			}
		})
		<-started
	}
	if _, _, err := (Client{Limits: Limits{Request: longest}}).Request(t.Context(), s.Addr().String(), []byte("hi")); !errors.Is(err, ErrHungUp) {
		t.Errorf("error %v, want %v", err, ErrHungUp)
	}
	close(release)
	all.Wait()
	await.True(t, "all are over", func() bool { return s.Stats().Open == 0 })
	if diff := cmp.Diff(Stats{Accepted: busy + 1, Requests: busy, Refused: 1}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestCloseEndsConnectionsInEveryState(t *testing.T) {
	await.NoLeaks(t)
	started := make(chan struct{})
	s, err := Listen("127.0.0.1:0", Config{
		Limits: Limits{Request: time.Hour, Idle: time.Hour},
		Handle: func(ctx context.Context, _ [][]byte) (Reply, error) {
			close(started)
			<-ctx.Done()
			return Reply{}, ctx.Err()
		},
		Other: func(_ context.Context, c net.Conn) { io.Copy(io.Discard, c) },
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []net.Conn
	for _, says := range [][]byte{nil, reqHello[:20], reqHello, append(slices.Clone(reqHello), 1), append(slices.Clone(reqHello), message("", "hi")...), []byte("other")} {
		c := dialRaw(t, s)
		mustWrite(t, c, says)
		all = append(all, c)
	}
	<-started
	await.True(t, "all are in", func() bool { return s.Stats().Accepted == 6 && s.Stats().Others == 1 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range all {
		mustEnd(t, c)
	}
	if err := s.Close(); err != nil {
		t.Errorf("the second close: %v", err)
	}
}

func TestOtherProtocolsAreHandedOverOutsideTheLimit(t *testing.T) {
	await.NoLeaks(t)
	got := make(chan string)
	s := listen(t, "127.0.0.1:0", Config{
		Limits: Limits{ConnectionsMax: 1, Request: longest},
		Handle: echo,
		Other: func(ctx context.Context, c net.Conn) {
			b := make([]byte, 4)
			io.ReadFull(c, b)
			got <- string(b)
			io.Copy(io.Discard, c)
		},
	})
	wires := make([]net.Conn, 5)
	for i := range wires {
		wires[i] = dialRaw(t, s)
		mustWrite(t, wires[i], []byte("wire"))
		if g := <-got; g != "wire" {
			t.Fatalf("handed over with %q", g)
		}
	}
	ask(t, s)
	for _, w := range wires {
		mustWrite(t, w, []byte("still here"))
	}
	await.True(t, "only the wires are left", func() bool { return s.Stats().Open == 0 })
	if diff := cmp.Diff(Stats{Accepted: 6, Others: 5, Requests: 1}, s.Stats()); diff != "" {
		t.Errorf("stats (-want +got):\n%s", diff)
	}
}

func TestManyClientsAtOnceAreAllAnswered(t *testing.T) {
	await.NoLeaks(t)
	s := listen(t, "127.0.0.1:0", Config{Limits: Limits{Request: longest}, Handle: echo})
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for j := range 50 {
				want := fmt.Sprintf("request %d of %d", j, i)
				reply, _, err := Client{Limits: Limits{Request: longest}}.Request(t.Context(), s.Addr().String(), []byte(want))
				if err != nil || string(reply[0]) != want {
					t.Errorf("reply %q, error %v, want %q", reply, err, want)
					return
				}
			}
		})
	}
	all.Wait()
}
