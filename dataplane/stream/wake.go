package stream

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// wake is an eventfd of somebody who sleeps; -1: nobody does.
type wake int

// dupWake keeps an own descriptor, so that its owner may close its one at any time.
func dupWake(fd int) (wake, error) {
	if fd < 0 {
		return -1, nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%w: wake descriptor %d: %w", ErrInvalid, fd, err)
	}
	return wake(own), nil
}

var one = [8]byte{1}

// ring wakes the sleeper. A counter that is full is readable already.
func (w wake) ring() {
	if w >= 0 {
		unix.Write(int(w), one[:])
	}
}

func (w *wake) close() {
	if *w >= 0 {
		unix.Close(int(*w))
		*w = -1
	}
}
