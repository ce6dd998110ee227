package output

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// errNoReader is of a pipe; a writer that waits for one hangs without a word, and no signal of ours ends that.
var errNoReader = errors.New("nobody reads this pipe")

// patienceMs is how long a reader may take nothing.
var patienceMs = 30_000

// atomicMax is what a pipe that is ready takes without blocking: PIPE_BUF, pipe(7).
const atomicMax = 4096

// through writes to what is no file of its own.
type through struct {
	to *os.File
	fd int
}

// reach opens a pipe or a device. Only the opening does not block.
func reach(path string) (*through, error) {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENXIO) {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
			err = errNoReader
		}
	}
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &through{to: os.NewFile(uintptr(fd), path), fd: fd}, nil
}

// descriptors are the folders of this process's own.
var descriptors = regexp.MustCompile(`^/proc/` + strconv.Itoa(os.Getpid()) + `(/task/\d+)?/fd$`)

// ours gives the descriptor of this process that a path below /proc means.
func ours(path string) (int, bool) {
	if !descriptors.MatchString(filepath.Dir(path)) {
		return 0, false
	}
	n, err := strconv.Atoi(filepath.Base(path))
	return n, err == nil && n >= 0
}

// inherit goes on where a descriptor of this process is: opened anew, a file would be written from its start, and a socket not at all.
func inherit(descriptor int) (*through, error) {
	flags, err := unix.FcntlInt(uintptr(descriptor), unix.F_GETFL, 0)
	if err != nil {
		return nil, err
	}
	if flags&unix.O_ACCMODE == unix.O_RDONLY {
		return nil, errors.New("it is open for reading alone")
	}
	fd, err := unix.FcntlInt(uintptr(descriptor), unix.F_DUPFD_CLOEXEC, 3) // above the streams, where a broken pipe is an error and no signal
	if err != nil {
		return nil, err
	}
	return &through{to: os.NewFile(uintptr(fd), strconv.Itoa(descriptor)), fd: fd}, nil
}

// Write gives up on a reader that has taken nothing for patienceMs.
func (t *through) Write(p []byte) (written int, err error) {
	for written < len(p) {
		ready, err := unix.Poll([]unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLOUT}}, patienceMs)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return written, err
		case ready == 0:
			return written, errors.New("its reader takes nothing")
		}
		n, err := t.to.Write(p[written:min(len(p), written+atomicMax)])
		written += n
		if errors.Is(err, unix.EPIPE) {
			err = errNoReader
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}
