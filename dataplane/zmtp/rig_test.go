package zmtp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// longest bounds every wait of a test for real sockets and processes.
const longest = 60 * time.Second

// ours and theirs are what a REQ and a ROUTER say first; libzmq's greeting differs in nothing that is looked at.
var (
	reqHello    = appendHello(nil, socketREQ)
	routerHello = appendHello(nil, socketROUTER)
	// killer is the head of a frame of 2^62 bytes.
	killer = []byte{flagLong, 0x40, 0, 0, 0, 0, 0, 0, 0}
)

// message makes the bytes of one message.
func message(frames ...string) (out []byte) {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		out = append(appendHead(out, flags, len(f)), f...)
	}
	return out
}

// commandBytes makes the bytes of one command frame.
func commandBytes(name, data string) []byte {
	return append(append(appendHead(nil, flagCommand, 1+len(name)+len(data)), appendName(nil, name)...), data...)
}

func echo(_ context.Context, request [][]byte) (Reply, error) { return Reply{Frames: request}, nil }

// listen starts a server that must leave nothing behind.
func listen(t testing.TB, addr string, cfg Config) *Server {
	t.Helper()
	s, err := Listen(addr, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if n := s.Stats().Open; n != 0 {
			t.Errorf("%d connections are open after Close", n)
		}
	})
	return s
}

// dialRaw connects without speaking. Everything on the connection ends within longest.
func dialRaw(t testing.TB, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(longest))
	t.Cleanup(func() { c.Close() })
	return c
}

// mustWrite sends what a peer would.
func mustWrite(t testing.TB, c io.Writer, parts ...[]byte) {
	t.Helper()
	if _, err := c.Write(slices.Concat(parts...)); err != nil {
		t.Fatal(err)
	}
}

// mustRead reads exactly n bytes.
func mustRead(t testing.TB, c io.Reader, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// mustEnd reads until the peer has closed.
func mustEnd(t testing.TB, c io.Reader) {
	t.Helper()
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection was not closed")
	}
}

// ask is one request that must be answered with itself.
func ask(t testing.TB, s *Server) {
	t.Helper()
	reply, _, err := Client{}.Request(t.Context(), s.Addr().String(), []byte("are you there"))
	if err != nil {
		t.Fatal(err)
	}
	if len(reply) != 1 || string(reply[0]) != "are you there" {
		t.Fatalf("reply %q", reply)
	}
}

// pipeListener accepts connections that are not of a network, so that they can live in a bubble of its own time.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
	fail   func() error // if set, an accept fails with what it says, if anything
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	if l.fail != nil {
		if err := l.fail(); err != nil {
			return nil, err
		}
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (l *pipeListener) dial() net.Conn {
	near, far := net.Pipe()
	l.conns <- far
	return near
}
