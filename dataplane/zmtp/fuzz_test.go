package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"slices"
	"testing"
	"time"
)

// scripted is a connection whose peer says in and hears nothing.
type scripted struct {
	net.Conn
	in      io.Reader
	written int
}

func (s *scripted) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s *scripted) Write(b []byte) (int, error) { s.written += len(b); return len(b), nil }
func (s *scripted) SetDeadline(time.Time) error { return nil }

// known are the errors that bytes alone can lead to.
var known = []error{io.EOF, io.ErrUnexpectedEOF, ErrNotZMTP, ErrMechanism, ErrSocketType, ErrTooLong, ErrMalformed, ErrPeer}

func isKnown(err error) bool {
	return slices.ContainsFunc(known, func(k error) bool { return errors.Is(err, k) })
}

func seeds(f *testing.F, hello []byte) {
	f.Add([]byte(nil))
	f.Add(slices.Concat(hello, message("", "hi"), message("a", "", "b", "c")))
	f.Add(slices.Concat(hello, commandBytes("PING", "\x00\x0ahi"), message("", "hi")))
	f.Add(slices.Concat(hello, killer))
	for _, tc := range badOpenings {
		f.Add(tc.says)
	}
	for _, tc := range badTalk {
		f.Add(slices.Concat(hello, tc.says))
	}
}

// FuzzConnection reads a whole connection, and holds each message against the limits and against its own bytes.
func FuzzConnection(f *testing.F) {
	seeds(f, reqHello)
	f.Fuzz(func(t *testing.T, in []byte) {
		limits := Limits{RequestBytesMax: 512, FramesMax: 4, CommandBytesMax: 128, CommandsMax: 4}.orDefaults()
		s := &scripted{in: bytes.NewReader(in)}
		c := newConn(s, limits, limits.RequestBytesMax)
		if _, err := c.hello(serverFirst, socketROUTER, socketREQ, socketDEALER, socketROUTER); err != nil {
			if !isKnown(err) {
				t.Fatalf("hello: %v", err)
			}
			return
		}
		for {
			c.messageBuf = nil // each message stays what it was
			m, err := c.receive()
			if err != nil {
				if m != nil || !isKnown(err) {
					t.Fatalf("receive: %q, %v", m, err)
				}
				break
			}
			size := 0
			for _, frame := range m {
				size += len(frame)
			}
			if len(m) == 0 || len(m) > limits.FramesMax || size > limits.RequestBytesMax {
				t.Fatalf("%d frames of %d bytes", len(m), size)
			}
			again := &bytes.Buffer{}
			if err := newConn(&pair{Writer: again}, limits, 0).send(nil, m, nil, nil); err != nil {
				t.Fatal(err)
			}
			back := newConn(&scripted{in: again}, limits, limits.RequestBytesMax)
			if got, err := back.receive(); err != nil || !slices.EqualFunc(got, m, bytes.Equal) {
				t.Fatalf("%q came back as %q, %v", m, got, err)
			}
			if env, body, err := splitEnvelope(m); err == nil && (len(env)+len(body) != len(m) || len(env[len(env)-1]) != 0 || len(body) == 0) {
				t.Fatalf("envelope %q of %q", env, m)
			}
		}
		if cap(c.commandBuf) > growBytes+limits.CommandBytesMax || cap(c.messageBuf) > 2*growBytes {
			t.Fatalf("%d and %d bytes of memory", cap(c.commandBuf), cap(c.messageBuf))
		}
		if s.written > len(routerHello)+len(in) { // a PONG is never longer than its PING
			t.Fatalf("%d bytes written for %d", s.written, len(in))
		}
	})
}

// pair is a connection that is only written to.
type pair struct {
	net.Conn
	io.Writer
}

func (p *pair) Write(b []byte) (int, error) { return p.Writer.Write(b) }

// FuzzReply is the same for the client's end.
func FuzzReply(f *testing.F) {
	seeds(f, routerHello)
	f.Fuzz(func(t *testing.T, in []byte) {
		cl := Client{Limits: Limits{ReplyBytesMax: 512, FramesMax: 4, CommandBytesMax: 128, CommandsMax: 4}.orDefaults()}
		c, err := cl.start(t.Context(), "peer:1", &closing{scripted{in: bytes.NewReader(in)}})
		if err != nil {
			return
		}
		for {
			reply, _, err := c.Request(t.Context(), []byte("hi"))
			if err != nil {
				if reply != nil || !c.broken {
					t.Fatalf("reply %q after %v, closed: %v", reply, err, c.broken)
				}
				return
			}
			if len(reply) == 0 || len(reply) >= cl.Limits.FramesMax {
				t.Fatalf("reply of %d frames", len(reply))
			}
		}
	})
}

type closing struct{ scripted }

func (c *closing) Close() error { return nil }
