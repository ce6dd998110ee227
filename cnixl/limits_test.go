package cnixl

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/transport"
)

// UCX ends the process when one of its threads gets no descriptor, so it is not asked.
func TestAnAgentIsNotMadeWhereDescriptorsAreShort(t *testing.T) {
	s := newScript(t)
	s.open(Config{Agent: "first"}) // the library is loaded
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	next, err := os.Open(os.DevNull) // the lowest free descriptor
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	short := was
	short.Cur = uint64(next.Fd()) + 14
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &short); err != nil {
		t.Fatal(err)
	}
	a, err := Open(Config{Agent: "second", Path: s.path})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), "descriptors") {
		t.Errorf("Open = %v, %v, want ErrUnavailable that names descriptors", a, err)
	}
	if a != nil {
		a.Close()
	}
}
