package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// Reply is what a handler answers.
type Reply struct {
	Frames [][]byte
	// Stamp, if set, makes one more frame, the last one, right before the bytes go out: the place for a clock.
	Stamp func(dst []byte) []byte
}

// Config says what a server does.
type Config struct {
	Limits Limits
	// Handle answers one request. It runs on the connection's goroutine, ctx ends with the request's deadline or the
	// server. request is good until Handle returns. An error drops the connection without an answer: libzmq connects
	// anew, so no peer is worse off. It says that the request means nothing, unless it wraps ErrDeclined. A panic does the same,
	// counted.
	Handle func(ctx context.Context, request [][]byte) (Reply, error)
	// Other, if set, gets each connection whose first byte, still to be read, cannot be ZMTP's (0xff). It leaves the
	// limit on connections; its number is Other's to bound. The connection is closed when Other returns, and when the
	// server closes, as ctx tells.
	Other func(ctx context.Context, c net.Conn)
	// Report, if set, hears why a connection was ended, once for each, on its goroutine. A hostile peer can make it
	// hear something thousands of times a second.
	Report func(error)
}

// Server is a ROUTER socket that answers each request on the connection it came from.
type Server struct {
	listener net.Listener
	cfg      Config
	slots    slots
	counters counters
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup
}

// Listen opens addr (host:port, IPv6 in brackets, port 0 for any) and serves it until Close.
func Listen(addr string, cfg Config) (*Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("zmtp listen: %w", err)
	}
	return serve(l, cfg), nil
}

func serve(l net.Listener, cfg Config) *Server {
	cfg.Limits = cfg.Limits.orDefaults()
	s := &Server{listener: l, cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.slots.max = cfg.Limits.ConnectionsMax
	s.running.Go(s.accept)
	return s
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Close ends the listener and every connection, and returns when all goroutines have ended; a handler that does not heed
// its context keeps it waiting.
func (s *Server) Close() error {
	s.cancel()
	err := s.listener.Close()
	s.slots.close()
	s.running.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Waits between failed accepts, which mostly lack descriptors and would fail at once again.
const (
	acceptWaitMin = 5 * time.Millisecond
	acceptWaitMax = time.Second
)

// accept only accepts: whatever needs bytes of a peer is done on the connection's own goroutine.
func (s *Server) accept() {
	wait := acceptWaitMin
	for {
		c, err := s.listener.Accept()
		if s.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil {
			s.counters.acceptErrors.Add(1)
			select {
			case <-s.ctx.Done():
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, acceptWaitMax)
			continue
		}
		wait = acceptWaitMin
		s.counters.accepted.Add(1)
		slot, evicted := s.slots.enter(c, time.Now())
		if evicted {
			s.counters.evicted.Add(1)
		}
		if slot == nil {
			s.counters.refused.Add(1)
			c.Close()
			continue
		}
		s.running.Go(func() { s.run(slot) })
	}
}

// run owns one connection, from its first byte on.
func (s *Server) run(slot *slot) {
	defer s.slots.leave(slot)
	defer func() {
		if p := recover(); p != nil {
			s.counters.panics.Add(1)
			s.report(slot, "panic", fmt.Errorf("%v", p)) // has a recover of its own
		}
	}()
	c := newConn(slot.c, s.cfg.Limits, s.cfg.Limits.RequestBytesMax)
	c.SetDeadline(time.Now().Add(s.cfg.Limits.Request))
	first, err := c.r.Peek(1) // we speak second, so that another protocol can share the port
	if err == nil && first[0] != 0xff && s.cfg.Other != nil {
		c.SetDeadline(time.Time{})
		if s.slots.handOver(slot) {
			s.counters.others.Add(1)
			s.cfg.Other(s.ctx, otherConn{c.Conn, c.r})
		}
		return
	}
	stage := "greeting"
	if err == nil {
		stage, err = c.hello(serverFirst, socketROUTER, socketREQ, socketDEALER, socketROUTER)
	}
	for err == nil {
		stage, err = s.once(slot, c)
	}
	s.ended(slot, stage, err)
}

// once answers one request.
func (s *Server) once(slot *slot, c *conn) (stage string, err error) {
	idleUntil := time.Now().Add(s.cfg.Limits.Idle)
	until := idleUntil
	// A message has Request from its first byte. A command has it, too, but never past the end of idleness, so that
	// neither a slow one nor many keep a connection.
	c.begin = func(known bool, flags byte) {
		until = idleUntil
		if known {
			until = time.Now().Add(s.cfg.Limits.Request)
			if flags&flagCommand != 0 && until.After(idleUntil) {
				until = idleUntil
			}
		}
		c.SetDeadline(until)
	}
	message, err := c.receive()
	if err != nil {
		if !c.started {
			return "idle", err
		}
		return "request", err
	}
	envelope, body, err := splitEnvelope(message)
	if err != nil {
		return "request", err
	}
	if !s.slots.busy(slot) {
		return "request", net.ErrClosed
	}
	ctx, cancel := context.WithDeadline(s.ctx, until)
	defer cancel()
	reply, err := s.cfg.Handle(ctx, body)
	if err != nil {
		if !errors.Is(err, ErrDeclined) {
			err = fmt.Errorf("%w: %w", ErrMalformed, err)
		}
		return "handler", err
	}
	if len(reply.Frames) == 0 && reply.Stamp == nil {
		return "handler", errEmpty
	}
	if err := c.send(envelope, reply.Frames, reply.Stamp, nil); err != nil {
		return "reply", err
	}
	s.slots.wait(slot, time.Now())
	s.counters.requests.Add(1)
	return "", nil
}

// errEmpty is a fault of the handler, whatever the peer has sent.
var errEmpty = errors.New("a reply without frames")

// ended counts why a connection is over.
func (s *Server) ended(slot *slot, stage string, err error) {
	switch {
	case s.slots.gone(slot): // evicted and counted, or the server closes
		return
	case errors.Is(err, io.EOF): // between two requests: as it should be
		return
	case errors.Is(err, os.ErrDeadlineExceeded):
		if stage == "idle" {
			s.counters.idled.Add(1)
			return
		}
		s.counters.timeouts.Add(1)
		err = fmt.Errorf("%w: %w", ErrSilent, err)
	case errors.Is(err, ErrPeer):
		s.counters.peerErrors.Add(1)
	case errors.Is(err, ErrDeclined):
		s.counters.declined.Add(1)
	case errors.Is(err, errEmpty):
		s.counters.panics.Add(1)
	case errors.Is(err, ErrTooLong), errors.Is(err, ErrMalformed), errors.Is(err, ErrNotZMTP),
		errors.Is(err, ErrMechanism), errors.Is(err, ErrSocketType):
		s.counters.malformed.Add(1)
	default:
		s.counters.torn.Add(1)
		err = fmt.Errorf("%w: %w", ErrHungUp, err)
	}
	s.report(slot, stage, err)
}

func (s *Server) report(slot *slot, stage string, err error) {
	defer func() {
		if recover() != nil {
			s.counters.panics.Add(1)
		}
	}()
	if s.cfg.Report != nil {
		s.cfg.Report(fmt.Errorf("zmtp peer %s: %s: %w", slot.c.RemoteAddr(), stage, err))
	}
}

// otherConn gives the bytes that were looked at back.
type otherConn struct {
	net.Conn
	r io.Reader
}

func (c otherConn) Read(b []byte) (int, error) { return c.r.Read(b) }

// NetConn is the connection below, for its options.
func (c otherConn) NetConn() net.Conn { return c.Conn }
