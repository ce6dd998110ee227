package zmtp

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"time"
)

// conn is one connection of either role. One goroutine owns it.
type conn struct {
	net.Conn
	r        *bufio.Reader
	limits   Limits
	bytesMax int // of a message that we receive

	// begin, if set, is called before a frame of which a byte has to be waited for (known false), and with its flags as
	// soon as that byte is there. It moves the deadlines of a server.
	begin func(known bool, flags byte)
	// arrived, if set, is called when the first byte of a message is there.
	arrived func()

	commands   int // since the last message
	commandBuf []byte
	started    bool   // a byte of the message that receive waits for is there
	messageBuf []byte // of the last message, reused
	ends       []int  // where in messageBuf each of its frames ends
}

func newConn(c net.Conn, limits Limits, bytesMax int) *conn {
	return &conn{Conn: c, r: bufio.NewReader(c), limits: limits, bytesMax: bytesMax}
}

// hello exchanges greetings and READY. before is how much of ours goes out before the peer's greeting is read.
func (c *conn) hello(before int, socket string, welcome ...string) (stage string, err error) {
	ours := appendHello(nil, socket)
	if _, err := c.Write(ours[:before]); err != nil {
		return "greeting", err
	}
	if err := c.readGreeting(); err != nil {
		return "greeting", err
	}
	if _, err := c.Write(ours[before:]); err != nil {
		return "greeting", err
	}
	if err := c.readReady(welcome...); err != nil {
		return "ready", err
	}
	c.commands = 0
	return "", nil
}

// receive reads one message, and answers the commands before and within it: libzmq may put a PING between two frames.
// The frames are good until the next call. io.EOF means that the peer closed between two messages.
func (c *conn) receive() ([][]byte, error) {
	c.started, c.messageBuf, c.ends = false, c.messageBuf[:0], c.ends[:0]
	for more := true; more; {
		if err := c.await(); err != nil {
			return nil, err
		}
		flags, size, err := c.head()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.answer(size); err != nil {
				return nil, err
			}
			continue
		}
		if left := c.bytesMax - len(c.messageBuf); size > uint64(left) {
			return nil, fmt.Errorf("%w: a frame of %d bytes, %d of %d left for the message", ErrTooLong, size, left, c.bytesMax)
		}
		if len(c.ends) == c.limits.FramesMax {
			return nil, fmt.Errorf("%w: more than %d frames", ErrTooLong, c.limits.FramesMax)
		}
		if c.messageBuf, err = c.appendBody(c.messageBuf, int(size)); err != nil {
			return nil, err
		}
		c.ends = append(c.ends, len(c.messageBuf))
		more = flags&flagMore != 0
	}
	c.commands = 0
	frames, at := make([][]byte, len(c.ends)), 0
	for i, end := range c.ends {
		frames[i], at = c.messageBuf[at:end:end], end
	}
	return frames, nil
}

// await waits for the first byte of a frame before a message has begun.
func (c *conn) await() error {
	if c.started {
		return nil // head waits, and an end of the connection is a torn message
	}
	if c.begin != nil {
		c.begin(false, 0)
	}
	first, err := c.r.Peek(1)
	if err != nil {
		return err
	}
	if c.begin != nil {
		c.begin(true, first[0])
	}
	if first[0]&flagCommand == 0 {
		c.started = true
		if c.arrived != nil {
			c.arrived()
		}
	}
	return nil
}

// answer handles a command after READY. Those that nobody knows are none of our business.
func (c *conn) answer(size uint64) error {
	cmd, err := c.command(size)
	if err != nil {
		return err
	}
	switch cmd.name {
	case "ERROR":
		return cmd.peerError()
	case "PING":
		body, err := cmd.pong()
		if err != nil {
			return err
		}
		_, err = c.Write(append(appendHead(nil, flagCommand, len(body)), body...))
		return err
	}
	return nil
}

// send writes one message: envelope, frames, and last the frame that stamp makes, if there is one, right before the
// bytes go out. before, if set, is called there, too.
func (c *conn) send(envelope, frames [][]byte, stamp func(dst []byte) []byte, before func()) error {
	all := slices.Concat(envelope, frames)
	heads := make([]byte, 0, headLenMax*(len(all)+1)) // never moves: out keeps slices of it
	out := make(net.Buffers, 0, 2*(len(all)+1))
	add := func(body []byte, flags byte) {
		at := len(heads)
		heads = appendHead(heads, flags, len(body))
		out = append(out, heads[at:])
		if len(body) > 0 {
			out = append(out, body)
		}
	}
	for i, f := range all {
		flags := byte(flagMore)
		if i == len(all)-1 && stamp == nil {
			flags = 0
		}
		add(f, flags)
	}
	if stamp != nil {
		add(stamp(nil), 0)
	}
	if before != nil {
		before()
	}
	_, err := out.WriteTo(c.Conn)
	return err
}

// splitEnvelope parts a message at its first empty frame. What stands before it (a proxy's addresses, a REQ's number)
// goes back with the reply as it came.
func splitEnvelope(message [][]byte) (envelope, body [][]byte, err error) {
	at := slices.IndexFunc(message, func(f []byte) bool { return len(f) == 0 })
	if at < 0 || at == len(message)-1 {
		return nil, nil, fmt.Errorf("%w: %d frames without an empty one before the body", ErrMalformed, len(message))
	}
	return message[:at+1], message[at+1:], nil
}

// past is a deadline that ends every read and write at once.
var past = time.Unix(1, 0)
