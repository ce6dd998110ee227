package capacity

import (
	"time"

	"golang.org/x/sys/unix"
)

// clockEvery: one step in so many is timed, by chance, since the clock of a thread is a system call.
const clockEvery = 8

// threadTime is what this thread has used of a core.
func threadTime() time.Duration {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// clockCost is the least that lies between two readings.
func clockCost() time.Duration {
	least := time.Second
	for range 1000 {
		a := threadTime()
		least = min(least, threadTime()-a)
	}
	return least
}
