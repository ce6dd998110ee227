package text

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestNothingOfANameReachesTheTerminalAsACommand(t *testing.T) {
	for _, tc := range []struct{ name, want string }{
		{"decode-0", "decode-0"},
		{"德-0 ü", "德-0 ü"},
		{"", ""},
		{"a\x1b[2Jb", `"a\x1b[2Jb"`},
		{"a\nb\r\x07", `"a\nb\r\a"`},
		{"a\u009b31m", `"a\u009b31m"`},                      // the escape sequence's one-character form
		{"a\u202etxet", `"a\u202etxet"`},                    // writes backwards
		{"a\u200bb", `"a\u200bb"`},                          // no width
		{"a\xff", `"a\xff"`},                                // no text
		{"a\xfe", `"a\xfe"`},                                // another id than the one before
		{"tab\t", `"tab\t"`},                                //
		{"\x00\x00", `"\x00\x00"`},                          //
		{"\u2028line", `"\u2028line"`},                      //
		{"no break\u00a0space", "\"no break\\u00a0space\""}, //
	} {
		if got := Printable(tc.name); got != tc.want {
			t.Errorf("%q: %s, want %s", tc.name, got, tc.want)
		}
	}
}

func TestJSONHasNothingForATerminalToObey(t *testing.T) {
	for _, name := range []string{"plain", "德 ü", "a\x1b[2Jb", "a\u009b31m", "a\u202etxet", "\U000e0041 tag", "a\n<b>&", "\u2028"} {
		got, err := JSON(map[string]string{"id": name})
		if err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(string(got), "\n")
		if Printable(line) != line {
			t.Errorf("%q: %q", name, line)
		}
		var back map[string]string
		if err := json.Unmarshal(got, &back); err != nil || back["id"] != name {
			t.Errorf("%q came back as %q: %v", name, back["id"], err)
		}
	}
}

func TestCellsAreCountedNotCharacters(t *testing.T) {
	for _, tc := range []struct {
		s     string
		cells int
		left  string
	}{
		{"ab", 4, "ab  "},
		{"abcdef", 4, "abc…"},
		{"德国机器", 8, "德国机器"},
		{"德国机器", 7, "德国机…"},
		{"德国机器", 6, "德国… "},
		{"德", 1, "…"},
		{"e\u0301tude", 5, "e\u0301tude"},
		{"x", 0, ""},
	} {
		got := Left(tc.s, tc.cells)
		if got != tc.left || Width(got) != tc.cells {
			t.Errorf("%s in %d: %q of %d cells, want %q", tc.s, tc.cells, got, Width(got), tc.left)
		}
	}
}

func TestNumbersFitTheirColumns(t *testing.T) {
	for _, tc := range []struct {
		v            float64
		count, bytes string
	}{
		{0, "0", "0"}, {0.04, "0.1", "0.1"}, {0.5, "0.5", "0.5"}, {1, "1", "1"}, {9.6, "10", "10"}, {999, "999", "999"}, {999.6, "1.0k", "1.0K"},
		{1000, "1.0k", "1.0K"}, {1234, "1.2k", "1.2K"}, {9949, "9.9k", "9.7K"}, {9951, "10k", "9.7K"}, {123456, "123k", "121K"},
		{999_499, "999k", "976K"}, {999_501, "1.0M", "976K"}, {1 << 30, "1.1G", "1.0G"}, {1e15, "1.0P", "909T"}, {1 << 63, "9.2E", "8.0E"},
	} {
		if c, b := Count(tc.v), Bytes(tc.v); c != tc.count || b != tc.bytes {
			t.Errorf("%v: %s and %s, want %s and %s", tc.v, c, b, tc.count, tc.bytes)
		}
	}
	for d := time.Duration(1); d > 0 && d < 1<<62; d = d*13/10 + 1 {
		if s := Span(d); len(s) > 5 && d < 100*365*24*time.Hour {
			t.Errorf("%v takes %q", d, s)
		}
		if s := Span(-d); len(s) > 5 && d < 999*24*time.Hour {
			t.Errorf("%v takes %q", -d, s)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 1500: "2us", 40 * time.Millisecond: "40ms", 200 * time.Millisecond: "0.2s", 14800 * time.Millisecond: "14.8s",
		100 * time.Second: "100s", 10 * time.Minute: "10m", 3 * time.Hour: "3.0h", 240 * time.Hour: "10d", -1200 * time.Millisecond: "-1.2s",
		-13600 * time.Millisecond: "-14s", -700 * time.Millisecond: "-0.7s", -800 * time.Microsecond: "-1ms", -200: "-1us", -50 * time.Hour: "-50h", -240 * time.Hour: "-10d",
	} {
		if got := Span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func TestATableHasNoEmptyColumns(t *testing.T) {
	got := Table([]Column{{"N", true}, {"EMPTY", false}, {"NAME", false}, {"ID", false}}, [][]string{{"1", "", "德", "x"}, {"100", "", "abc", ""}})
	want := []string{"  N  NAME  ID", "  1  德    x", "100  abc"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(strings.Join(got, "\n"), diff)
	}
}

// plurals are words for things of which a tool may have found one: behind a number that is not a constant they come from package plural.
var plurals = regexp.MustCompile(`%d (more )?(leases|hits|heartbeats|lines|pages|contexts|runs|reads|handshakes|ranks (are|is|lost)|transfers|times|things|notifications|requests?\))\b`)

func TestNoToolSaysOneLeases(t *testing.T) {
	files := 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		files++
		for i, line := range strings.Split(string(src), "\n") {
			if m := plurals.FindString(line); m != "" && !strings.Contains(line, "allowed:") && !strings.Contains(line, "more than %d") && !constantsOf.MatchString(line) {
				t.Errorf("%s:%d: %q of a number that may be 1: plural.Counted", path, i+1, m)
			}
		}
		return err
	})
	if err != nil || files < 50 {
		t.Fatalf("%d files, %v", files, err)
	}
}

// constantsOf are numbers of the demo's scenes, which are written down there and never 1.
var constantsOf = regexp.MustCompile(`, requests[,)]|leases on`)
