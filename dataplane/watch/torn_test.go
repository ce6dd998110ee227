package watch

import (
	"bufio"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

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
}

// racing is a page's content whose writer publishes in the middle of a read, as often as it has turns left.
type racing struct {
	io.ReaderAt
	publish func()
	turns   int
}

func (r *racing) ReadAt(b []byte, at int64) (int, error) {
	if len(b) <= 8 || r.turns == 0 { // a word is read at once
		return r.ReaderAt.ReadAt(b, at)
	}
	r.turns--
	half := len(b) / 2
	n, err := r.ReaderAt.ReadAt(b[:half], at)
	if err != nil {
		return n, err
	}
	r.publish()
	rest, err := r.ReaderAt.ReadAt(b[half:], at+int64(half))
	return n + rest, err
}

// racingPage is a page whose state n is followed by two more during each read, so that the copy under the reader is written over.
func racingPage(t *testing.T, turns int) (*Page, *racing) {
	t.Helper()
	w := newPage(t, spec(require.Shm(t)))
	n := uint64(1)
	publish := func() {
		for range 2 {
			w.Publish(fillState(w, n))
			n++
		}
	}
	publish()
	p, err := Open(w.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	r := &racing{p.content, publish, turns}
	p.content = r
	return p, r
}

func TestACopyThatIsWrittenOverWhileItIsReadIsReadAgain(t *testing.T) {
	p, _ := racingPage(t, triesMax-1)
	var s Snapshot
	if err := p.Read(&s); err != nil || torn(&s) != "" || p.tries != triesMax-1 {
		t.Errorf("%v, %q, read again %d times", err, torn(&s), p.tries)
	}
	p, _ = racingPage(t, triesMax)
	if err := p.Read(&s); !errors.Is(err, ErrTorn) {
		t.Errorf("a copy that changes with every look: %v", err)
	}
}

// The control of the tests above: without the look at the turn afterwards states are torn.
func TestWithoutTheSecondLookStatesAreTorn(t *testing.T) {
	p, _ := racingPage(t, 1)
	b := make([]byte, p.secs[secMain].copyLen)
	if err := p.readAt(b, int64(p.secs[secMain].place(0, 2))); err != nil {
		t.Fatal(err)
	}
	first, last := b[8*mainWords:][:8], b[len(b)-8:]
	if string(first) == string(last) {
		t.Errorf("%x at both ends of a copy that was written over", first)
	}
}
