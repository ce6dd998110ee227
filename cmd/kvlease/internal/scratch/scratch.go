// Package scratch makes folders for what a command needs while it runs, and takes away those of commands that were killed.
package scratch

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Folder is one that is held by a lock of this process: numbers of processes mean nothing across containers that share a /tmp.
type Folder struct {
	Path string
	lock *os.File
}

// fresh is how long a folder is left alone: its maker may not have locked it yet.
const fresh = time.Minute

// New makes a folder among temporary files, kvlease-KIND- and a number. Folders of that kind and user that nobody holds any more are removed.
func New(kind string) (*Folder, error) {
	prefix := "kvlease-" + kind + "-"
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, dir := range left {
		sweep(dir)
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	f := &Folder{Path: dir, lock: hold(dir)}
	return f, nil
}

// Remove removes the folder with all that is in it.
func (f *Folder) Remove() {
	if f == nil {
		return
	}
	os.RemoveAll(f.Path)
	if f.lock != nil {
		f.lock.Close()
	}
}

// hold locks a folder; nil: another holds it, or it is none.
func hold(dir string) *os.File {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		f.Close()
		return nil
	}
	return f
}

// sweep removes a folder of this user that a command has left which was killed.
func sweep(dir string) {
	f := hold(dir)
	if f == nil {
		return
	}
	defer f.Close()
	var st unix.Stat_t
	if unix.Fstat(int(f.Fd()), &st) != nil || int(st.Uid) != os.Geteuid() || time.Since(time.Unix(st.Mtim.Unix())) < fresh {
		return
	}
	os.RemoveAll(dir)
}
