package tracing

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/probe"
)

// process is one that was named; its descriptor stays its own when the number is used again.
type process struct{ fd int }

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, probe.ErrGone)
	}
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // later kernels
		return nil, fmt.Errorf("%d is a thread, not a process", pid)
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, os.NewSyscallError("pidfd_open", err))
	}
	p := &process{fd}
	if p.ended() { // its parent has not asked for it yet
		p.close()
		return nil, fmt.Errorf("process %d: %w", pid, probe.ErrGone)
	}
	return p, nil
}

// ended looks without waiting.
func (p *process) ended() bool {
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (p *process) close() { unix.Close(p.fd) }
