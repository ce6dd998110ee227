package stream

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// signal asks for something once; it never waits.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// endedWait is how long a process that is about to end may take from the end of its connections to its own.
const endedWait = 50 * time.Millisecond

// untilGone returns when the process on the other end has ended, errEnded, or closed the connection, errGone, or hang is asked for.
// Nothing is to be said any more, so whatever is read is the end, too.
func untilGone(conn *net.UnixConn, pid int32, hang <-chan struct{}) error {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-hang:
			conn.Close()
		case <-over:
		}
	}()
	ended := make(chan struct{})
	if f := processFile(conn, pid); f != nil {
		defer f.Close() // and so ends the goroutine
		go func() {
			if waitReadable(f) == nil {
				close(ended)
				conn.Close()
			}
		}()
	}
	var b [1]byte
	_, err := conn.Read(b[:])
	wait := endedWait
	if errors.Is(err, net.ErrClosed) {
		wait = 0 // by ended, or by this end
	}
	select {
	case <-ended:
		return errEnded
	default:
	}
	select {
	case <-ended:
		return errEnded
	case <-time.After(wait):
	}
	return errGone
}

const soPeerPidfd = 77 // SO_PEERPIDFD, since 6.5

// processFile is a descriptor that becomes readable when the process on the other end ends. The connection alone does not tell as
// long as a child that was forked from it holds the socket open. nil: where that cannot be had.
func processFile(conn *net.UnixConn, pid int32) *os.File {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil
	}
	fd := -1
	raw.Control(func(s uintptr) {
		if got, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, soPeerPidfd); err == nil {
			fd = got
		}
	})
	if fd < 0 && pid > 0 {
		if fd, err = unix.PidfdOpen(int(pid), 0); err != nil {
			return nil
		}
	}
	if fd < 0 {
		return nil
	}
	unix.CloseOnExec(fd)
	unix.SetNonblock(fd, true) // so that os.NewFile gives it to the poller
	return os.NewFile(uintptr(fd), "pidfd")
}

// waitReadable waits until a descriptor is readable, or closed, which is an error.
func waitReadable(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, _ := unix.Poll(p, 0)
		return n > 0
	})
}
