package wire

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
)

// Each value takes the shortest form, as msgspec writes it; the edges are where another form begins.
func TestEveryFormOfMsgpackIsWrittenAtItsEdges(t *testing.T) {
	for _, tc := range []struct {
		name string
		got  []byte
		want string // the head, in hexadecimal
		len  int
	}{
		{"0", packUint(nil, 0), "00", 1},
		{"127", packUint(nil, 127), "7f", 1},
		{"128", packUint(nil, 128), "cc80", 2},
		{"255", packUint(nil, 255), "ccff", 2},
		{"256", packUint(nil, 256), "cd0100", 3},
		{"65535", packUint(nil, 65535), "cdffff", 3},
		{"65536", packUint(nil, 65536), "ce00010000", 5},
		{"2^32-1", packUint(nil, 1<<32-1), "ceffffffff", 5},
		{"2^32", packUint(nil, 1<<32), "cf0000000100000000", 9},
		{"2^64-1", packUint(nil, math.MaxUint64), "cfffffffffffffffff", 9},
		{"+0", packInt(nil, 0), "00", 1},
		{"-1", packInt(nil, -1), "ff", 1},
		{"-32", packInt(nil, -32), "e0", 1},
		{"-33", packInt(nil, -33), "d0df", 2},
		{"-128", packInt(nil, -128), "d080", 2},
		{"-129", packInt(nil, -129), "d1ff7f", 3},
		{"-32768", packInt(nil, -32768), "d18000", 3},
		{"-32769", packInt(nil, -32769), "d2ffff7fff", 5},
		{"-2^31", packInt(nil, math.MinInt32), "d280000000", 5},
		{"-2^31-1", packInt(nil, math.MinInt32-1), "d3ffffffff7fffffff", 9},
		{"-2^63", packInt(nil, math.MinInt64), "d38000000000000000", 9},
		{"true", packBool(nil, true), "c3", 1},
		{"false", packBool(nil, false), "c2", 1},
		{"text of 0", packStr(nil, ""), "a0", 1},
		{"text of 31", packStr(nil, strings.Repeat("x", 31)), "bf", 1 + 31},
		{"text of 32", packStr(nil, strings.Repeat("x", 32)), "d920", 2 + 32},
		{"text of 255", packStr(nil, strings.Repeat("x", 255)), "d9ff", 2 + 255},
		{"text of 256", packStr(nil, strings.Repeat("x", 256)), "da0100", 3 + 256},
		{"text of 65535", packStr(nil, strings.Repeat("x", 65535)), "daffff", 3 + 65535},
		{"text of 65536", packStr(nil, strings.Repeat("x", 65536)), "db00010000", 5 + 65536},
		{"bytes of 0", packBin(nil, nil), "c400", 2},
		{"bytes of 255", packBin(nil, make([]byte, 255)), "c4ff", 2 + 255},
		{"bytes of 256", packBin(nil, make([]byte, 256)), "c50100", 3 + 256},
		{"bytes of 65535", packBin(nil, make([]byte, 65535)), "c5ffff", 3 + 65535},
		{"bytes of 65536", packBin(nil, make([]byte, 65536)), "c600010000", 5 + 65536},
		{"an array of 15", packArray(nil, 15), "9f", 1},
		{"an array of 16", packArray(nil, 16), "dc0010", 3},
		{"an array of 65535", packArray(nil, 65535), "dcffff", 3},
		{"an array of 65536", packArray(nil, 65536), "dd00010000", 5},
		{"a map of 15", packMap(nil, 15), "8f", 1},
		{"a map of 16", packMap(nil, 16), "de0010", 3},
		{"a map of 65536", packMap(nil, 65536), "df00010000", 5},
	} {
		if !strings.HasPrefix(fmt.Sprintf("%x", tc.got), tc.want) || len(tc.got) != tc.len {
			t.Errorf("%s: %.20x of %d bytes, want %s of %d", tc.name, tc.got, len(tc.got), tc.want, tc.len)
		}
	}
}

// A peer may write a number in any form that holds it.
func TestEveryFormOfMsgpackIsReadAndSkipped(t *testing.T) {
	for _, tc := range []struct {
		bytes string
		want  int64
	}{
		{"00", 0}, {"7f", 127}, {"ff", -1}, {"e0", -32},
		{"cc05", 5}, {"ccff", 255}, {"cd0005", 5}, {"cdffff", 65535}, {"ce00000005", 5}, {"ceffffffff", 1<<32 - 1}, {"cf0000000000000005", 5},
		{"cf7fffffffffffffff", math.MaxInt64},
		{"d005", 5}, {"d0ff", -1}, {"d080", -128}, {"d10005", 5}, {"d18000", -32768}, {"d200000005", 5}, {"d280000000", math.MinInt32},
		{"d30000000000000005", 5}, {"d38000000000000000", math.MinInt64},
	} {
		p := pack{b: unhex(t, tc.bytes)}
		if got := p.sint(math.MinInt64, math.MaxInt64); p.end() != nil || got != tc.want {
			t.Errorf("%s is read as %d, %v; want %d", tc.bytes, got, p.err, tc.want)
		}
		u := pack{b: unhex(t, tc.bytes)}
		if got := u.uint(math.MaxUint64); tc.want >= 0 && (u.end() != nil || got != uint64(tc.want)) {
			t.Errorf("%s is read as %d, %v; want %d", tc.bytes, got, u.err, tc.want)
		} else if tc.want < 0 && u.err != ErrNegative {
			t.Errorf("%s is read as %d, %v; want %v", tc.bytes, got, u.err, ErrNegative)
		}
	}
	body := bytes.Repeat([]byte("x"), 40)
	for _, head := range []string{"00", "7f", "e0", "ff", "c0", "c2", "c3", "a0", "ca00000000", "cb0000000000000000", "cc00", "cd0000", "ce00000000",
		"cf0000000000000000", "d000", "d10000", "d200000000", "d30000000000000000", "80", "90", "8101c0", "9101", "de0000", "de000101c0", "df00000000",
		"dc0000", "dc000101", "dd00000000", "d40100", "d5010000", "d60100000000", "d7010000000000000000", "d801" + strings.Repeat("00", 16)} {
		p := pack{b: unhex(t, head)}
		if p.skip(0); p.end() != nil {
			t.Errorf("%s is not skipped: %v", head, p.err)
		}
		cut := pack{b: unhex(t, head)[:len(head)/2-1]}
		if cut.skip(0); cut.err == nil {
			t.Errorf("%s without its last byte is skipped", head)
		}
	}
	for _, head := range []string{"bf", "d928", "da0028", "db00000028", "c428", "c50028", "c600000028", "c72801", "c8002801", "c90000002801"} {
		n := 40
		if head == "bf" {
			n = 31
		}
		p := pack{b: append(unhex(t, head), body[:n]...)}
		if p.skip(0); p.end() != nil {
			t.Errorf("%s and %d bytes are not skipped: %v", head, n, p.err)
		}
		cut := pack{b: append(unhex(t, head), body[:n-1]...)}
		if cut.skip(0); cut.err != ErrTruncated {
			t.Errorf("%s and %d bytes: %v, want %v", head, n-1, cut.err, ErrTruncated)
		}
	}
}
