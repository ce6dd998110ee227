package cnixl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvlease/kvlease/dataplane/transport"
)

func TestASettingsFileThatNIXLCannotLookAtIsNamed(t *testing.T) {
	haveNIXL(t)
	dir := os.Getenv("KVLEASE_TEST_SETTINGS") // of the test's first process
	first := dir == ""
	if first {
		dir = t.TempDir()
	}
	loop, wrong, none := filepath.Join(dir, "loop"), filepath.Join(dir, "wrong"), filepath.Join(dir, "none")
	if first {
		if err := errors.Join(os.Symlink(loop, loop), os.WriteFile(wrong, []byte("this is no TOML\n"), 0o644)); err != nil { // root may look everywhere but in a loop
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name, home, file string
		want             string // empty: an agent is made
	}{
		{"a home that may not be looked at", loop, "", loop + "/.nixl.cfg: too many levels"},
		{"a home without one", dir, "", ""},
		{"a home that is not there", none, "", ""},
		{"a home that is a file", wrong, "", ""},
		{"a file that is not there", dir, none, none + ": no such file"},
		{"a file that is no TOML", dir, wrong, "settings from " + wrong},
		{"none by request", loop, os.DevNull, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !alone(t, "KVLEASE_TEST_SETTINGS="+dir, "HOME="+tc.home, "NIXL_CONFIG_FILE="+tc.file) {
				return
			}
			if tc.file == "" {
				os.Unsetenv("NIXL_CONFIG_FILE")
			}
			a, err := Open(Config{Agent: "settings", Folders: []string{".."}})
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Close(); err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
		})
	}
}
