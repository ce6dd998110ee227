package zmtp

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// The greeting: signature (ff, 8 bytes of any kind, 7f), version, mechanism padded with zeros, as-server, filler.
const (
	greetingLen  = 64
	signatureLen = 10
	majorAt      = 10
	mechanismAt  = 12
	mechanismLen = 20
)

// How much of the hello goes out before the peer's greeting is read. libzmq says its mechanism when it has heard our
// version, and closes without a word when it has heard another mechanism than its own: so a client stops after the
// version and can tell why it is not welcome. A server must not stop there, too, or two of us would wait for each other.
const (
	clientFirst = mechanismAt
	serverFirst = greetingLen
)

const (
	socketREQ    = "REQ"
	socketREP    = "REP"
	socketROUTER = "ROUTER"
	socketDEALER = "DEALER"
)

// appendHello makes what we say first: the greeting and, since NULL has nothing to agree on, READY at once with it.
func appendHello(dst []byte, socket string) []byte {
	g := [greetingLen]byte{0: 0xff, 9: 0x7f, majorAt: 3, majorAt + 1: 1}
	copy(g[mechanismAt:], "NULL")
	body := appendName(nil, "READY")
	body = appendProperty(body, "Socket-Type", socket)
	body = appendProperty(body, "Identity", "")
	return append(appendHead(append(dst, g[:]...), flagCommand, len(body)), body...)
}

// readGreeting looks at each part as it comes, so that a peer of another kind is told by its first bytes and not by a
// deadline.
func (c *conn) readGreeting() error {
	var g [greetingLen]byte
	for _, part := range []struct{ from, to int }{{0, 1}, {1, signatureLen}, {signatureLen, mechanismAt}, {mechanismAt, greetingLen}} {
		if err := c.full(g[part.from:part.to]); err != nil {
			return err
		}
		switch {
		case g[0] != 0xff || part.to == signatureLen && g[9] != 0x7f:
			rest, _ := c.r.Peek(min(c.r.Buffered(), 32))
			return fmt.Errorf("%w: it says %q", ErrNotZMTP, append(slices.Clone(g[:part.to]), rest...))
		case part.to == mechanismAt && g[majorAt] < 3:
			return fmt.Errorf("%w: version %d", ErrNotZMTP, g[majorAt])
		}
	}
	mechanism := g[mechanismAt : mechanismAt+mechanismLen]
	if !bytes.Equal(mechanism, append([]byte("NULL"), make([]byte, mechanismLen-4)...)) {
		return fmt.Errorf("%w: %q", ErrMechanism, bytes.TrimRight(mechanism, "\x00"))
	}
	return nil
}

// readReady takes the peer's READY, which must come before anything else.
func (c *conn) readReady(welcome ...string) error {
	flags, size, err := c.head()
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return fmt.Errorf("%w: a message before READY", ErrMalformed)
	}
	cmd, err := c.command(size)
	if err != nil {
		return err
	}
	switch cmd.name {
	case "READY":
	case "ERROR":
		return cmd.peerError()
	default:
		return fmt.Errorf("%w: command %q before READY", ErrMalformed, cmd.name)
	}
	socket, err := cmd.socketType()
	if err != nil {
		return err
	}
	if !slices.Contains(welcome, socket) {
		return fmt.Errorf("%w: %.20q, want %s", ErrSocketType, socket, strings.Join(welcome, " or "))
	}
	return nil
}
