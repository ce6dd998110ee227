package wire

import (
	"errors"
	"math"
	"strings"
	"testing"
)

func TestEachTextOfJSONIsReadOrNamed(t *testing.T) {
	for _, tc := range []struct {
		json, want string
		err        error
	}{
		{json: `""`, want: ""},
		{json: " \t\n\r\"a\"", want: "a"},
		{json: `"\"\\\/\b\f\n\r\t"`, want: "\"\\/\b\f\n\r\t"},
		{json: `"\u0041\u00e9\u20AC\u20ac"`, want: "Aé€€"},
		{json: `"\ud83d\ude00\uD83D\uDE00"`, want: "😀😀"},
		{json: `"é€😀"`, want: "é€😀"},
		{json: "\"\x20\x7f\"", want: "\x20\x7f"},
		{json: `"\u0000"`, want: "\x00"},
		{json: `"` + strings.Repeat("x", 20) + `"`, want: strings.Repeat("x", 20)},
		{json: `"` + strings.Repeat("x", 21) + `"`, err: ErrTooLong},
		{json: `"\ud83d"`, err: ErrUTF8},
		{json: `"\ud83d\n"`, err: ErrUTF8},
		{json: `"\ud83dxx"`, err: ErrUTF8},
		{json: `"\ud83d\u0041"`, err: ErrUTF8},
		{json: `"\ude00\ud83d"`, err: ErrUTF8},
		{json: `"\ud83d\ude0"`, err: ErrSyntax},
		{json: `"\u004g"`, err: ErrSyntax},
		{json: `"\u004G"`, err: ErrSyntax},
		{json: `"\u00`, err: ErrTruncated},
		{json: `"\x41"`, err: ErrSyntax},
		{json: `"\`, err: ErrTruncated},
		{json: `"a`, err: ErrTruncated},
		{json: "\"\x1f\"", err: ErrSyntax},
		{json: "\"\xff\"", err: ErrUTF8},
		{json: ``, err: ErrTruncated},
		{json: `1`, err: ErrType},
	} {
		s := jsonScan{b: []byte(tc.json)}
		got := s.str([]byte("before "), 20)
		if !errors.Is(s.err, tc.err) || tc.err == nil && (string(got) != "before "+tc.want || s.i != len(tc.json)) {
			t.Errorf("%s is read as %q, %v; want %q, %v", tc.json, got, s.err, tc.want, tc.err)
		}
		over := jsonScan{b: []byte(tc.json)}
		want := tc.err
		if want == ErrTooLong {
			want = nil // a text that is passed over may be as long as it likes
		}
		if want == ErrType {
			continue
		}
		if over.skipStr(); !errors.Is(over.err, want) || want == nil && over.i != len(tc.json) {
			t.Errorf("%s is passed over with %v at %d, want %v", tc.json, over.err, over.i, want)
		}
	}
}

func TestEachNumberOfJSONIsReadOrNamed(t *testing.T) {
	for _, tc := range []struct {
		json string
		want uint64
		err  error // as an integer up to 2^64-2
		f    float64
		ferr error // as a float
	}{
		{json: "0", f: 0},
		{json: "7", want: 7, f: 7},
		{json: "18446744073709551614", want: math.MaxUint64 - 1, f: 1 << 64},
		{json: "18446744073709551615", err: ErrRange, f: 1 << 64},
		{json: "18446744073709551616", err: ErrRange, f: 1 << 64},
		{json: "99999999999999999999", err: ErrRange, f: 1e20},
		{json: "-0", err: ErrNegative, f: 0},
		{json: "-5", err: ErrNegative, f: -5},
		{json: "1.5", err: ErrType, f: 1.5},
		{json: "5.0", err: ErrType, f: 5},
		{json: "1e2", err: ErrType, f: 100},
		{json: "1E+2", err: ErrType, f: 100},
		{json: "1e-2", err: ErrType, f: 0.01},
		{json: "1e999", err: ErrType, ferr: ErrRange},
		{json: "01", err: ErrSyntax, ferr: ErrSyntax},
		{json: "-01", err: ErrSyntax, ferr: ErrSyntax},
		{json: "1.", err: ErrSyntax, ferr: ErrSyntax},
		{json: "1e", err: ErrSyntax, ferr: ErrSyntax},
		{json: "1e+", err: ErrSyntax, ferr: ErrSyntax},
		{json: "-", err: ErrTruncated, ferr: ErrTruncated},
		{json: "", err: ErrTruncated, ferr: ErrTruncated},
		{json: "x", err: ErrType, ferr: ErrType},
		{json: ".5", err: ErrType, ferr: ErrType},
	} {
		s := jsonScan{b: []byte(tc.json)}
		if got := s.uint(math.MaxUint64 - 1); tc.json != "-" && (!errors.Is(s.err, tc.err) || tc.err == nil && got != tc.want) {
			t.Errorf("%q is read as %d, %v; want %d, %v", tc.json, got, s.err, tc.want, tc.err)
		}
		s = jsonScan{b: []byte(tc.json)}
		if got := s.float(); tc.json != "-" && (!errors.Is(s.err, tc.ferr) || tc.ferr == nil && got != tc.f) {
			t.Errorf("%q is read as %v, %v; want %v, %v", tc.json, got, s.err, tc.f, tc.ferr)
		}
	}
	s := jsonScan{b: []byte("-")}
	if s.uint(1); s.err == nil {
		t.Error("a sign alone is a number")
	}
}

func TestEachValueOfJSONIsPassedOverOrNamed(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tc := range []struct {
		json string
		err  error
	}{
		{json: `{}`}, {json: `[]`}, {json: `null`}, {json: `true`}, {json: `false`}, {json: `-1.5e3`}, {json: `"a"`},
		{json: ` { "a" : [ 1 , "x" , { } ] , "b" : null } `},
		{json: nested(jsonDepth + 1)},
		{json: nested(jsonDepth + 2), err: ErrDepth},
		{json: `[1,]`, err: ErrSyntax}, {json: `[,1]`, err: ErrType}, {json: `[1 2]`, err: ErrSyntax}, {json: `{"a":1,}`, err: ErrSyntax},
		{json: `{"a" 1}`, err: ErrSyntax}, {json: `{1:1}`, err: ErrType}, {json: `[1`, err: ErrTruncated}, {json: `{"a":`, err: ErrTruncated},
		{json: `[1}`, err: ErrSyntax}, {json: `nul`, err: ErrSyntax}, {json: `tru`, err: ErrType}, {json: `falsy`, err: ErrType},
	} {
		s := jsonScan{b: []byte(tc.json)}
		s.skip(0)
		s.peek()
		if !errors.Is(s.err, tc.err) || tc.err == nil && s.i != len(tc.json) {
			t.Errorf("%s: %v at %d, want %v", tc.json, s.err, s.i, tc.err)
		}
	}
}

func TestATextIsWrittenWithTheEscapesThatJSONDemands(t *testing.T) {
	for text, want := range map[string]string{
		"":           `""`,
		"a\"b\\c":    `"a\"b\\c"`,
		"\x00\x1f\n": `"\u0000\u001f\u000a"`,
		"\x20\x7f/é": "\"\x20\x7f/é\"",
		"a\xffb":     "\"a\ufffdb\"",
	} {
		got := string(appendJSONString([]byte("x"), text))
		if got != "x"+want {
			t.Errorf("%q is written as %s, want %s", text, got[1:], want)
		}
		s := jsonScan{b: []byte(got[1:])}
		if back := s.str(nil, 100); !strings.Contains(text, "\xff") && string(back) != text {
			t.Errorf("%q comes back as %q, %v", text, back, s.err)
		}
	}
}
