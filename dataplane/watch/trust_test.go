package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/require"
)

func TestAPageThatAnotherUserHasMadeIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "files of other users are made here")
	}
	dir := require.Shm(t)
	good, err := os.ReadFile(newPage(t, spec(dir)).Path())
	if err != nil {
		t.Fatal(err)
	}
	const stranger = 4711
	for name, tc := range map[string]struct {
		uid  uint64 // in the name and in the page
		pid  int
		want string
	}{
		"it says that it is root's":          {0, os.Getpid(), "it says that it is of user 0, and is of user 4711"},
		"it says that root's process is its": {stranger, os.Getpid(), fmt.Sprintf("it is of user 4711, and process %d of user 0", os.Getpid())},
		"it is of a process that is no more": {stranger, 1<<22 + 1, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, fileName(int(tc.uid), tc.pid, 77))
			page := bytes.Clone(good)
			binary.LittleEndian.PutUint64(page[hwUID:], tc.uid)
			binary.LittleEndian.PutUint64(page[hwPID:], uint64(tc.pid))
			if err := errors.Join(os.WriteFile(path, page, 0o644), os.Chown(path, stranger, stranger)); err != nil {
				t.Fatal(err)
			}
			p, err := Open(path)
			if err == nil {
				p.Close()
			}
			if tc.want == "" && err != nil || tc.want != "" && (!errors.Is(err, ErrNotAPage) || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("opened with %v, want %q", err, tc.want)
			}
		})
	}
}

func TestAPageOfCountlessValuesCostsNoMemory(t *testing.T) {
	const n = 1 << 17
	many := func(n int) []byte { // a page whose table has nothing but empty names
		table := make([]byte, 9*n)
		secs, size := layout(len(table), n, 0, 0, 2, 0)
		b := (&Writer{secs: secs}).head(&Spec{Step: make([]Desc, n)}, identity{}, 1, table, size)
		return append(b, make([]byte, int(size)-len(b))...)
	}
	path := filepath.Join(t.TempDir(), "page")
	for n, want := range map[int]error{descMax: nil, descMax + 1: ErrNotAPage, n: ErrNotAPage} {
		if err := os.WriteFile(path, many(n), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Open(path)
		if err == nil {
			p.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("%d values: %v, want %v", n, err, want)
		}
	}
}

func TestAPageIsForItsUserAlone(t *testing.T) {
	w := newPage(t, spec(require.Shm(t)))
	old := unix.Umask(0)
	open := newPage(t, func() *Spec { s := spec(filepath.Dir(w.Path())); s.Context = 1; return s }())
	unix.Umask(old)
	for _, path := range []string{w.Path(), open.Path()} {
		if st, err := os.Stat(path); err != nil || st.Mode() != 0o600 {
			t.Errorf("%s: %v %v", path, st.Mode(), err)
		}
	}
	if os.Geteuid() != 0 {
		require.Skip(t, "root", "only root can be another user")
	}
	if err := os.Chmod(filepath.Dir(w.Path()), 0o755); err != nil {
		t.Fatal(err)
	}
	run := runSelf(t, "open", w.Path())
	run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := run.CombinedOutput()
	if !strings.Contains(string(out), "permission denied") {
		t.Errorf("another user: %s %v", out, err)
	}
}
