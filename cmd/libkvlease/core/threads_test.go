package main

import (
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/kvlease/kvlease/dataplane/core"
)

func TestTheFirstContextSaysHowManyThreadsRunGoUnlessTheUserHas(t *testing.T) {
	was := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(was)
	for _, tc := range []struct {
		user string
		want int
	}{{"", was + 3}, {"3", 3}, {"many", was}} {
		runtime.GOMAXPROCS(was)
		threadsSaid = sync.Once{}
		t.Setenv("GOMAXPROCS", tc.user) // of C, too
		if tc.user == "" {
			os.Unsetenv("GOMAXPROCS")
		}
		tuneRuntime(&core.Config{Threads: was + 3, CoreMemoryMax: 1 << 30})
		tuneRuntime(&core.Config{Threads: was + 5, CoreMemoryMax: 1 << 30})
		if got := runtime.GOMAXPROCS(0); got != tc.want {
			t.Errorf("GOMAXPROCS %q in the environment, threads %d, then %d: %d threads, want %d", tc.user, was+3, was+5, got, tc.want)
		}
	}
}
