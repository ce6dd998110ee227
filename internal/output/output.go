// Package output writes the files that users name: whole, or not at all, or through what is no file.
package output

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// File is one that has been found writable. What was there stays until all of the new text is on the disk beside it. A pipe, a device and a
// descriptor of this process, such as /dev/stdout, are held open from the start and written through: whoever reads a pipe takes a close for the end.
// A nil one writes nothing. Threads: one.
type File struct {
	path    string // as the user has named it
	remedy  string
	at      string   // behind all links
	through *through // else it is replaced
}

// Open finds out whether path can be written, before the work whose result goes there. An empty one is not asked for and gives nil. remedy is
// what the user can do if it cannot, as "name another file by --svg"; it stands in every error, behind the name.
func Open(path, remedy string) (*File, error) {
	if path == "" {
		return nil, nil
	}
	f := &File{path: path, remedy: remedy}
	if err := f.open(); err != nil {
		return nil, f.failed(err)
	}
	return f, nil
}

func (f *File) open() error {
	at, descriptor, err := behind(f.path)
	if err != nil {
		return err
	}
	f.at = at
	if descriptor >= 0 {
		f.through, err = inherit(descriptor)
		return err
	}
	st, err := os.Stat(at)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case st.IsDir():
		return unix.EISDIR
	case st.Mode()&os.ModeDevice != 0 && st.Mode()&os.ModeCharDevice == 0:
		return errors.New("it is a disk")
	case !st.Mode().IsRegular():
		f.through, err = reach(at)
		return err
	default:
		if err := replaceable(at); err != nil {
			return err
		}
	}
	probe, err := f.beside()
	if err != nil {
		return err
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// replaceable looks whether this user may write a file, and whether another may take its place.
func replaceable(at string) error {
	fd, err := unix.Open(at, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &st) == nil && st.Attributes&st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return errors.New("it is mounted by itself, so that no other file can take its place")
	}
	return nil
}

// beside makes the file that will take the other's place, with the rights that the user's umask leaves.
func (f *File) beside() (*os.File, error) {
	return os.OpenFile(f.at+"."+rand.Text()[:8]+".part", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
}

// Through reports whether it is no file of its own, so that nothing can stand beside it.
func (f *File) Through() bool { return f != nil && f.through != nil }

// Write writes what fill gives. After an error a file is as it was before, or not there. It is called once.
func (f *File) Write(fill func(io.Writer) error) error {
	if f == nil {
		return nil
	}
	if f.through != nil {
		_, err := f.pour(f.through, fill)
		return errors.Join(err, f.Close())
	}
	to, err := f.beside()
	if err != nil {
		return f.failed(err)
	}
	written, err := f.pour(to, fill)
	if written {
		if err = f.replace(to); err != nil {
			err = f.failed(err)
		}
	}
	if err != nil {
		to.Close()
		os.Remove(to.Name())
	}
	return err
}

// WriteBytes is Write of a text that is made already.
func (f *File) WriteBytes(data []byte) error {
	return f.Write(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// pour reports whether all of it has been written; an error of fill's own is told as it is.
func (f *File) pour(to io.Writer, fill func(io.Writer) error) (bool, error) {
	s := &sink{to: to}
	b := bufio.NewWriterSize(s, 1<<16)
	err := fill(b)
	if err == nil {
		err = b.Flush()
	}
	if s.err != nil {
		err = f.failed(s.err)
	}
	return err == nil, err
}

// replace puts the new file in the place of the old one, and gives it that one's rights and, where this user may, its owner.
func (f *File) replace(to *os.File) error {
	var was unix.Stat_t
	if unix.Stat(f.at, &was) == nil {
		_ = to.Chown(int(was.Uid), int(was.Gid))
		if err := to.Chmod(fs.FileMode(was.Mode & 0o777)); err != nil {
			return err
		}
	}
	// some file systems say only here that they are full
	if err := errors.Join(to.Sync(), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), f.at)
}

// Close lets go of what Write was not called for.
func (f *File) Close() error {
	if f == nil || f.through == nil {
		return nil
	}
	if err := f.through.to.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return f.failed(err)
	}
	return nil
}

// WriteFile is for what takes no time to make.
func WriteFile(path, remedy string, data []byte) error {
	f, err := Open(path, remedy)
	if err != nil {
		return err
	}
	return f.WriteBytes(data)
}

// failed says what cannot be written, why, and what helps.
func (f *File) failed(err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		err = of.Err
	}
	help := f.remedy
	for _, r := range []struct {
		why  error
		help string
	}{
		{unix.ENOSPC, "make room there, or "}, {unix.EDQUOT, "make room there, or "}, {unix.ENOENT, "make its folder first, or "}, {errNoReader, "start its reader first, or "},
	} {
		if errors.Is(err, r.why) {
			help = r.help + help
		}
	}
	return fmt.Errorf("%s cannot be written: %w; %s", f.path, err, help)
}

// sink remembers why it could not be written: what fills it may say it in its own words, or not at all.
type sink struct {
	to  io.Writer
	err error
}

func (s *sink) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	if s.err == nil {
		s.err = err
	}
	return n, err
}

// behind follows links to the name that is none, and says which descriptor of this process it is, -1 if none.
func behind(path string) (at string, descriptor int, err error) {
	if os.IsPathSeparator(path[len(path)-1]) {
		return "", -1, unix.EISDIR
	}
	for range 40 { // as many as the kernel follows, path_resolution(7)
		dir, err := filepath.EvalSymlinks(filepath.Dir(path))
		if err != nil {
			return "", -1, err
		}
		path = filepath.Join(dir, filepath.Base(path))
		if n, ok := ours(path); ok {
			return path, n, nil
		}
		to, err := os.Readlink(path)
		if err != nil { // it is no link, or not there
			return path, -1, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(dir, to)
		}
		path = to
	}
	return "", -1, unix.ELOOP
}
