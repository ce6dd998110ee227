package core

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// A closed context leaves no descriptor and no goroutine of its page.
func TestAClosedContextLeavesNothingOfItsPage(t *testing.T) {
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	newLab(t, `{}`)
	fds, routines := open(), runtime.NumGoroutine()
	for range 5 {
		l := newLab(t, `{}`)
		for _, n := range []*node{l.p, l.d} {
			if err := n.core.Close(time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= routines })
	if now := open(); now > fds+10 { // each of ten memories keeps its event descriptor, which is its owner's
		t.Errorf("%d descriptors, before %d", now, fds)
	}
}
