package sim

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestTheOldTextOfEachControlStandsExactlyOnceInItsFile(t *testing.T) {
	list, err := Controls()
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 7 {
		t.Errorf("%d controls, want at least 7", len(list))
	}
	for _, c := range list {
		if c.Why == "" || len(c.Edits) == 0 {
			t.Errorf("control %q says not why, or changes nothing", c.Name)
		}
		for _, e := range c.Edits {
			text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(e.File)))
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(e.Old)); n != 1 {
				t.Errorf("control %q: the old text occurs %d times in %s: %q", c.Name, n, e.File, e.Old)
			}
		}
	}
}
