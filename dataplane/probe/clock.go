package probe

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is the clock that the program in the kernel reads.
func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}
