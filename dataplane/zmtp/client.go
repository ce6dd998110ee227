package zmtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/kvlease/kvlease/dataplane/clock"
)

// Client asks ROUTER and REP sockets, as a REQ socket does. It keeps nothing between calls.
type Client struct {
	Limits Limits
	// Now reads the host's clock for Timing. Without it Timing stays zero.
	Now func() clock.Instant
}

// Timing bounds the instant at which the peer made its reply: after Sent, taken right before the request was written,
// and before Received, taken when the first byte of the reply was there, since a message is whole before ZeroMQ sends it.
// Connecting is no part of it.
type Timing struct{ Sent, Received clock.Instant }

// Conn is an open connection to one peer.
//
// Threads: one call at a time; a context ends it.
type Conn struct {
	client Client
	c      *conn
	addr   string
	broken bool
}

// Request connects to addr (host:port, IPv6 in brackets), asks once and closes. The whole of it ends with ctx or after
// Limits.Request, whichever is first. The reply belongs to the caller.
func (cl Client) Request(ctx context.Context, addr string, frames ...[]byte) ([][]byte, Timing, error) {
	ctx, cancel := context.WithTimeout(ctx, cl.Limits.orDefaults().Request)
	defer cancel()
	conn, err := cl.Dial(ctx, addr)
	if err != nil {
		return nil, Timing{}, err
	}
	defer conn.Close()
	return conn.Request(ctx, frames...)
}

// Dial connects and exchanges greetings, within Limits.Request.
func (cl Client) Dial(ctx context.Context, addr string) (*Conn, error) {
	cl.Limits = cl.Limits.orDefaults()
	ctx, cancel := context.WithTimeout(ctx, cl.Limits.Request)
	defer cancel()
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, connectError(ctx, addr, err)
	}
	return cl.start(ctx, addr, nc)
}

// start makes a Conn of a connected socket, which it closes if it fails.
func (cl Client) start(ctx context.Context, addr string, nc net.Conn) (*Conn, error) {
	c := &Conn{client: cl, c: newConn(nc, cl.Limits, cl.Limits.ReplyBytesMax), addr: addr}
	err := c.until(ctx, func() (string, error) { return c.c.hello(clientFirst, socketREQ, socketROUTER, socketREP) })
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Request asks on the open connection, within ctx and Limits.Request. After an error the connection is closed: a reply
// that came late would be taken for that of the next request. The reply belongs to the caller.
func (c *Conn) Request(ctx context.Context, frames ...[]byte) (reply [][]byte, timing Timing, err error) {
	limits := c.client.Limits
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	switch {
	case c.broken:
		return nil, Timing{}, fmt.Errorf("zmtp %s: request: %w", c.addr, ErrClosed)
	case len(frames) == 0:
		return nil, Timing{}, fmt.Errorf("zmtp %s: request without frames: %w", c.addr, ErrMalformed)
	case size > limits.RequestBytesMax || len(frames) >= limits.FramesMax:
		return nil, Timing{}, fmt.Errorf("zmtp %s: request of %d bytes in %d frames: %w", c.addr, size, len(frames), ErrTooLong)
	}
	ctx, cancel := context.WithTimeout(ctx, limits.Request)
	defer cancel()
	c.c.messageBuf = nil // the last reply is the caller's
	err = c.until(ctx, func() (string, error) {
		if err := c.c.send([][]byte{nil}, frames, nil, c.mark(&timing.Sent)); err != nil {
			return "request", err
		}
		c.c.arrived = c.mark(&timing.Received)
		message, err := c.c.receive()
		if err != nil {
			return "reply", err
		}
		if len(message) < 2 || len(message[0]) != 0 {
			return "reply", fmt.Errorf("%w: %d frames without an envelope", ErrMalformed, len(message))
		}
		reply = message[1:]
		return "", nil
	})
	if err != nil {
		return nil, Timing{}, err
	}
	return reply, timing, nil
}

// Close closes the connection.
func (c *Conn) Close() error {
	if c.broken {
		return nil
	}
	c.broken = true
	return c.c.Close()
}

func (c *Conn) mark(at *clock.Instant) func() {
	return func() {
		if c.client.Now != nil {
			*at = c.client.Now()
		}
	}
}

// until runs talk under ctx: one deadline over all its reads and writes.
func (c *Conn) until(ctx context.Context, talk func() (stage string, err error)) error {
	stop := context.AfterFunc(ctx, func() { c.c.SetDeadline(past) })
	stage, err := talk()
	if err != nil {
		err = talkError(ctx, c.addr, stage, err)
	}
	if !stop() || err != nil { // a deadline that is in the past, or soon will be, would end the next request
		c.Close()
	}
	return err
}

func connectError(ctx context.Context, addr string, err error) error {
	if cause := ctx.Err(); cause != nil {
		return fmt.Errorf("zmtp %s: connect: %w", addr, contextError(cause))
	}
	if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() { // the socket's timer was before the context's
		return fmt.Errorf("zmtp %s: connect: %w", addr, contextError(context.DeadlineExceeded))
	}
	return fmt.Errorf("zmtp %s: connect: %w: %w", addr, ErrUnreachable, err)
}

func talkError(ctx context.Context, addr, stage string, err error) error {
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		if cause := ctx.Err(); cause != nil {
			err = contextError(cause)
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.ErrClosedPipe):
		err = ErrHungUp
	case isOp:
		err = fmt.Errorf("%w: %w", ErrHungUp, op.Err)
	}
	return fmt.Errorf("zmtp %s: %s: %w", addr, stage, err)
}

// contextError keeps what ctx says, so that callers can tell their own cancellation from a peer's silence.
func contextError(cause error) error {
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", ErrSilent, cause)
	}
	return cause
}
