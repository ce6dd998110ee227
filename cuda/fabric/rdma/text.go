package rdma

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// fileMax is more than any file has that is read here. sysfs gives at most a page of one (Documentation/filesystems/sysfs.rst), and what a user writes for
// UCX, or a distribution into /etc, is a few lines.
const fileMax = 1 << 20

// File is what a small file holds, at most 1 MiB. Some of these files are those of a user, or of a container that is looked at from outside: a pipe in
// the place of one would never be read to its end, nor would a device, and a file without end would take all memory.
func File(parts ...string) ([]byte, error) {
	name := filepath.Join(parts...)
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrInvalid}
	}
	return io.ReadAll(io.LimitReader(f, fileMax))
}

// Text is a small file without the blanks around it; empty if there is none.
func Text(parts ...string) string {
	text, _ := File(parts...)
	return strings.TrimSpace(string(text))
}
