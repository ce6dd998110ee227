// Package await is what tests share that wait for other goroutines and processes.
package await

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/require"
)

// longest is far beyond what anything here takes on a busy machine.
const longest = time.Minute

// True looks until something holds.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(longest); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", longest, what)
		}
	}
}

// NoLeaks remembers how many goroutines and descriptors there are, and looks again when all else of the test is over.
func NoLeaks(t testing.TB) {
	t.Helper()
	(&net.Resolver{}).LookupHost(t.Context(), "127.0.0.1") // whatever the resolver keeps open from its first use on
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	t.Cleanup(func() {
		True(t, "goroutines and descriptors are back to what they were", func() bool {
			return runtime.NumGoroutine() <= goroutines && descriptors(t) <= files
		})
	})
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		require.Skip(t, "procfs", err.Error())
	}
	return len(list)
}
