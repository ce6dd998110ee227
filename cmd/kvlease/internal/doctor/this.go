package doctor

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/cnixl"
	"github.com/kvlease/kvlease/dataplane/probe"
	"github.com/kvlease/kvlease/internal/kernel"
)

// patience is what the libraries may take. A driver begins each GPU anew where nothing keeps it (nvidia-persistenced), which takes seconds a GPU.
const patience = time.Minute

// This is this machine. pid 0 is this process, which has the limits of an engine that is started in the same way.
func This(pid int, nixl func() (cnixl.Library, error)) (*System, error) {
	s := &System{
		Proc: "/proc", Sys: "/sys", Dev: "/dev", Shm: "/dev/shm", Root: "/", Arch: runtime.GOARCH, PID: "self", Watch: 100 * time.Millisecond, Patience: patience,
		Env: os.LookupEnv, Environ: func() ([]string, error) { return os.Environ(), nil },
		Kernel: kernel.Release(), FindNIXL: nixl, LoadNIXL: loadNIXL, CUDA: askCUDA, Trace: probe.Check, Caveats: probe.Caveats, Room: room, TryFile: tryFile, Clock: clockCost,
	}
	if pid != 0 {
		s.PID = strconv.Itoa(pid)
		s.Root = filepath.Join(s.Proc, s.PID, "root")
		if _, err := os.Stat(filepath.Join(s.Proc, s.PID)); err != nil {
			return nil, err
		}
		s.Environ = func() ([]string, error) {
			all, err := s.proc("environ")
			return strings.Split(strings.TrimRight(all, "\x00"), "\x00"), err
		}
		s.Env = func(name string) (string, bool) { return s.lookup(name) }
	}
	return s, nil
}

// lookup finds a variable of the process that is looked at.
func (s *System) lookup(name string) (string, bool) {
	all, err := s.Environ()
	if err != nil {
		return "", false
	}
	for _, v := range all {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// loadNIXL opens an agent as an engine would, and closes it.
func loadNIXL(lib cnixl.Library) error {
	a, err := cnixl.Open(cnixl.Config{Agent: "kvlease-doctor", Path: lib.File, PeersMax: 1, ReadsMax: 1, RegionsMax: 1})
	if err != nil {
		return err
	}
	return a.Close()
}

// room is what a file system has.
func room(dir string) (free, total uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st.Bavail * uint64(st.Bsize), st.Blocks * uint64(st.Bsize), nil
}

// tryFile makes a file and has the file system give it its bytes, as what maps shared memory does. It has no name (open(2), O_TMPFILE), so
// nobody sees it and nothing of it stays.
func tryFile(dir string, bytes int64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err == nil && limit.Cur < uint64(bytes) { // to go past it ends a process
		return &os.PathError{Op: "RLIMIT_FSIZE", Path: dir, Err: unix.EFBIG}
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, 0, 0, bytes); err != nil {
		return &os.PathError{Op: "fallocate", Path: dir, Err: err}
	}
	return nil
}

// clockCost is what a reading of the monotonic clock takes: the least of some rounds, since others use the processor, too.
func clockCost() time.Duration {
	const readings, rounds = 1000, 20
	least := time.Hour
	for range rounds {
		began := time.Now()
		for range readings {
			_ = time.Since(began) // reads the monotonic clock alone
		}
		least = min(least, time.Since(began)/readings)
	}
	return least
}
