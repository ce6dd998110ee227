package core

import (
	"bufio"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvlease/kvlease/dataplane/clock"
	"github.com/kvlease/kvlease/dataplane/log"
	"github.com/kvlease/kvlease/dataplane/transport/loopback"
)

// pipeLab is a lab whose contexts write to a pipe in place of stderr.
type pipeLab struct{ *lab }

func onPipe(t *testing.T) (l pipeLab, r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	before := stderrFd
	stderrFd = int(w.Fd())
	t.Cleanup(func() { stderrFd = before; r.Close(); w.Close() })
	l = pipeLab{&lab{t: t, now: clock.Instant(time.Hour), hub: loopback.NewHub(), size: loopbackConfig, edit: func(c *Config) { c.Log, c.LogLevel = "stderr", "warning" }}}
	l.p, l.d = l.node("P", `{}`), l.node("D", `{}`)
	l.occupy(l.p)
	l.occupy(l.d)
	return l, r, w
}

// stall has both say something.
func (l pipeLab) stall() {
	l.t.Helper()
	for _, d := range []time.Duration{time.Millisecond, 10 * time.Second} {
		l.advance(d)
		l.stepOne(l.p)
		l.stepOne(l.d)
	}
}

func TestLinesGoToStderrUntilTheHostTakesTheFirst(t *testing.T) {
	l, r, w := onPipe(t)
	l.stall()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "kvlease time=") || !strings.Contains(line, " level=warning kind=stall ") {
		t.Fatalf("stderr: %q, %v", line, err)
	}
	l.p.said(t, log.Stall)
	l.d.said(t, log.Stall)
	for i := range 20 { // hours apart, so that the rate lets them through
		l.advance(time.Duration(i) * time.Hour)
		l.stall()
	}
	if n := len(l.p.said(t, log.Stall)); n < 20 {
		t.Errorf("the host has taken %d lines, want 20 at least", n)
	}
	for _, n := range []*node{l.p, l.d} {
		if err := n.core.Close(time.Second); err != nil {
			t.Error(err)
		}
	}
	w.Close()
	rest := bufio.NewScanner(r)
	for lines := 0; rest.Scan(); lines++ {
		if lines > 10 {
			t.Fatalf("stderr goes on: %q", rest.Text())
		}
	}
}

func TestAStderrThatNobodyReadsStopsNothing(t *testing.T) {
	for _, blocks := range []bool{true, false} {
		t.Run(map[bool]string{true: "a pipe that blocks", false: "one that does not"}[blocks], func(t *testing.T) {
			l, _, _ := onPipe(t)
			if err := unix.SetNonblock(stderrFd, true); err != nil {
				t.Fatal(err)
			}
			for err := error(nil); err != unix.EAGAIN; _, err = unix.Write(stderrFd, make([]byte, 4096)) { // until it is full
			}
			if err := unix.SetNonblock(stderrFd, !blocks); err != nil {
				t.Fatal(err)
			}
			eventually(t, "records are lost, since the writer stands", func() bool {
				l.advance(time.Hour)
				l.stall()
				return l.p.core.log.log.Lost() > 0
			})
			began := time.Now()
			for _, n := range []*node{l.p, l.d} {
				if err := n.core.Close(time.Second); err != nil {
					t.Error(err)
				}
			}
			if took := time.Since(began); took > 10*time.Second { // two waits of 0.2 s; that of a blocked close has no end
				t.Errorf("the closes took %v", took)
			}
		})
	}
}

// What is not told is counted, in kvl_stats and on the stats page.
func TestRecordsThatNobodyHearsOfAreCounted(t *testing.T) {
	l := newLab(t, `{"log":"host"}`)
	l.occupy(l.p)
	stall := func(gap time.Duration) {
		for _, d := range []time.Duration{time.Millisecond, gap} {
			l.advance(d)
			l.stepOne(l.p)
		}
	}
	a, peer := third(t, l)
	for range 30 { // more than one in ten seconds
		if err := a.Send(peer, []byte("req-1")); err != nil {
			t.Fatal(err)
		}
		l.step(time.Millisecond)
	}
	for range 300 { // each let through, none taken
		stall(time.Hour)
	}
	log := l.p.core.log.log
	if log.Lost() == 0 || log.LeftOut() == 0 {
		t.Fatalf("lost %d, left out %d", log.Lost(), log.LeftOut())
	}
	var all map[string]any
	if err := json.Unmarshal(l.p.core.Stats(), &all); err != nil {
		t.Fatal(err)
	}
	if all["log_lost"] != float64(log.Lost()) || all["log_left_out"] != float64(log.LeftOut()) {
		t.Errorf("kvl_stats: lost %v, left out %v; want %d and %d", all["log_lost"], all["log_left_out"], log.Lost(), log.LeftOut())
	}
}

func TestAStderrThatIsClosedEndsNothing(t *testing.T) {
	l, r, _ := onPipe(t)
	r.Close()
	l.stall()
	eventually(t, "the line is gone", func() bool { return l.p.core.log.log.Empty() })
	l.stall()
	if err := l.p.core.Close(time.Second); err != nil {
		t.Error(err)
	}
}

// The first promise of the log: no step allocates, whatever is said.
func TestAStepThatSaysSomethingAllocatesNothing(t *testing.T) {
	l := newLab(t, `{}`)
	l.occupy(l.p)
	l.run(time.Second, 100*time.Millisecond)
	if n := testing.AllocsPerRun(100, func() {
		l.advance(time.Hour) // a stall
		if l.p.core.Step() != nil {
			t.Error("no step")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if len(l.p.said(t, log.Stall)) < 100 {
		t.Error("nothing was said")
	}
}
