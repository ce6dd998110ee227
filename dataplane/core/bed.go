package core

import (
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// bed is where the pump sleeps: on its descriptor, for a time.
//
// A thread that blocks in a system call keeps its place in Go's scheduler, and the scheduler's monitor looks after that place every
// 20 us at first: with 100 sleeps a second it costs more than all steps. So the pump's goroutine waits as those that read sockets do,
// without a thread, for a descriptor that stands for two: the pump's own and a timer of the kernel's. A timer of Go's wakes the
// monitor, too, and rounds to milliseconds.
//
// A pump with a priority must stay on its thread and blocks.
//
// Threads: the pump's.
type bed struct {
	fd    int // the pump's descriptor
	clock int // a timerfd; -1: sleeps block
	spec  unix.ItimerSpec
	file  *os.File // of an epoll descriptor over both
	raw   syscall.RawConn
	up    func(uintptr) bool // made once: a closure at each sleep would be an allocation
	rung  bool
	poll  [1]unix.PollFd
}

// makeBed makes a bed that blocks if own says that the thread is the pump's, or where the system has no descriptors left.
func makeBed(fd int, own bool) *bed {
	b := &bed{fd: fd, clock: -1, poll: [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}}
	if own || b.park() == nil {
		return b
	}
	b.close()
	return b
}

// park prepares sleeps without a thread.
func (b *bed) park() error {
	both, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	err = unix.SetNonblock(both, true) // tells os that the scheduler can wait for it
	b.file = os.NewFile(uintptr(both), "sleep of the pump")
	if err != nil {
		return err
	}
	if b.clock, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return err
	}
	for _, fd := range [...]int{b.fd, b.clock} {
		if err := unix.EpollCtl(both, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return err
		}
	}
	if err := b.file.SetReadDeadline(time.Time{}); err != nil { // it cannot
		return err
	}
	b.up = func(uintptr) bool {
		b.rung = empty(b.fd)
		return empty(b.clock) || b.rung
	}
	b.raw, err = b.file.SyscallConn()
	return err
}

// sleep tells whether somebody has written the descriptor. What was written is taken.
func (b *bed) sleep(d time.Duration) (woken bool) {
	if b.clock >= 0 {
		b.spec.Value = unix.NsecToTimespec(int64(d))
		if setTimer(b.clock, &b.spec) && b.raw.Read(b.up) == nil {
			return b.rung
		}
	}
	b.poll[0].Revents = 0
	ts := unix.NsecToTimespec(int64(d))
	unix.Ppoll(b.poll[:], &ts, nil)
	return b.poll[0].Revents != 0 && empty(b.fd)
}

func (b *bed) close() {
	if b.file != nil {
		b.file.Close()
	}
	if b.clock >= 0 {
		unix.Close(b.clock)
	}
	b.file, b.clock = nil, -1
}
