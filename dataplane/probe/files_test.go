package probe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/internal/await"
)

// written is a library with sites, where a test may write into it.
func written(t *testing.T) (path string, text []byte) {
	t.Helper()
	text, err := os.ReadFile(fixture(t, "libsites.so"))
	path = filepath.Join(t.TempDir(), "libkvlease-test.so")
	if err = errors.Join(err, os.WriteFile(path, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	return path, text
}

// Its next version may have the same sites elsewhere, and the kernel would put probes to the old places.
func TestAFileThatWasWrittenIntoIsReadAnew(t *testing.T) {
	path, text := written(t)
	fs := newFiles(t)
	f, err := fs.Library(path)
	if err != nil {
		t.Fatal(err)
	}
	if list := fs.Overwritten(); len(list) != 0 {
		t.Errorf("nobody has written: %+v", list)
	}
	for _, next := range [][]byte{text[:len(text)/2], text} {
		if err := os.WriteFile(path, next, 0o644); err != nil {
			t.Fatal(err)
		}
		if list := fs.Overwritten(); f != nil && (len(list) != 1 || list[0] != f) {
			t.Errorf("%d bytes: %+v", len(next), list)
		}
		if f, err = fs.Library(path); (err == nil) != (len(next) == len(text)) {
			t.Errorf("%d bytes of %d: %v", len(next), len(text), err)
		}
	}
	if list := fs.Overwritten(); f == nil || len(f.Sites) == 0 || len(list) != 0 {
		t.Errorf("%+v, and written into: %+v", f, list)
	}
}

// A file system gives the inode of the version without sites to the one with them.
func TestALibraryWithoutSitesIsLookedAtAgain(t *testing.T) {
	path, text := written(t)
	fs := newFiles(t)
	dir := t.TempDir() // of a process that maps it
	if err := errors.Join(os.Symlink("/", filepath.Join(dir, "root")), os.WriteFile(path, []byte("an old one"), 0o644)); err != nil {
		t.Fatal(err)
	}
	m := &mapping{dev: "00:01", inode: 7, path: path}
	if _, err := fs.open(dir, m); !errors.Is(err, ErrNoSites) {
		t.Fatalf("without sites: %v", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	if f, err := fs.open(dir, m); err != nil || len(f.Sites) == 0 {
		t.Errorf("with sites: %+v, %v", f, err)
	}
}

func TestAPipeInTheLibrarysPlaceIsNotWaitedFor(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	opened := make(chan error, 1)
	go func() {
		_, err := NewFiles().Library(pipe)
		opened <- err
	}()
	await.True(t, "an answer", func() bool { return len(opened) == 1 })
	if err := <-opened; !errors.Is(err, ErrNoSites) {
		t.Errorf("%v", err)
	}
}

func TestAProcessThatIsHiddenIsNotCalledGone(t *testing.T) {
	fs := newFiles(t)
	fs.proc = t.TempDir() // as with hidepid
	if _, err := fs.Of(os.Getpid()); !errors.Is(err, ErrAccess) || errors.Is(err, ErrGone) || !strings.Contains(err.Error(), "hidepid") {
		t.Errorf("%v", err)
	}
	if _, err := fs.Of(1<<31 - 1); !errors.Is(err, ErrGone) {
		t.Errorf("there is none: %v", err)
	}
}
