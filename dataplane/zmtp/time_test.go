package zmtp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kvlease/kvlease/dataplane/clock"
)

// The tests here run in a bubble with its own time, over pipes: all spans are exact.

// trickle writes one byte a second until the other end has closed, and tells after what time from now that was.
func trickle(c net.Conn, data []byte) time.Duration {
	start, took := time.Now(), time.Duration(0)
	var both sync.WaitGroup
	both.Go(func() {
		io.Copy(io.Discard, c)
		took = time.Since(start)
	})
	both.Go(func() { writeSlowly(c, data) })
	both.Wait()
	return took
}

func writeSlowly(c net.Conn, data []byte) {
	for _, b := range data {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(time.Second)
	}
}

func TestServerTime(t *testing.T) {
	const request, idle = 5 * time.Second, time.Minute
	long := message("", strings.Repeat("x", 200))
	for _, tc := range []struct {
		name string
		talk func(t *testing.T, c net.Conn) time.Duration
		want time.Duration
		then Stats
	}{
		{"silence from the start holds a place for one request's time", func(_ *testing.T, c net.Conn) time.Duration {
			return trickle(c, nil)
		}, request, Stats{Timeouts: 1}},
		{"a greeting of a byte a second ends at the same time", func(_ *testing.T, c net.Conn) time.Duration {
			return trickle(c, reqHello)
		}, request, Stats{Timeouts: 1}},
		{"a request of a byte a second ends a request's time after its first byte", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			time.Sleep(idle - time.Second)
			return trickle(c, long)
		}, request, Stats{Timeouts: 1}},
		{"half a request ends then, too", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			return trickle(c, []byte{flagMore})
		}, request, Stats{Timeouts: 1}},
		{"an idle connection ends after the idle time, which is no fault", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			return trickle(c, nil)
		}, idle, Stats{Idled: 1}},
		{"idleness counts anew from each reply", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			time.Sleep(idle - time.Second)
			exchange(t, c)
			return trickle(c, nil)
		}, idle, Stats{Idled: 1, Requests: 1}},
		{"commands make nobody less idle", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			return trickle(c, bytes.Repeat(commandBytes("HI", ""), 20)) // one of five bytes in five seconds
		}, idle, Stats{Idled: 1}},
		{"a command of a byte a second ends with a request's time", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			return trickle(c, commandBytes("SUBSCRIBE", strings.Repeat("x", 100)))
		}, request, Stats{Idled: 1}},
		{"a command that began late ends with the idle time", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			time.Sleep(idle - 2*time.Second)
			return trickle(c, commandBytes("SUBSCRIBE", "x"))
		}, 2 * time.Second, Stats{Idled: 1}},
		{"a reply that is not read ends with the request", func(t *testing.T, c net.Conn) time.Duration {
			greet(t, c)
			start := time.Now()
			mustWrite(t, c, long)
			synctest.Wait()
			time.Sleep(request + time.Second) // and now it is read, if it still were there
			mustEnd(t, c)
			return time.Since(start) - time.Second
		}, request, Stats{Timeouts: 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipeListener()
				s := serve(l, Config{Limits: Limits{Request: request, Idle: idle}, Handle: echo})
				c := l.dial()
				defer c.Close()
				if took := tc.talk(t, c); took != tc.want {
					t.Errorf("ended after %v, want %v", took, tc.want)
				}
				synctest.Wait()
				tc.then.Accepted = 1
				if diff := cmp.Diff(tc.then, s.Stats()); diff != "" {
					t.Errorf("stats (-want +got):\n%s", diff)
				}
				s.Close()
			})
		})
	}
}

// greet is a REQ's hello over a pipe.
func greet(t *testing.T, c net.Conn) {
	t.Helper()
	mustWrite(t, c, reqHello)
	if got := mustRead(t, c, len(routerHello)); !bytes.Equal(got, routerHello) {
		t.Fatalf("hello % x", got)
	}
}

// exchange is one request that is answered with itself.
func exchange(t *testing.T, c net.Conn) {
	t.Helper()
	m := message("", "hi")
	mustWrite(t, c, m)
	if got := mustRead(t, c, len(m)); !bytes.Equal(got, m) {
		t.Fatalf("reply % x", got)
	}
}

func TestHandlersAreToldTheRequestsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, left := newPipeListener(), time.Duration(0)
		s := serve(l, Config{Handle: func(ctx context.Context, request [][]byte) (Reply, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return Reply{Frames: request}, nil
		}})
		c := l.dial()
		greet(t, c)
		m := message("", "hi")
		mustWrite(t, c, m[:1])
		time.Sleep(2 * time.Second)
		mustWrite(t, c, m[1:])
		mustRead(t, c, len(m))
		if want := 3 * time.Second; left != want {
			t.Errorf("the handler had %v, want %v", left, want)
		}
		c.Close()
		s.Close()
	})
}

func TestConnectionsHandedOverHaveNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, heard := newPipeListener(), make(chan string, 1)
		s := serve(l, Config{Handle: echo, Other: func(_ context.Context, c net.Conn) {
			all, _ := io.ReadAll(c)
			heard <- string(all)
		}})
		c := l.dial()
		mustWrite(t, c, []byte("wire"))
		time.Sleep(24 * time.Hour)
		mustWrite(t, c, []byte(" still up"))
		c.Close()
		if got := <-heard; got != "wire still up" {
			t.Errorf("heard %q", got)
		}
		s.Close()
	})
}

func TestFailedAcceptsAreRetriedWithPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		var mended atomic.Bool
		l.fail = func() error {
			if !mended.Load() {
				return errors.New("too many open files")
			}
			return nil
		}
		s := serve(l, Config{Handle: echo})
		time.Sleep(10 * time.Second)
		if n := s.Stats().AcceptErrors; n < 10 || n > 20 {
			t.Errorf("%d accepts in ten seconds, want between 10 and 20", n)
		}
		mended.Store(true)
		c := l.dial()
		greet(t, c)
		exchange(t, c)
		c.Close()
		synctest.Wait() // the next accept waits already
		mended.Store(false)
		before := s.Stats().AcceptErrors
		c = l.dial() // and lets this one in
		time.Sleep(100 * time.Millisecond)
		if n := s.Stats().AcceptErrors - before; n < 4 || n > 6 {
			t.Errorf("%d accepts in 100 ms after one that went well, want about 5: patience begins anew", n)
		}
		c.Close()
		s.Close()
	})
}

func TestClosingDoesNotWaitOutAFailedAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipeListener()
		l.fail = func() error { return errors.New("too many open files") }
		s := serve(l, Config{Handle: echo})
		time.Sleep(time.Hour + time.Millisecond)
		start := time.Now()
		s.Close()
		if took := time.Since(start); took != 0 {
			t.Errorf("close took %v", took)
		}
	})
}

func TestClientEndsExactlyWithItsContext(t *testing.T) {
	reply := message("", "payload", "stamp")
	for _, tc := range []struct {
		name  string
		says  []byte
		slow  []byte // a byte a second
		stage string
	}{
		{name: "a peer that says nothing", stage: "greeting"},
		{name: "a peer that says half a greeting", says: routerHello[:12], stage: "greeting"},
		{name: "a peer that never gets ready", says: routerHello[:greetingLen], stage: "ready"},
		{name: "a peer that does not reply", says: routerHello, stage: "reply"},
		{name: "a peer that replies by half", says: append(slices.Clone(routerHello), reply[:5]...), stage: "reply"},
		{name: "a peer that greets a byte a second", slow: routerHello, stage: "greeting"},
		{name: "a peer that replies a byte a second", says: routerHello, slow: reply, stage: "reply"},
		{name: "a peer that only sends commands", says: routerHello, slow: bytes.Repeat(commandBytes("HI", ""), 9), stage: "reply"},
	} {
		const span = 10*time.Second + time.Millisecond
		for _, end := range []struct {
			name    string
			ctx     func(context.Context) (context.Context, context.CancelFunc)
			limits  Limits
			is, not error
		}{
			{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, span)
			}, Limits{Request: time.Hour}, ErrSilent, context.Canceled},
			{"limit", func(ctx context.Context) (context.Context, context.CancelFunc) {
				return ctx, func() {}
			}, Limits{Request: span}, ErrSilent, context.Canceled},
			{"cancel", func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(span, cancel)
				return ctx, cancel
			}, Limits{Request: time.Hour}, context.Canceled, ErrSilent},
		} {
			t.Run(tc.name+", "+end.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					near, far := net.Pipe()
					var peer sync.WaitGroup
					defer peer.Wait()
					peer.Go(func() { io.Copy(io.Discard, far) })
					peer.Go(func() {
						far.Write(tc.says)
						writeSlowly(far, tc.slow)
					})
					ctx, cancel := end.ctx(t.Context())
					defer cancel()
					start := time.Now()
					cl := Client{Limits: end.limits.orDefaults()}
					// As Request does: one limit over both.
					ctx, stop := context.WithTimeout(ctx, cl.Limits.Request)
					defer stop()
					c, err := cl.start(ctx, "peer:1", near)
					if err == nil {
						_, _, err = c.Request(ctx, []byte("hi"))
					}
					if took := time.Since(start); took != span {
						t.Errorf("ended after %v, want %v", took, span)
					}
					if !errors.Is(err, end.is) || errors.Is(err, end.not) {
						t.Errorf("error %v, want %v", err, end.is)
					}
					if want := "zmtp peer:1: " + tc.stage + ": "; !strings.HasPrefix(err.Error(), want) {
						t.Errorf("error %q, want prefix %q", err, want)
					}
					if _, err := near.Write(nil); !errors.Is(err, io.ErrClosedPipe) {
						t.Error("the connection is still open")
					}
				})
			})
		}
	}
}

func TestTimingLeavesOutConnectingAndTheLengthOfTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		near, far := net.Pipe()
		go func() {
			r := message("", strings.Repeat("x", 100))
			io.ReadFull(far, make([]byte, clientFirst))
			time.Sleep(time.Second)
			far.Write(routerHello)
			io.ReadFull(far, make([]byte, len(reqHello)-clientFirst))
			io.ReadFull(far, make([]byte, len(message("", "hi"))))
			time.Sleep(2 * time.Second)
			far.Write(append(commandBytes("HI", ""), r[:1]...))
			time.Sleep(time.Second)
			far.Write(r[1:])
		}()
		cl := Client{Now: func() clock.Instant { return clock.Instant(time.Since(start)) }}
		cl.Limits = cl.Limits.orDefaults()
		c, err := cl.start(t.Context(), "peer:1", near)
		if err != nil {
			t.Fatal(err)
		}
		_, timing, err := c.Request(t.Context(), []byte("hi"))
		if err != nil {
			t.Fatal(err)
		}
		want := Timing{Sent: clock.Instant(time.Second), Received: clock.Instant(3 * time.Second)}
		if timing != want {
			t.Errorf("timing %v, want %v", timing, want)
		}
		c.Close()
	})
}
