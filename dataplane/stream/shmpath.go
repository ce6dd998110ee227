package stream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/siphash"
)

// pathBytesMax is what a Unix socket's name has room for: 108 bytes with the zero behind it.
const pathBytesMax = 107

// engineHash names an engine as native messages do.
func engineHash(id string) uint64 { return siphash.Sum64(0, 0, []byte(id)) }

// DefaultPath is where an engine's host and ranks meet without carrier_path.
func DefaultPath(engineID string) string {
	return fmt.Sprintf("/dev/shm/kvlease-%d-%016x.sock", os.Geteuid(), engineHash(engineID))
}

// socketPath is the path of a configuration.
func (c *Config) socketPath() (string, error) {
	path := c.Path
	if path == "" {
		path = DefaultPath(c.EngineID)
	}
	switch {
	case len(path) > pathBytesMax:
		return "", fmt.Errorf("%w: %q has %d bytes, a Unix socket's name at most %d: set a shorter one, under /run or /tmp", ErrPath, path, len(path), pathBytesMax)
	case !filepath.IsAbs(path):
		return "", fmt.Errorf("%w: %q is not absolute, and host and ranks may run in different folders", ErrPath, path)
	}
	return path, nil
}

// listen makes the socket. One that a dead host has left is replaced; a live host's is not.
func listen(cfg *Config, path string) (*net.UnixListener, error) {
	unlock := lockFolder(filepath.Dir(path))
	defer unlock()
	if err := removeStale(cfg, path); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if ctlErr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); ctlErr != nil { // before bind: no moment with more
			return ctlErr
		}
		return err
	}}
	l, err := lc.Listen(context.Background(), "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("%w: %s for engine_id %q: %w: set carrier_path to a place that this user can write", ErrPath, path, cfg.EngineID, err)
	}
	listener := l.(*net.UnixListener)
	listener.SetUnlinkOnClose(false) // only if it is still ours: unlinkOurs
	return listener, nil
}

// lockFolder keeps two hosts from replacing the same stale socket at once. Where a folder cannot be locked, or somebody keeps it
// locked, it goes on without.
func lockFolder(dir string) (unlock func()) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	for range 100 {
		if err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return func() { unix.Close(fd) }
}

// removeStale removes a socket on which nobody listens any more.
func removeStale(cfg *Config, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrPath, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%w: %s is no socket, but a file of something else: remove it, or set another carrier_path", ErrPath, path)
	}
	if pid, alive := listens(path); alive {
		return fmt.Errorf("%w: %s is served by process %d, a live host of engine_id %q: give this engine another engine_id, or another carrier_path",
			ErrPath, path, pid, cfg.EngineID)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: the socket of a dead host is in the way: %w", ErrPath, err)
	}
	return nil
}

// listens reports whether the process that has made a socket still lives. One that was forked from it may hold the socket open
// when it is dead.
func listens(path string) (pid int32, alive bool) {
	conn, err := net.DialTimeout("unixpacket", path, time.Second)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
		return 0, false
	} else if err != nil { // its queue is full, or not ours to ask
		return 0, true
	}
	defer conn.Close()
	pid, _ = peerIsOurs(conn.(*net.UnixConn))
	return pid, pid <= 0 || !errors.Is(unix.Kill(int(pid), 0), unix.ESRCH) // 0: another pid namespace
}

// unlinkOurs removes the socket if it is still the one that was made.
func unlinkOurs(path string, made os.FileInfo) {
	if now, err := os.Lstat(path); err == nil && made != nil && os.SameFile(made, now) {
		os.Remove(path)
	}
}
