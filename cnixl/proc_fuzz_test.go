package cnixl

import (
	"bufio"
	"strings"
	"testing"
)

// FuzzProc: whatever a kernel writes into the files of /proc that are read here, nothing panics, and only whole lines count.
func FuzzProc(f *testing.F) {
	f.Add("pos:\t0\nflags:\t02\ntfd:       42 events:       1d data:               2a  pos:0 ino:1 sdev:8\n")
	f.Add("VmPin:\t     64 kB\nCapEff:\t0000000000004000\n")
	f.Add("tfd: -1 events: fffffffffffffffff\nVmPin: 99999999999999999999 kB\nCapEff:\n")
	f.Fuzz(func(t *testing.T, text string) {
		if list := parseWatched(text); len(list) > strings.Count(text, "tfd:") {
			t.Fatalf("%d entries in %q", len(list), text)
		}
		var l lockable
		l.read(bufio.NewScanner(strings.NewReader(text)))
		if l.exempt && !strings.Contains(text, "CapEff") || l.pinned != 0 && !strings.Contains(text, "VmPin") {
			t.Fatalf("%+v from %q", l, text)
		}
	})
}
