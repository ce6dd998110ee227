package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fileID tells files of one machine apart, whatever their names: a copied library is another one.
type fileID struct {
	dev   string
	inode uint64
}

// File is a library or program with trace sites, held open: what is attached to is what was read, whatever its name stands for later.
type File struct {
	Path  string // as a process that maps it sees it
	Sites []Site

	id    fileID
	f     *os.File
	state fileState
}

// fileState is what tells that somebody has written into a file.
type fileState struct {
	size  int64
	mtime time.Time
}

// overwritten tells whether the file is another one than that whose sites were read.
func (f *File) overwritten() bool {
	st, err := f.f.Stat()
	return err == nil && f.state != fileState{st.Size(), st.ModTime()}
}

// Files knows the files that processes have mapped. It opens each one once.
//
// Threads: one.
type Files struct {
	proc  string // /proc
	known map[fileID]*File
	none  map[fileID]string // without sites, by the name under which they were looked at; none whose name says that it is kvlease's: its inode may be the next version's
	Notes []string          // what could not be read, and why; once each
}

// noneMax bounds what is remembered of other files; past it they are looked at again.
const noneMax = 1 << 16

// NewFiles makes an empty one.
func NewFiles() *Files {
	return &Files{proc: "/proc", known: map[fileID]*File{}, none: map[fileID]string{}}
}

// Close gives the files back.
func (fs *Files) Close() {
	for _, f := range fs.known {
		f.f.Close()
	}
	clear(fs.known)
}

// Errors of a process. Both are wrapped with what is known.
var (
	ErrGone   = errors.New("there is no such process")
	ErrAccess = errors.New("what it has mapped may not be read")
)

// Of gives the files with sites that a process has mapped, also those of another mount namespace; ErrNoSites if there are none.
func (fs *Files) Of(pid int) ([]*File, error) {
	dir := filepath.Join(fs.proc, strconv.Itoa(pid))
	maps, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return nil, processError(pid, err)
	}
	mappings, err := parseMaps(maps)
	maps.Close()
	if err != nil {
		return nil, processError(pid, err)
	}
	var list []*File
	var last error
	denied := false
	for i := range mappings {
		f, err := fs.open(dir, &mappings[i])
		switch {
		case err == nil:
			list = append(list, f)
		case errors.Is(err, ErrAccess):
			denied = true
		case !errors.Is(err, ErrNoSites):
			last = fmt.Errorf("%s of process %d: %w", mappings[i].path, pid, err)
			fs.note(last.Error())
		}
	}
	if len(list) > 0 {
		return list, nil
	}
	switch {
	case last != nil:
		return nil, last
	case denied:
		return nil, processError(pid, os.ErrPermission)
	}
	return nil, fmt.Errorf("process %d: %w in what it has mapped", pid, ErrNoSites)
}

func (fs *Files) note(text string) {
	if !slices.Contains(fs.Notes, text) && len(fs.Notes) < 64 {
		fs.Notes = append(fs.Notes, text)
	}
}

// processError says what an error of /proc/PID means.
func processError(pid int, err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist) && !errors.Is(unix.Kill(pid, 0), unix.ESRCH):
		return fmt.Errorf("process %d: %w: /proc does not show it, which its mount option hidepid does with other users' processes. Run as root", pid, ErrAccess)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return fmt.Errorf("process %d: %w", pid, ErrGone)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("process %d: %w: it runs as another user, or with capabilities that this process lacks. "+
			"Run as root, or add cap_sys_ptrace to the program's capabilities", pid, ErrAccess)
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// open finds the file behind a mapping. The entry of map_files is that file whatever has become of its name, but asks for
// CAP_CHECKPOINT_RESTORE or CAP_SYS_ADMIN; without them its name is looked up as the process sees it.
func (fs *Files) open(dir string, m *mapping) (*File, error) {
	id := fileID{m.dev, m.inode}
	if f := fs.known[id]; f != nil {
		return f, nil
	}
	if path, ok := fs.none[id]; ok && path == m.path {
		return nil, ErrNoSites
	}
	f, err := fs.reach(dir, m)
	if err != nil {
		return nil, err
	}
	file, err := newFile(f, m.path, id)
	if err != nil {
		f.Close()
		if errors.Is(err, ErrNoSites) && !couldBeOurs(m.path) {
			if len(fs.none) >= noneMax {
				clear(fs.none)
			}
			fs.none[id] = m.path
		}
		return nil, err
	}
	fs.known[id] = file
	return file, nil
}

// openFlags wait for nothing: what stands under a name may be a pipe or a terminal.
const openFlags = os.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY

// reach opens what is mapped, in the order of what is certain.
func (fs *Files) reach(dir string, m *mapping) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, "map_files", fmt.Sprintf("%x-%x", m.start, m.end)))
	if err == nil {
		return f, nil
	}
	if m.deleted {
		if !couldBeOurs(m.path) {
			return nil, ErrNoSites
		}
		return nil, errors.New("the file was replaced or removed since the process started. " +
			"Only root and CAP_CHECKPOINT_RESTORE still reach it: run as root, or restart the process")
	}
	if f, err = os.OpenFile(filepath.Join(dir, "root", m.path), openFlags, 0); err == nil {
		return f, nil
	}
	denied := errors.Is(err, os.ErrPermission)
	if f, err = os.OpenFile(m.path, openFlags, 0); err == nil { // newer kernels show the map of a process whose root they do not
		if id, err := idOf(f); err == nil && id == (fileID{m.dev, m.inode}) {
			return f, nil
		}
		f.Close()
	}
	if denied {
		return nil, ErrAccess
	}
	return nil, ErrNoSites
}

// idOf tells which file is open. Some file systems name another device in maps; then nothing is equal.
func idOf(f *os.File) (fileID, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fileID{}, err
	}
	return fileID{fmt.Sprintf("%02x:%02x", unix.Major(st.Dev), unix.Minor(st.Dev)), st.Ino}, nil
}

// couldBeOurs goes by the name alone, for files that cannot be looked into.
func couldBeOurs(path string) bool {
	ok, _ := filepath.Match("*kvlease*", filepath.Base(path))
	return ok
}

func newFile(f *os.File, path string, id fileID) (*File, error) {
	st, err := f.Stat() // before its sites: what is written meanwhile is seen
	if err != nil || !st.Mode().IsRegular() {
		return nil, ErrNoSites
	}
	sites, err := Sites(f)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Sites: sites, id: id, f: f, state: fileState{st.Size(), st.ModTime()}}, nil
}

// Unreachable gives the files that no name is left of and that nobody uses, and forgets them: no process can map one any more. Who is
// attached to one detaches.
func (fs *Files) Unreachable(used map[*File]bool) (list []*File) {
	for id, f := range fs.known {
		var st unix.Stat_t
		if !used[f] && unix.Fstat(int(f.f.Fd()), &st) == nil && st.Nlink == 0 {
			list = append(list, f)
			delete(fs.known, id)
			f.f.Close()
		}
	}
	return list
}

// At tells whether a path still names this file.
func (f *File) At(path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, err := f.f.Stat()
	return err == nil && os.SameFile(there, st)
}

// Overwritten gives the files that somebody has written into since they were read, and forgets them. Who is attached to one must detach: the
// kernel would put its probes where the sites were, into the midst of other code of processes that start now.
func (fs *Files) Overwritten() (list []*File) {
	for id, f := range fs.known {
		if f.overwritten() {
			list = append(list, f)
			delete(fs.known, id)
			f.f.Close()
		}
	}
	return list
}

// Library opens a file by its name, for processes that have it mapped or start later.
func (fs *Files) Library(path string) (*File, error) {
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	id, err := idOf(f)
	if err != nil {
		f.Close()
		return nil, err
	}
	if known := fs.known[id]; known != nil {
		f.Close()
		return known, nil
	}
	file, err := newFile(f, path, id)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	fs.known[id] = file
	return file, nil
}

// Process is one that maps files with sites.
type Process struct {
	PID   int
	Files []*File
}

// All gives every process that maps a file with sites, but this one. Those that may not be looked at are counted.
func (fs *Files) All() (list []Process, hidden int, err error) {
	entries, err := os.ReadDir(fs.proc)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		files, err := fs.Of(pid)
		switch {
		case err == nil:
			list = append(list, Process{PID: pid, Files: files})
		case errors.Is(err, ErrAccess):
			hidden++
		}
	}
	return list, hidden, nil
}
