package watch

import (
	"bufio"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvlease/kvlease/internal/child"
	"github.com/kvlease/kvlease/internal/require"
)

// A reader sees states whole, whatever the writer is doing, and the last whole one of a writer that was killed in the middle.
func TestAWriterThatIsKilledLeavesAWholeState(t *testing.T) {
	dir := require.Shm(t)
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	var reads, again uint64
	for i := range rounds {
		cmd := runSelf(t, "write", dir)
		_, out := child.Pipes(t, cmd)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() }) // also if the test fails before it does
		path, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatalf("%q %v", path, err)
		}
		path = strings.TrimSpace(path)
		p, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var s Snapshot
		for range 1 + i%20 {
			switch err := p.Read(&s); {
			case errors.Is(err, ErrTorn): // it writes without a pause
			case err != nil:
				t.Fatal(err)
			default:
				reads++
				if what := torn(&s); what != "" {
					t.Fatalf("torn: %s", what)
				}
			}
		}
		cmd.Process.Kill()
		cmd.Wait()
		for range 2 {
			if err := p.Read(&s); err != nil {
				t.Fatalf("after its death: %v", err)
			}
			if what := torn(&s); what != "" {
				t.Fatalf("after its death: %s", what)
			}
		}
		if s.Alive {
			t.Errorf("process %d was killed and counts as alive", s.PID)
		}
		again += p.tries
		p.Close()
		os.Remove(path)
	}
	t.Logf("%d states read, %d copies read again", reads, again)
	if again == 0 && !testing.Short() {
		t.Error("no copy was ever written over while it was read: the check was not needed once")
	}
}

// The control of the test above: without the look at the turn afterwards states are torn.
func TestWithoutTheSecondLookStatesAreTorn(t *testing.T) {
	w := newPage(t, spec(require.Shm(t)))
	var stop atomic.Bool
	done := make(chan struct{})
	w.Publish(fillState(w, 1))
	go func() {
		defer close(done)
		for n := uint64(2); !stop.Load(); n++ {
			w.Publish(fillState(w, n))
		}
	}()
	defer func() { stop.Store(true); <-done }()
	p, err := Open(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b := make([]byte, p.secs[secMain].copyLen)
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err := p.readAt(b, int64(p.secs[secMain].place(0, 1))); err != nil {
			t.Fatal(err)
		}
		first, last := b[8*mainWords:][:8], b[8*(mainWords+99):][:8]
		if string(first) != string(last) {
			return
		}
	}
	t.Error("a copy that is written all the time was never seen torn")
}
