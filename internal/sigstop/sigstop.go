// Package sigstop stops processes so that they stand still.
package sigstop

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signal is as p.Signal, for a child of this process; only, after SIGSTOP it returns when all threads of the child stand still.
//
// By itself the signal is under way when kill(2) returns: one thread has to take it before the others hear of it. On two busy cores
// some ran on for 76 ms, in which an engine answers reads and hears heartbeats that it should have missed.
//
// It fails if the child ends instead.
func Signal(p *os.Process, s syscall.Signal) error {
	if err := p.Signal(s); err != nil || s != syscall.SIGSTOP {
		return err
	}
	for {
		var how unix.Siginfo
		err := unix.Waitid(unix.P_PID, p.Pid, &how, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return fmt.Errorf("wait for process %d to stand still: %w", p.Pid, err)
		case how.Code != cldStopped && how.Code != cldTrapped:
			return fmt.Errorf("process %d has ended before it stood still: %w", p.Pid, os.ErrProcessDone)
		default:
			return nil
		}
	}
}

// si_code of SIGCHLD, from the kernel's include/uapi/asm-generic/siginfo.h.
const (
	cldTrapped = 4
	cldStopped = 5
)
