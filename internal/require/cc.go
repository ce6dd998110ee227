package require

import (
	"errors"
	"os/exec"
	"testing"
)

// Compiled ends the test if something of ours could not be built: it skips where there is no C compiler, and fails where there is one.
func Compiled(t testing.TB, err error) {
	t.Helper()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		Skip(t, "cc", err.Error())
	case err != nil:
		t.Fatal(err)
	}
}
