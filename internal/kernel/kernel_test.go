package kernel

import (
	"os"
	"strings"
	"testing"
)

func TestTheReleaseIsThatOfProcfs(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(string(text)); Release() != want {
		t.Errorf("%q, procfs says %q", Release(), want)
	}
}
