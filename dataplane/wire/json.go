package wire

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonScan walks JSON (RFC 8259) strictly. encoding/json is not used because it takes keys of another case, lets the last
// of two equal keys win and replaces bad UTF-8 in silence. The first error stays and stops everything.
type jsonScan struct {
	b   []byte
	i   int
	err error
}

// jsonDepth is how deep a skipped value may nest; parameters pass through routers that may add what they like.
const jsonDepth = 32

func (s *jsonScan) fail(err error) {
	if s.err == nil {
		s.err = err
	}
	s.i = len(s.b)
}

// peek passes white space and gives the next byte, 0 at the end.
func (s *jsonScan) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// want takes c. Another byte is a wrong type, the end is the end.
func (s *jsonScan) want(c byte, err error) {
	switch got := s.peek(); {
	case s.err != nil:
	case got == c && s.i < len(s.b):
		s.i++
	case s.i == len(s.b):
		s.fail(ErrTruncated)
	default:
		s.fail(err)
	}
}

// more steps through an array or object: false at the closing byte.
func (s *jsonScan) more(first bool, closing byte) bool {
	if s.peek() == closing {
		s.i++
		return false
	}
	if !first {
		s.want(',', ErrSyntax)
		if s.peek() == closing {
			s.fail(ErrSyntax)
		}
	}
	return s.err == nil
}

// word takes null, true or false.
func (s *jsonScan) word(w string) bool {
	s.peek()
	if s.err == nil && len(s.b)-s.i >= len(w) && string(s.b[s.i:s.i+len(w)]) == w {
		s.i += len(w)
		return true
	}
	return false
}

func (s *jsonScan) bool() bool {
	if s.word("true") {
		return true
	}
	if !s.word("false") {
		s.wrong()
	}
	return false
}

// wrong is for a value of another type than asked for; at the end of the text it is the end that is wrong.
func (s *jsonScan) wrong() {
	if s.peek(); s.i == len(s.b) {
		s.fail(ErrTruncated)
		return
	}
	s.fail(ErrType)
}

// number cuts off a number's text; integer says that it has neither fraction nor exponent.
func (s *jsonScan) number() (text []byte, integer bool) {
	s.peek()
	from, b := s.i, s.b
	digits := func() bool {
		at := s.i
		for s.i < len(b) && b[s.i] >= '0' && b[s.i] <= '9' {
			s.i++
		}
		return s.i > at
	}
	if s.i < len(b) && b[s.i] == '-' {
		s.i++
	}
	zero := s.i < len(b) && b[s.i] == '0'
	at := s.i
	if !digits() {
		s.i = from
		s.wrong()
		return nil, false
	}
	if zero && s.i-at > 1 {
		s.fail(ErrSyntax)
		return nil, false
	}
	integer = true
	if s.i < len(b) && b[s.i] == '.' {
		integer = false
		s.i++
		if !digits() {
			s.fail(ErrSyntax)
			return nil, false
		}
	}
	if s.i < len(b) && (b[s.i] == 'e' || b[s.i] == 'E') {
		integer = false
		s.i++
		if s.i < len(b) && (b[s.i] == '+' || b[s.i] == '-') {
			s.i++
		}
		if !digits() {
			s.fail(ErrSyntax)
			return nil, false
		}
	}
	return b[from:s.i], integer
}

// uint reads an integer 0..most. 5.0 and 5e0 are not integers here.
func (s *jsonScan) uint(most uint64) uint64 {
	text, integer := s.number()
	switch {
	case s.err != nil:
		return 0
	case !integer:
		s.fail(ErrType)
		return 0
	case text[0] == '-':
		s.fail(ErrNegative)
		return 0
	}
	v := uint64(0)
	for _, c := range text {
		d := uint64(c - '0')
		if v > (math.MaxUint64-d)/10 {
			s.fail(ErrRange)
			return 0
		}
		v = v*10 + d
	}
	if v > most {
		s.fail(ErrRange)
		return 0
	}
	return v
}

// float reads any number that a float64 holds.
func (s *jsonScan) float() float64 {
	text, _ := s.number()
	if s.err != nil {
		return 0
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		s.fail(ErrRange)
		return 0
	}
	return f
}

// str appends a string's text to dst, with escapes undone; up to most bytes of it.
func (s *jsonScan) str(dst []byte, most int) []byte {
	if s.peek() != '"' {
		s.wrong()
		return dst
	}
	s.i++
	from := len(dst)
	for s.err == nil {
		if s.i == len(s.b) {
			s.fail(ErrTruncated)
			break
		}
		c := s.b[s.i]
		switch {
		case c == '"':
			s.i++
			if !utf8.Valid(dst[from:]) {
				s.fail(ErrUTF8)
			}
			return dst
		case c < 0x20:
			s.fail(ErrSyntax)
		case c == '\\':
			dst = s.escape(dst)
		default:
			dst = append(dst, c)
			s.i++
		}
		if len(dst)-from > most {
			s.fail(ErrTooLong)
		}
	}
	return dst[:from]
}

// escape undoes one escape. Half of a surrogate pair has no text and is an error.
func (s *jsonScan) escape(dst []byte) []byte {
	s.i++
	if s.i == len(s.b) {
		s.fail(ErrTruncated)
		return dst
	}
	c := s.b[s.i]
	s.i++
	switch c {
	case '"', '\\', '/':
		return append(dst, c)
	case 'b':
		return append(dst, '\b')
	case 'f':
		return append(dst, '\f')
	case 'n':
		return append(dst, '\n')
	case 'r':
		return append(dst, '\r')
	case 't':
		return append(dst, '\t')
	case 'u':
		r := s.hex4()
		if utf16.IsSurrogate(r) {
			if s.err == nil && (len(s.b)-s.i < 2 || s.b[s.i] != '\\' || s.b[s.i+1] != 'u') {
				s.fail(ErrUTF8)
				return dst
			}
			s.i += 2
			r = utf16.DecodeRune(r, s.hex4())
			if s.err == nil && r == utf8.RuneError {
				s.fail(ErrUTF8)
			}
		}
		if s.err != nil {
			return dst
		}
		return utf8.AppendRune(dst, r)
	}
	s.fail(ErrSyntax)
	return dst
}

func (s *jsonScan) hex4() rune {
	if s.err != nil || len(s.b)-s.i < 4 {
		s.fail(ErrTruncated)
		return 0
	}
	r := rune(0)
	for _, c := range s.b[s.i : s.i+4] {
		if c >= 'A' && c <= 'F' {
			c += 'a' - 'A'
		}
		d, ok := hexDigit(c)
		if !ok {
			s.fail(ErrSyntax)
			return 0
		}
		r = r<<4 | rune(d)
	}
	s.i += 4
	return r
}

// hexDigit reads a lower-case digit.
func hexDigit(c byte) (uint64, bool) {
	switch {
	case c >= '0' && c <= '9':
		return uint64(c - '0'), true
	case c >= 'a' && c <= 'f':
		return uint64(c-'a') + 10, true
	}
	return 0, false
}

// skipStr passes over a string and keeps nothing of it.
func (s *jsonScan) skipStr() {
	if s.peek() != '"' {
		s.wrong()
		return
	}
	s.i++
	from := s.i
	for s.err == nil && s.i < len(s.b) {
		c := s.b[s.i]
		if c >= 0x20 && c != '"' && c != '\\' {
			s.i++
			continue
		}
		if !utf8.Valid(s.b[from:s.i]) {
			s.fail(ErrUTF8)
			return
		}
		switch c {
		case '"':
			s.i++
			return
		case '\\':
			var text [utf8.UTFMax]byte
			s.escape(text[:0])
			from = s.i
		default:
			s.fail(ErrSyntax)
		}
	}
	s.fail(ErrTruncated)
}

// skip passes over one value.
func (s *jsonScan) skip(depth int) {
	if depth > jsonDepth {
		s.fail(ErrDepth)
		return
	}
	switch c := s.peek(); c {
	case '{', '[':
		s.i++
		for first := true; s.more(first, c+2) && s.err == nil; first = false { // '{'+2 is '}', '['+2 is ']'
			if c == '{' {
				s.skipStr()
				s.want(':', ErrSyntax)
			}
			s.skip(depth + 1)
		}
	case '"':
		s.skipStr()
	case 't', 'f':
		s.bool()
	case 'n':
		if !s.word("null") {
			s.fail(ErrSyntax)
		}
	default:
		s.number()
	}
}

// appendJSONString writes a string with the escapes that JSON demands. Bytes that are not UTF-8 become U+FFFD, as the
// format has no way to carry them.
func appendJSONString(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
