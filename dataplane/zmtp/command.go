package zmtp

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// pingContextMax is the longest context that a PING may carry and its PONG repeats.
const pingContextMax = 16

// command is the body of a command frame. data lies in the connection's command buffer and is good until the next one.
type command struct {
	name string
	data []byte
}

// parseCommand splits a body into its name and the rest.
func parseCommand(body []byte) (command, error) {
	if len(body) == 0 || body[0] == 0 || int(body[0]) > len(body)-1 {
		return command{}, fmt.Errorf("%w: a command of %d bytes without a name", ErrMalformed, len(body))
	}
	end := 1 + int(body[0])
	return command{name: string(body[1:end]), data: body[end:]}, nil
}

// socketType walks the properties of READY. Others than the type say nothing that we need: an identity is not used,
// since a reply goes to the connection that asked, so nobody can have another's reply by claiming its identity.
func (c command) socketType() (string, error) {
	socket := ""
	for d := c.data; len(d) > 0; {
		nameEnd := 1 + int(d[0])
		if d[0] == 0 || len(d) < nameEnd+4 {
			return "", fmt.Errorf("%w: a property of READY is cut off", ErrMalformed)
		}
		name, size := d[1:nameEnd], binary.BigEndian.Uint32(d[nameEnd:])
		d = d[nameEnd+4:]
		if uint64(size) > uint64(len(d)) {
			return "", fmt.Errorf("%w: property %.20q of READY is cut off", ErrMalformed, name)
		}
		if strings.EqualFold(string(name), "Socket-Type") {
			socket = string(d[:size])
		}
		d = d[size:]
	}
	return socket, nil
}

// peerError is the reason of an ERROR command. libzmq may send it without one.
func (c command) peerError() error {
	reason := c.data
	if len(reason) > 0 {
		reason = reason[1:min(len(reason), 1+int(reason[0]))]
	}
	return fmt.Errorf("%w: %q", ErrPeer, reason)
}

// pong is the body of the answer to a PING: 2 bytes of time to live, then the context.
func (c command) pong() ([]byte, error) {
	const ttlLen = 2
	if n := len(c.data); n < ttlLen || n > ttlLen+pingContextMax {
		return nil, fmt.Errorf("%w: PING of %d bytes", ErrMalformed, n)
	}
	return append(appendName(nil, "PONG"), c.data[ttlLen:]...), nil
}

func appendName(dst []byte, name string) []byte {
	return append(append(dst, byte(len(name))), name...)
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = binary.BigEndian.AppendUint32(appendName(dst, name), uint32(len(value)))
	return append(dst, value...)
}
