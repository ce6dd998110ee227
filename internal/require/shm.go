package require

import (
	"os"
	"testing"
)

// Shm is a folder in shared memory that the test has for itself: stats pages must lie in one.
func Shm(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "kvlease-test-")
	if err != nil {
		Skip(t, "shm", err.Error())
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
