package wire

import (
	"encoding/binary"
	"errors"
	"math"
	"unicode/utf8"
)

// Why a handshake or a parameter object was refused. The error around it names the key.
var (
	ErrTooLong   = errors.New("wire: longer than the limit")
	ErrTruncated = errors.New("wire: ends too early")
	ErrTrailing  = errors.New("wire: bytes after the end")
	ErrSyntax    = errors.New("wire: not well formed")
	ErrType      = errors.New("wire: wrong type")
	ErrNegative  = errors.New("wire: negative number")
	ErrRange     = errors.New("wire: number out of range")
	ErrValue     = errors.New("wire: value that cannot be")
	ErrDuplicate = errors.New("wire: key given twice")
	ErrMissing   = errors.New("wire: required key missing")
	ErrLimit     = errors.New("wire: more items than the limit or than the bytes left")
	ErrDepth     = errors.New("wire: nested too deep")
	ErrUTF8      = errors.New("wire: text is not UTF-8")
)

// pack walks msgpack bytes. The first error stays and stops everything, so that callers check once per value.
type pack struct {
	b   []byte // what is left
	err error
}

func (p *pack) fail(err error) {
	if p.err == nil {
		p.err = err
	}
	p.b = nil
}

// take cuts off n bytes.
func (p *pack) take(n uint64) []byte {
	if p.err != nil || n > uint64(len(p.b)) {
		p.fail(ErrTruncated)
		return nil
	}
	out := p.b[:n:n]
	p.b = p.b[n:]
	return out
}

// byte cuts off one byte.
func (p *pack) byte() byte {
	if b := p.take(1); b != nil {
		return b[0]
	}
	return 0
}

// be reads a big-endian number of n bytes.
func (p *pack) be(n int) uint64 {
	v := uint64(0)
	for _, c := range p.take(uint64(n)) {
		v = v<<8 | uint64(c)
	}
	return v
}

// peek is the next byte, which tells the type.
func (p *pack) peek() byte {
	if len(p.b) == 0 {
		p.fail(ErrTruncated)
		return 0
	}
	return p.b[0]
}

// isNil takes a nil if there is one.
func (p *pack) isNil() bool {
	if p.peek() != 0xc0 || p.err != nil {
		return false
	}
	p.byte()
	return true
}

// int reads any integer format: the magnitude, and whether it is below zero (then magnitude is the two's complement).
func (p *pack) int() (v uint64, negative bool) {
	switch c := p.byte(); {
	case p.err != nil:
		return 0, false
	case c < 0x80:
		return uint64(c), false
	case c >= 0xe0:
		return uint64(int64(int8(c))), true
	case c >= 0xcc && c <= 0xcf:
		return p.be(1 << (c - 0xcc)), false
	case c >= 0xd0 && c <= 0xd3:
		n := 1 << (c - 0xd0)
		v = p.be(n)
		v = uint64(int64(v<<(64-8*n)) >> (64 - 8*n))
		return v, int64(v) < 0
	}
	p.fail(ErrType)
	return 0, false
}

// uint reads an integer 0..most.
func (p *pack) uint(most uint64) uint64 {
	v, negative := p.int()
	switch {
	case p.err != nil:
		return 0
	case negative:
		p.fail(ErrNegative)
		return 0
	case v > most:
		p.fail(ErrRange)
		return 0
	}
	return v
}

// sint reads an integer least..most.
func (p *pack) sint(least, most int64) int64 {
	v, negative := p.int()
	if p.err == nil && (!negative && v > math.MaxInt64 || int64(v) < least || int64(v) > most) {
		p.fail(ErrRange)
	}
	if p.err != nil {
		return 0
	}
	return int64(v)
}

func (p *pack) bool() bool {
	c := p.byte()
	if p.err == nil && c&^1 != 0xc2 {
		p.fail(ErrType)
	}
	return p.err == nil && c == 0xc3
}

// str reads text of up to most bytes.
func (p *pack) str(most int) []byte {
	var n uint64
	switch c := p.byte(); {
	case p.err != nil:
		return nil
	case c >= 0xa0 && c <= 0xbf:
		n = uint64(c & 0x1f)
	case c >= 0xd9 && c <= 0xdb:
		n = p.be(1 << (c - 0xd9))
	default:
		p.fail(ErrType)
		return nil
	}
	s := p.take(n)
	switch {
	case p.err != nil:
		return nil
	case len(s) > most:
		p.fail(ErrTooLong)
		return nil
	case !utf8.Valid(s):
		p.fail(ErrUTF8)
		return nil
	}
	return s
}

// bin reads bytes.
func (p *pack) bin() []byte {
	c := p.byte()
	if p.err == nil && (c < 0xc4 || c > 0xc6) {
		p.fail(ErrType)
	}
	if p.err != nil {
		return nil
	}
	return p.take(p.be(1 << (c - 0xc4)))
}

// array reads an array's header: up to most elements, and no more than there are bytes left.
func (p *pack) array(most int) int {
	return p.count(p.header(0x90, 0xdc), 1, most)
}

// mapLen reads a map's header: up to most pairs, and no more than there are bytes left.
func (p *pack) mapLen(most int) int {
	return p.count(p.header(0x80, 0xde), 2, most)
}

// header reads a count that stands in the low half of the byte short, or as 16 bits after wide, or as 32 after wide+1.
func (p *pack) header(short, wide byte) uint64 {
	switch c := p.byte(); {
	case p.err != nil:
		return 0
	case c&0xf0 == short:
		return uint64(c & 0x0f)
	case c == wide:
		return p.be(2)
	case c == wide+1:
		return p.be(4)
	}
	p.fail(ErrType)
	return 0
}

// count checks a number of items of at least least bytes each before anybody makes room for them.
func (p *pack) count(n, least uint64, most int) int {
	if p.err == nil && (n > uint64(most) || n*least > uint64(len(p.b))) {
		p.fail(ErrLimit)
	}
	if p.err != nil {
		return 0
	}
	return int(n)
}

// skip passes over one value of any kind, at most DepthMax levels deep. It recurses no deeper than that, and each value
// costs at least one byte, so it is linear.
func (p *pack) skip(depth int) {
	if depth > DepthMax {
		p.fail(ErrDepth)
		return
	}
	switch c := p.peek(); {
	case p.err != nil:
	case c < 0x80, c >= 0xe0, c == 0xc0, c == 0xc2, c == 0xc3:
		p.byte()
	case c <= 0x8f, c == 0xde, c == 0xdf:
		for n := 2 * p.mapLen(math.MaxInt32); n > 0 && p.err == nil; n-- {
			p.skip(depth + 1)
		}
	case c <= 0x9f, c == 0xdc, c == 0xdd:
		for n := p.array(math.MaxInt32); n > 0 && p.err == nil; n-- {
			p.skip(depth + 1)
		}
	case c <= 0xbf:
		p.take(1 + uint64(c&0x1f))
	case c >= 0xc4 && c <= 0xc6: // bin
		p.byte()
		p.take(p.be(1 << (c - 0xc4)))
	case c >= 0xd9 && c <= 0xdb: // str
		p.byte()
		p.take(p.be(1 << (c - 0xd9)))
	case c == 0xca, c == 0xce, c == 0xd2: // float 32, uint 32, int 32
		p.take(5)
	case c == 0xcb, c == 0xcf, c == 0xd3:
		p.take(9)
	case c == 0xcc, c == 0xd0:
		p.take(2)
	case c == 0xcd, c == 0xd1:
		p.take(3)
	case c >= 0xc7 && c <= 0xc9: // ext
		p.byte()
		p.take(p.be(1<<(c-0xc7)) + 1)
	case c >= 0xd4 && c <= 0xd8: // fixext
		p.take(2 + 1<<(c-0xd4))
	default: // 0xc1, the one byte that msgpack never uses
		p.fail(ErrSyntax)
	}
}

// end checks that nothing is left.
func (p *pack) end() error {
	if p.err == nil && len(p.b) > 0 {
		p.err = ErrTrailing
	}
	return p.err
}

// The appenders take the shortest form, as msgspec does.

func packUint(dst []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, 0xcc, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xcf), v)
}

func packInt(dst []byte, v int64) []byte {
	switch {
	case v >= 0:
		return packUint(dst, uint64(v))
	case v >= -32:
		return append(dst, byte(v))
	case v >= math.MinInt8:
		return append(dst, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(dst, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(dst, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, 0xd3), uint64(v))
}

func packBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, 0xc3)
	}
	return append(dst, 0xc2)
}

func packStr(dst []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		dst = append(dst, 0xa0|byte(n))
	case n <= math.MaxUint8:
		dst = append(dst, 0xd9, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xda), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xdb), uint32(n))
	}
	return append(dst, s...)
}

func packBin(dst, b []byte) []byte {
	switch n := len(b); {
	case n <= math.MaxUint8:
		dst = append(dst, 0xc4, byte(n))
	case n <= math.MaxUint16:
		dst = binary.BigEndian.AppendUint16(append(dst, 0xc5), uint16(n))
	default:
		dst = binary.BigEndian.AppendUint32(append(dst, 0xc6), uint32(n))
	}
	return append(dst, b...)
}

func packArray(dst []byte, n int) []byte { return packHead(dst, n, 0x90, 0xdc) }
func packMap(dst []byte, n int) []byte   { return packHead(dst, n, 0x80, 0xde) }

func packHead(dst []byte, n int, fix, wide byte) []byte {
	switch {
	case n < 16:
		return append(dst, fix|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, wide), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(dst, wide+1), uint32(n))
}
