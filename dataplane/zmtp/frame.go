package zmtp

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
)

// A frame is a flags byte, the length in one byte or (long) in eight, and the body.
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
	flagsKnown  = flagMore | flagLong | flagCommand

	headLenMax = 1 + 8
)

// growBytes is how far memory runs ahead of the bytes that have arrived.
const growBytes = 64 << 10

// appendHead makes the head of a frame of n bytes.
func appendHead(dst []byte, flags byte, n int) []byte {
	if n <= math.MaxUint8 {
		return append(dst, flags, byte(n))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(n))
}

// head reads the head of a frame. size is what the peer says, up to 2^64-1: whoever takes memory for it checks it first.
func (c *conn) head() (flags byte, size uint64, err error) {
	var b [8]byte
	if err := c.full(b[:1]); err != nil {
		return 0, 0, err
	}
	flags, b[0] = b[0], 0
	if flags&^flagsKnown != 0 || flags&(flagCommand|flagMore) == flagCommand|flagMore {
		return 0, 0, fmt.Errorf("%w: frame flags %#02x", ErrMalformed, flags)
	}
	length := b[7:]
	if flags&flagLong != 0 {
		length = b[:]
	}
	if err := c.full(length); err != nil {
		return 0, 0, err
	}
	return flags, binary.BigEndian.Uint64(b[:]), nil
}

// full reads all of b. A connection that ends within it is torn, not closed.
func (c *conn) full(b []byte) error {
	_, err := io.ReadFull(c.r, b)
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// appendBody reads a frame's body of size bytes, which the caller has bounded, behind dst.
func (c *conn) appendBody(dst []byte, size int) ([]byte, error) {
	for size > 0 {
		n := min(size, max(growBytes, len(dst)))
		dst = slices.Grow(dst, n)
		at := len(dst)
		dst = dst[:at+n]
		if err := c.full(dst[at:]); err != nil {
			return dst[:at], err
		}
		size -= n
	}
	return dst, nil
}

// command reads a command's body of the given size.
func (c *conn) command(size uint64) (command, error) {
	if c.commands++; c.commands > c.limits.CommandsMax {
		return command{}, fmt.Errorf("%w: more than %d commands without a message", ErrTooLong, c.limits.CommandsMax)
	}
	if size > uint64(c.limits.CommandBytesMax) {
		return command{}, fmt.Errorf("%w: a command of %d bytes, %d allowed", ErrTooLong, size, c.limits.CommandBytesMax)
	}
	body, err := c.appendBody(c.commandBuf[:0], int(size))
	if err != nil {
		return command{}, err
	}
	c.commandBuf = body
	return parseCommand(body)
}
