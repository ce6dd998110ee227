package core

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// System calls of a step that never block. Go's scheduler is not told of them: each that it hears of wakes its monitor thread, which in
// an engine that only holds leases costs more than the step.

// bootTime is CLOCK_BOOTTIME.
func bootTime() unix.Timespec {
	var ts unix.Timespec
	if _, _, errno := unix.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&ts)), 0); errno != 0 {
		panic(errno) // the clock is there on every Linux that can run this
	}
	return ts
}

// empty takes what was written to a descriptor that counts and does not block, and tells whether there was any.
func empty(fd int) bool {
	var count uint64
	n, _, _ := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&count)), unsafe.Sizeof(count))
	return n == unsafe.Sizeof(count)
}

// setTimer has a timerfd fire once.
func setTimer(fd int, spec *unix.ItimerSpec) bool {
	_, _, errno := unix.RawSyscall6(unix.SYS_TIMERFD_SETTIME, uintptr(fd), 0, uintptr(unsafe.Pointer(spec)), 0, 0, 0)
	return errno == 0
}
