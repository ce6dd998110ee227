package handshake

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/kvlease/kvlease/dataplane/wire"
)

// asked is the start of every request that vLLM sends: array of 3, bin get_meta_msg.
var asked = func() []byte {
	b := wire.AppendRequest(nil, 0, 0)
	return b[:len(b)-2]
}()

// parseRequest reads a request. vLLM logs a first element that it does not expect and answers all the same; so this tells
// and goes on.
func parseRequest(msg []byte) (r Rank, expected bool, err error) {
	expected = bytes.HasPrefix(msg, asked)
	if !expected && len(msg) > 1 && len(msg) <= wire.RequestMax && msg[0] == asked[0] {
		n, ok := valueLen(msg[1:])
		if !ok {
			return Rank{}, false, fmt.Errorf("handshake request: first element: %w", wire.ErrTruncated)
		}
		msg = append(asked[:len(asked):len(asked)], msg[1+n:]...)
	}
	r.PP, r.Transfer, err = wire.ParseRequest(msg)
	return r, expected && err == nil, err
}

// valueLen is the length of the msgpack value at the start of b; false if it is not all there. It looks at each byte at
// most once, and nests nothing, however deep the value does.
func valueLen(b []byte) (n int, ok bool) {
	for left := 1; left > 0; left-- {
		if n >= len(b) {
			return 0, false
		}
		c := b[n]
		n++
		var lenBytes, body, perItem int // a length of that many bytes, then the body, or that many values per item
		switch {
		case c <= 0x7f, c >= 0xe0: // fixint
		case c <= 0x8f:
			left += 2 * int(c&0x0f)
		case c <= 0x9f:
			left += int(c & 0x0f)
		case c <= 0xbf:
			body = int(c & 0x1f)
		case c == 0xc0, c == 0xc2, c == 0xc3: // nil, booleans
		case c == 0xc1: // never used
			return 0, false
		case c <= 0xc6: // bin
			lenBytes = 1 << (c - 0xc4)
		case c <= 0xc9: // ext, with a byte of type
			lenBytes, body = 1<<(c-0xc7), 1
		case c == 0xca, c == 0xcb:
			body = 4 << (c - 0xca)
		case c <= 0xcf: // uint
			body = 1 << (c - 0xcc)
		case c <= 0xd3: // int
			body = 1 << (c - 0xd0)
		case c <= 0xd8: // fixext
			body = 1 + 1<<(c-0xd4)
		case c <= 0xdb: // str
			lenBytes = 1 << (c - 0xd9)
		case c <= 0xdd: // array
			lenBytes, perItem = 2<<(c-0xdc), 1
		default: // map
			lenBytes, perItem = 2<<(c-0xde), 2
		}
		if lenBytes > len(b)-n {
			return 0, false
		}
		var wide [8]byte
		copy(wide[8-lenBytes:], b[n:n+lenBytes])
		count := int(binary.BigEndian.Uint64(wide[:])) // below 2^32
		n += lenBytes
		if perItem > 0 {
			left += perItem * count
		} else {
			body += count
		}
		if body > len(b)-n {
			return 0, false
		}
		n += body
	}
	return n, true
}
